"""What a policy is asked with, what it may answer, and how it is asked: in a thread of its own, against a deadline.

Nothing here needs Dagster: a policy is tested with a hand-made ``PolicyContext``.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from dagster_slurm.allocations.config import SlurmWorkerAllocationConfig
from dagster_slurm.allocations.estimate import StartEstimate
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.snapshot import AllocationSnapshot, SessionSnapshot
from dagster_slurm.errors import ConfigurationError, DagsterSlurmError

Estimate: TypeAlias = Callable[[Sequence[SlurmWorkerAllocationConfig]], Sequence[StartEstimate]]


def _no_estimates(candidates: Sequence[SlurmWorkerAllocationConfig]) -> Sequence[StartEstimate]:
    return tuple(
        StartEstimate(config=c, start_in_seconds=None, time_limit_seconds=None, error="no scheduler", answered=False)
        for c in candidates
    )


@attrs.frozen(kw_only=True)
class PolicyContext:
    """What a policy decides on.

    Attributes:
        snapshot: One observation of the session, just taken.
        key: Default key of its intents: the asset's key, or the op's name.
        work: What the payload last said with ``report_work``; None when it has said nothing yet.
        run_id: The Dagster run; empty in a hand-made context.
        asset_key: The asset as text (``"group/name"``); None in an op.
        partition_key: Partition that is materialized; None without one.
        log: Writes to the run's log.
        estimate: How estimates are asked for; policies call ``estimates``.
    """

    snapshot: SessionSnapshot
    key: str
    work: Mapping[str, Any] | None = None
    run_id: str = ""
    asset_key: str | None = None
    partition_key: str | None = None
    log: logging.Logger = attrs.field(factory=lambda: logging.getLogger("dagster_slurm.policy"), repr=False, eq=False)
    estimate: Estimate = attrs.field(default=_no_estimates, repr=False, eq=False)

    @property
    def ray_demand(self) -> tuple[Mapping[str, Any], ...] | None:
        """Resource shapes that Ray has pending work for; None when not known."""
        return self.snapshot.ray_demand

    @property
    def head_time_left_seconds(self) -> int | None:
        """Walltime that the head has left; None when it does not run or has no limit."""
        return self.snapshot.head.time_left_seconds

    def estimates(self, candidates: Sequence[SlurmWorkerAllocationConfig]) -> list[StartEstimate]:
        """When could each candidate start? Asks the scheduler, so call it only when a worker would be of use.

        Raises:
            EstimateBudgetExceeded: too many candidates at once.
            ConfigurationError: a candidate that cannot be rendered.
            RemoteError: the login node could not be asked.
        """
        return list(self.estimate(candidates)) if candidates else []


Policy: TypeAlias = Callable[[PolicyContext], "WorkerIntent | Sequence[WorkerIntent] | None"]


def release_all(context: PolicyContext) -> list[WorkerIntent]:
    """A policy that wants no workers: every intent of the session gets the count 0."""
    keys = {a.intent for a in context.snapshot.allocations if a.intent is not None and a.committed is not False}
    return [WorkerIntent(key=key, count=0) for key in sorted(keys)]


def intents_of(answer: object) -> tuple[WorkerIntent, ...] | None:
    """A policy's answer as intents; None leaves everything as it is.

    Raises:
        ConfigurationError: it is neither an intent, nor a list of intents with different keys, nor None.
    """
    if answer is None:
        return None
    if isinstance(answer, WorkerIntent):
        return (answer,)
    if not isinstance(answer, list | tuple) or not all(isinstance(item, WorkerIntent) for item in answer):
        raise ConfigurationError(
            f"The policy answered {_shown(answer)}.",
            field="policy",
            remedy="return a WorkerIntent, a list of them, or None to leave the workers as they are.",
        )
    keys = [intent.key for intent in answer]
    if len(set(keys)) < len(keys):
        raise ConfigurationError(
            f"The policy answered two intents of the same key: {', '.join(sorted(keys))}.",
            field="policy",
            remedy="give each intent a key of its own.",
        )
    return tuple(answer)


def _shown(answer: object) -> str:
    text = repr(answer)
    return f"{type(answer).__name__} {text[:200]}{'...' if len(text) > 200 else ''}"


def active(snapshot: SessionSnapshot, key: str) -> tuple[AllocationSnapshot, ...]:
    """Allocations of an intent that are pending or running and not released."""
    return tuple(w for w in snapshot.workers(key) if w.committed and w.drain_deadline is None)


def growth(intents: Sequence[WorkerIntent], snapshot: SessionSnapshot) -> int:
    """How many submissions the intents ask for, relative to the snapshot they were decided on.

    It is the budget of the call: an allocation that ended after the snapshot is not replaced unasked.
    """
    return sum(max(0, intent.count - len(active(snapshot, intent.key))) for intent in intents)


@attrs.frozen(kw_only=True)
class PolicyProblem:
    """Why a policy's answer could not be used; ``detail`` is the traceback, or empty."""

    sentence: str
    detail: str = ""


class PolicyCall:
    """One question to a policy, asked in a thread: the loop that asks goes on whatever the policy does."""

    def __init__(self, policy: Policy, context: PolicyContext) -> None:
        self._policy = policy
        self._abandoned = threading.Event()
        self._finished = threading.Event()
        self._answer: tuple[WorkerIntent, ...] | None = None
        self._problem: PolicyProblem | None = None
        self._context = attrs.evolve(context, estimate=self._guarded(context.estimate))
        # A daemon: a policy that never returns must not keep the step's process alive.
        threading.Thread(target=self._ask, name="worker-policy", daemon=True).start()

    @property
    def snapshot(self) -> SessionSnapshot:
        """The snapshot that it decides on."""
        return self._context.snapshot

    @property
    def work(self) -> Mapping[str, Any] | None:
        """The work that it decides on."""
        return self._context.work

    def finished(self, wait_seconds: float = 0.0) -> bool:
        """Whether it has answered, after waiting for that long at most."""
        return self._finished.wait(wait_seconds)

    def answer(self) -> tuple[WorkerIntent, ...] | PolicyProblem | None:
        """What it answered; only once it has finished."""
        return self._answer if self._problem is None else self._problem

    def abandon(self) -> None:
        """Ignore whatever it answers, and let it ask the scheduler nothing more."""
        self._abandoned.set()

    def _guarded(self, estimate: Estimate) -> Estimate:
        def guarded(candidates: Sequence[SlurmWorkerAllocationConfig]) -> Sequence[StartEstimate]:
            if self._abandoned.is_set():
                raise DagsterSlurmError("The time for this policy is over; the scheduler is not asked any more.")
            return estimate(candidates)

        return guarded

    def _ask(self) -> None:
        try:
            self._answer = intents_of(self._policy(self._context))
        # The boundary to the user's code: whatever it raises is recorded and does not end the work.
        except BaseException as error:  # noqa: BLE001
            self._problem = PolicyProblem(
                sentence=f"The policy failed: {type(error).__name__}: {error}", detail=traceback.format_exc()
            )
        finally:
            self._finished.set()
