"""A session that plays a script: stands in for the cluster where only Dagster's side is tested.

That it behaves as the real one is held by ``test_on_the_box.py``, which runs the same loop on a real Slurm.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from dagster_slurm.allocations.config import SlurmWorkerAllocationConfig
from dagster_slurm.allocations.estimate import StartEstimate
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.reports import DriverMark
from dagster_slurm.allocations.result import EndResult, ReconcileResult
from dagster_slurm.allocations.snapshot import AllocationSnapshot, SessionSnapshot
from dagster_slurm.allocations.succession import HeadResult
from dagster_slurm.patience import Pace
from dagster_slurm.policy import Policy
from dagster_slurm.recording import Recorder
from dagster_slurm.remote.payload_scripts import PayloadPoll
from dagster_slurm.ticks import Driver, Ticker

Step = Callable[["FakeSession"], None]
EPOCH = 1_700_000_000


@attrs.frozen
class Call:
    """One call of the session."""

    name: str
    arguments: Mapping[str, Any] = attrs.field(factory=dict)


class FakeSession:
    """See DrivenSession. Each poll plays the next step of the script.

    Attributes:
        now: Seconds since the beginning; a pause of the loop adds to it.
        head, successor, workers: What a snapshot shows.
        state, exit_code, message, ended_with_head, work, closing: What a poll shows.
        log, messages: The whole files; a poll shows them from the offset on.
        end_result, known_jobs: What is known of its end.
        heads: What ``ensure_head`` makes of the session, one a call: the next heads; none: it finds none.
        earlier: What other attempts of the step left running, one entry a look.
        taken_by: The head that runs the payload.
        fail: Errors to raise by the next calls of a method, in order.
        calls: What was called.
    """

    session_dir = "/fake/sessions/run"
    session_id = "run"
    job_name = "dagster-run"
    address = "user@login:22"

    def __init__(self, *script: Step) -> None:
        self._script = list(script)
        self.now = 0.0
        self.head = AllocationSnapshot(slurm_job_id="1", role="head", state="RUNNING", committed=True)
        self.workers: dict[str, AllocationSnapshot] = {}
        self.certain = True
        self.unresolved = 0
        self.state: str | None = "waiting"
        self.exit_code: int | None = None
        self.message: str | None = None
        self.ended_with_head = False
        self.work: dict[str, Any] | None = None
        self.closing = False
        self.log = b""
        self.messages = b""
        self.chunk = 1 << 18
        self.fail: dict[str, list[BaseException]] = {}
        self.calls: list[Call] = []
        self.drivers: tuple[DriverMark, ...] = ()
        self.known_jobs: tuple[str, ...] = ("1",)
        self.end_result = EndResult(complete=True)
        self.heads: list[AllocationSnapshot] = []
        self.successor: AllocationSnapshot | None = None
        self.taken_by: str | None = "1"
        self.earlier: list[tuple[str, ...]] = []

    def called(self, name: str) -> list[Mapping[str, Any]]:
        """Arguments of each call of a method."""
        return [call.arguments for call in self.calls if call.name == name]

    def _enter(self, name: str, **arguments: Any) -> None:
        self.calls.append(Call(name, arguments))
        if self.fail.get(name):
            raise self.fail[name].pop(0)

    def inspect(self) -> SessionSnapshot:
        self._enter("inspect")
        return SessionSnapshot(
            session_id="run",
            observed_at=EPOCH + int(self.now),
            certain=self.certain,
            head=self.head,
            successor=self.successor,
            allocations=(self.head, *self.workers.values()),
            unresolved=self.unresolved,
            closing=self.closing,
            head_needs="ended" if self.head.committed is False else None,
            work=self.work,
            drivers=self.drivers,
        )

    def ensure_head(self) -> HeadResult:
        self._enter("ensure_head")
        if not self.heads:
            return HeadResult(standing="none", head_job_id=self.head.slurm_job_id)
        self.head = self.heads.pop(0)
        waits = self.head.state == "PENDING"
        submitted = (str(self.head.slurm_job_id),) if waits else ()
        return HeadResult(
            standing="queued" if waits else "leads", head_job_id=self.head.slurm_job_id, submitted=submitted
        )

    def submit_successor(self) -> HeadResult:
        self._enter("submit_successor")
        return HeadResult(standing="leads", head_job_id="1", submitted=("9",))

    def estimate_worker_starts(self, candidates: Sequence[SlurmWorkerAllocationConfig]) -> Sequence[StartEstimate]:
        self._enter("estimate_worker_starts", candidates=tuple(candidates))
        return tuple(
            StartEstimate(config=c, start_in_seconds=0, time_limit_seconds=600, error=None) for c in candidates
        )

    def reconcile_workers(
        self,
        intent: WorkerIntent | Sequence[WorkerIntent],
        *,
        observed: SessionSnapshot | None = None,
        max_submissions: int | None = None,
    ) -> ReconcileResult:
        intents = (intent,) if isinstance(intent, WorkerIntent) else tuple(intent)
        self._enter("reconcile_workers", intents=intents, observed=observed, max_submissions=max_submissions)
        submitted, released = [], []
        for wish in intents:
            live = [w for w in self.workers.values() if w.intent == wish.key and w.drain_deadline is None]
            for worker in live[wish.count :]:
                assert worker.slurm_job_id is not None
                self.workers[worker.slurm_job_id] = attrs.evolve(worker, drain_deadline=EPOCH + int(self.now) + 60)
                released.append(worker.slurm_job_id)
            for _ in range(min(wish.count - len(live), 50 if max_submissions is None else max_submissions)):
                submitted.append(self.add_worker(wish.key))
        return ReconcileResult(submitted=tuple(submitted), released=tuple(released))

    def add_worker(self, key: str) -> str:
        """Another worker allocation that runs."""
        job_id = str(100 + len(self.workers))
        self.workers[job_id] = AllocationSnapshot(
            slurm_job_id=job_id,
            role="worker",
            state="RUNNING",
            committed=True,
            intent=key,
            nodes=("n1",),
            granted_gpus=0,
            ready=True,
            draining=False,
        )
        return job_id

    def logs(self, slurm_job_id: str) -> str:
        self._enter("logs", slurm_job_id=slurm_job_id)
        return f"log of {slurm_job_id}\nModuleNotFoundError: No module named 'ray'\n"

    def start_payload(
        self, payload: Path, *, argv: Sequence[str] = (), env: Mapping[str, str] | None = None, payload_id: str
    ) -> str:
        self._enter("start_payload", payload=payload, argv=tuple(argv), env=dict(env or {}), payload_id=payload_id)
        if len(self.called("start_payload")) > 1:
            # The next attempt has files of its own.
            self.state, self.message, self.ended_with_head = "waiting", None, False
            self.log = self.messages = b""
        return payload_id

    def poll_payload(
        self,
        payload_id: str,
        *,
        messages_offset: int,
        log_offset: int,
        mark: Mapping[str, object] | None = None,
    ) -> PayloadPoll:
        self._enter("poll_payload", messages_offset=messages_offset, log_offset=log_offset, mark=mark)
        if self._script:
            self._script.pop(0)(self)
        else:
            assert self.state in ("succeeded", "failed", "cancelled") or self.now < 5_000, "the loop does not end"
        log = self.log[log_offset : log_offset + self.chunk]
        messages = self.messages[messages_offset : messages_offset + self.chunk]
        return PayloadPoll(
            state=self.state,
            exit_code=self.exit_code,
            message=self.message,
            head_job_id=None if self.state == "waiting" else self.taken_by,
            ended_with_head=self.ended_with_head,
            messages=messages,
            log=log,
            messages_left=len(messages) >= self.chunk,
            log_left=len(log) >= self.chunk,
            work=self.work,
            closing=self.closing,
        )

    def replace_payloads(self, step: str, attempt: str) -> tuple[str, ...]:
        self._enter("replace_payloads", step=step, attempt=attempt)
        return self.earlier.pop(0) if self.earlier else ()

    def cancel_payload(self, payload_id: str) -> None:
        self._enter("cancel_payload", payload_id=payload_id)

    def end(self) -> EndResult:
        self._enter("end")
        return self.end_result

    def pace(self) -> Pace:
        """Time that passes only while the loop pauses."""

        def sleep(seconds: float) -> None:
            assert seconds > 0
            self.now += seconds

        return Pace(clock=lambda: self.now, sleep=sleep)


# -- steps of a script --------------------------------------------------------------------------------


def running(session: FakeSession) -> None:
    """The head has taken the payload."""
    session.state = "running"


def succeeded(session: FakeSession) -> None:
    """It ended well."""
    session.state, session.exit_code = "succeeded", 0


def failed(session: FakeSession) -> None:
    """It ended with status 3."""
    session.state, session.exit_code, session.message = "failed", 3, "exited with status 3"


def prints(text: str) -> Step:
    """It prints."""

    def step(session: FakeSession) -> None:
        session.log += text.encode()

    return step


def says(*messages: bytes) -> Step:
    """It sends bytes as Pipes messages."""

    def step(session: FakeSession) -> None:
        session.messages += b"".join(messages)

    return step


def works(remaining: int) -> Step:
    """It reports its work."""

    def step(session: FakeSession) -> None:
        session.work = {"remaining": remaining}

    return step


def waits(seconds: float) -> Step:
    """Nothing happens for that long."""

    def step(session: FakeSession) -> None:
        session.now += seconds

    return step


def message(method: str, **params: Any) -> bytes:
    """One line of a message file."""
    line = {"__dagster_pipes_version": "0.1", "method": method, "params": params or None}
    return json.dumps(line).encode() + b"\n"


OPENED = message("opened", extras={})
CLOSED = message("closed")


# -- recording ----------------------------------------------------------------------------------------


class Notes:
    """Collects events and log lines."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self.lines: list[str] = []
        self.logger = logging.Logger("test")
        handler = logging.Handler()
        handler.emit = lambda record: self.lines.append(record.getMessage())  # type: ignore[method-assign]
        self.logger.addHandler(handler)

    def record(self, sentence: str, metadata: Mapping[str, Any]) -> None:
        self.events.append((sentence, {name: value.value for name, value in metadata.items()}))

    @property
    def sentences(self) -> list[str]:
        return [sentence for sentence, _ in self.events]


def make_ticker(
    session: FakeSession,
    notes: Notes,
    policy: Policy | None,
    *,
    interval: float = 30,
    policy_limit: float = 60,
) -> Ticker:
    """A ticker on the session's time."""
    driver = Driver(
        key="asset",
        run_id="run",
        policy=policy,
        asset_key="asset",
        partition_key=None,
        log=notes.logger,
        interval_seconds=interval,
        policy_limit_seconds=policy_limit,
    )
    clock = session.pace().clock
    return Ticker(session, driver, Recorder(notes, clock), clock)
