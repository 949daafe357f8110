"""One tick of a step: observe, ask the policy, reconcile, record. Called from the loop that follows the payload."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs

from dagster_slurm.acting import WatchedSession, follow_up, listed, reconcile_intents
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.snapshot import SessionSnapshot
from dagster_slurm.allocations.succession import HeadResult
from dagster_slurm.errors import RemoteError
from dagster_slurm.policy import Policy, PolicyCall, PolicyContext, PolicyProblem
from dagster_slurm.recording import Recorder, Tick
from dagster_slurm.remote.payload_scripts import PayloadPoll

#: How long a tick waits for a policy before the loop goes on without its answer and looks again later.
PATIENCE_SECONDS = 2.0
#: The window of workers that are released because the step ended: they have nothing left to finish.
END_DRAIN_SECONDS = 1.0


class DrivenSession(WatchedSession, Protocol):
    """The part of ``AllocationSession`` that a step drives."""

    @property
    def session_dir(self) -> str: ...

    def submit_successor(self) -> HeadResult: ...

    def logs(self, slurm_job_id: str) -> str: ...

    def start_payload(
        self, payload: Path, *, argv: Sequence[str] = (), env: Mapping[str, str] | None = None, payload_id: str
    ) -> str: ...

    def poll_payload(
        self, payload_id: str, *, messages_offset: int, log_offset: int, mark: Mapping[str, object] | None
    ) -> PayloadPoll: ...

    def replace_payloads(self, step: str, attempt: str) -> tuple[str, ...]: ...

    def cancel_payload(self, payload_id: str) -> None: ...


@attrs.frozen(kw_only=True)
class Driver:
    """Who drives: the step and its policy.

    Attributes:
        key: Default key of its intents.
        run_id: The Dagster run.
        policy: None only observes.
        asset_key: The asset as text; None in an op.
        partition_key: Its partition.
        log: The run's log.
        interval_seconds: From tick to tick.
        policy_limit_seconds: A policy that takes longer is not waited for.
    """

    key: str
    run_id: str
    policy: Policy | None
    asset_key: str | None
    partition_key: str | None
    log: logging.Logger
    interval_seconds: float
    policy_limit_seconds: float


class Ticker:
    """The ticks of one step."""

    def __init__(
        self,
        session: DrivenSession,
        driver: Driver,
        recorder: Recorder,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._driver = driver
        self._recorder = recorder
        self._clock = clock
        self._due = clock()
        self._call: PolicyCall | None = None
        self._called_at = 0.0
        self._too_late = False
        self._used: dict[str, WorkerIntent] = {}
        self._warned: set[str] = set()
        self.snapshot: SessionSnapshot | None = None

    @property
    def mark(self) -> dict[str, object]:
        """What tells a sensor that this step asks its policy itself."""
        return {"key": self._driver.key, "interval_seconds": self._driver.interval_seconds}

    def hurry(self) -> None:
        """Make the next tick now."""
        self._due = self._clock()

    @property
    def seconds_to_next(self) -> float:
        """Until there is something to do."""
        return max(0.0, self._due - self._clock())

    def step(self, work: Mapping[str, Any] | None) -> None:
        """Do what is due: begin a tick, or take in the answer of a policy that took its time."""
        if self._call is not None:
            self._collect(self._call)
        if self._clock() >= self._due:
            self._due = self._clock() + self._driver.interval_seconds
            self._begin(work)

    def release(self) -> None:
        """The step ends: release the workers of every intent that it used, and record that.

        Raises:
            DagsterSlurmError: they may still be there; the end of the session cancels them.
        """
        self.stop_asking()
        if not self._used:
            return
        intents = tuple(
            WorkerIntent(key=intent.key, count=0, drain_timeout=END_DRAIN_SECONDS) for intent in self._used.values()
        )
        # Looked at before they go: work that ends soon after a submission leaves no other record of its workers.
        snapshot = self._session.inspect()
        result = self._session.reconcile_workers(intents)
        released = listed(result.released) or "nothing was left to release"
        sentence = f"The work has ended; workers released: {released}."
        self._recorder.add(Tick(decision=sentence, snapshot=snapshot, intents=intents, result=result))

    def stop_asking(self) -> None:
        """Ignore a policy that has not answered yet."""
        if self._call is not None:
            self._call.abandon()

    # -- one tick ----------------------------------------------------------------------------------

    def _begin(self, work: Mapping[str, Any] | None) -> None:
        try:
            snapshot = self.snapshot = self._session.inspect()
        except RemoteError as error:
            self._recorder.add(Tick(decision=f"The cluster could not be asked. {error.message}", work=work))
            return
        driver = self._driver
        if driver.policy is None:
            self._upkeep(snapshot, work, "No policy: only observed.")
            return
        if self._call is not None:
            problem = PolicyProblem(sentence="The policy still works on an earlier tick; it was not asked again.")
            self._upkeep(snapshot, work, problem.sentence, problem)
            return
        context = PolicyContext(
            snapshot=snapshot,
            key=driver.key,
            work=work,
            run_id=driver.run_id,
            asset_key=driver.asset_key,
            partition_key=driver.partition_key,
            log=driver.log,
            estimate=self._session.estimate_worker_starts,
        )
        self._call, self._called_at, self._too_late = PolicyCall(driver.policy, context), self._clock(), False
        self._call.finished(min(PATIENCE_SECONDS, driver.policy_limit_seconds))
        self._collect(self._call)

    def _collect(self, call: PolicyCall) -> None:
        if call.finished():
            self._call = None
            if not self._too_late:
                self._act(call, call.answer())
            return
        limit = self._driver.policy_limit_seconds
        if not self._too_late and self._clock() - self._called_at >= limit:
            self._too_late = True
            call.abandon()
            problem = PolicyProblem(sentence=f"The policy did not answer within {limit:g} s; a late answer is ignored.")
            self._act(call, problem)

    def _act(self, call: PolicyCall, answer: tuple[WorkerIntent, ...] | PolicyProblem | None) -> None:
        if isinstance(answer, PolicyProblem):
            self._warn(answer)
            self._upkeep(call.snapshot, call.work, answer.sentence, answer)
        elif not answer:
            self._upkeep(call.snapshot, call.work, "The policy leaves the workers as they are.")
        else:
            self._used.update({intent.key: intent for intent in answer})
            self._reconcile(call, answer)

    def _reconcile(self, call: PolicyCall, intents: tuple[WorkerIntent, ...]) -> None:
        tick = reconcile_intents(self._session, call.snapshot, intents, call.work)
        if tick.problem is not None:
            self._warn(tick.problem)
        self._recorder.add(tick)

    def _upkeep(
        self,
        snapshot: SessionSnapshot,
        work: Mapping[str, Any] | None,
        sentence: str,
        problem: PolicyProblem | None = None,
    ) -> None:
        self._recorder.add(
            follow_up(self._session, Tick(decision=sentence, snapshot=snapshot, problem=problem, work=work))
        )

    def _warn(self, problem: PolicyProblem) -> None:
        # The event has it every time; the log once.
        if problem.sentence not in self._warned:
            self._warned.add(problem.sentence)
            self._driver.log.warning(f"{problem.sentence.rstrip('.')}. The work goes on.\n{problem.detail}".rstrip())
