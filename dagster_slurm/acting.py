"""From a policy's answer to what was done about it, as one tick. The step's loop and the sensor share it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs

from dagster_slurm.allocations.config import SlurmWorkerAllocationConfig
from dagster_slurm.allocations.estimate import StartEstimate
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.result import ReconcileResult
from dagster_slurm.allocations.snapshot import SessionSnapshot
from dagster_slurm.allocations.succession import HeadResult
from dagster_slurm.errors import ConfigurationError, DagsterSlurmError
from dagster_slurm.policy import PolicyProblem, growth
from dagster_slurm.recording import Tick


class Reconciler(Protocol):
    """The part of a session that acts."""

    def reconcile_workers(
        self,
        intent: WorkerIntent | Sequence[WorkerIntent],
        *,
        observed: SessionSnapshot | None = None,
        max_submissions: int | None = None,
    ) -> ReconcileResult: ...


class WatchedSession(Reconciler, Protocol):
    """The part of a session that the sensor, a check and a step's loop use."""

    def inspect(self) -> SessionSnapshot: ...

    def ensure_head(self) -> HeadResult: ...

    def estimate_worker_starts(self, candidates: Sequence[SlurmWorkerAllocationConfig]) -> Sequence[StartEstimate]: ...


def reconcile_intents(
    session: Reconciler,
    snapshot: SessionSnapshot,
    intents: tuple[WorkerIntent, ...],
    work: Mapping[str, Any] | None = None,
) -> Tick:
    """Make intents true, as far as one call can. What fails is in the tick; nothing is raised for it."""
    tick = Tick(decision="", snapshot=snapshot, intents=intents, work=work)
    try:
        result = session.reconcile_workers(intents, observed=snapshot, max_submissions=growth(intents, snapshot))
    except ConfigurationError as error:
        problem = PolicyProblem(sentence=f"What the policy asks for cannot be submitted: {error}")
        return attrs.evolve(tick, decision=problem.sentence, problem=problem)
    except DagsterSlurmError as error:
        return attrs.evolve(tick, decision=f"{_wanted(intents)} It could not be reconciled: {error}")
    return attrs.evolve(tick, decision=f"{_wanted(intents)} {done(result)}", result=result)


def follow_up(session: Reconciler, tick: Tick) -> Tick:
    """Without an intent only what earlier calls began goes on: deadlines, and submissions without a known id."""
    snapshot = tick.snapshot
    if snapshot is None or not (
        snapshot.unresolved or any(a.drain_deadline is not None and a.committed for a in snapshot.allocations)
    ):
        return tick
    try:
        result = session.reconcile_workers((), observed=snapshot, max_submissions=0)
    except DagsterSlurmError as error:
        return attrs.evolve(tick, decision=f"{tick.decision} Earlier releases could not be followed up: {error}")
    return attrs.evolve(tick, result=result)


def _wanted(intents: Sequence[WorkerIntent]) -> str:
    wishes = ", ".join(
        f"{intent.count} worker allocation{'' if intent.count == 1 else 's'} of {intent.key!r}" for intent in intents
    )
    return f"The policy wants {wishes}."


def done(result: ReconcileResult) -> str:
    """What a call did, in a sentence."""
    parts = [
        f"{word} job{'' if len(jobs) == 1 else 's'} {listed(jobs)}"
        for word, jobs in (
            ("submitted", result.submitted),
            ("found again", result.recovered),
            ("released", result.released),
            ("expired", result.expired),
        )
        if jobs
    ]
    text = "; ".join(parts)
    done = f"{text[0].upper()}{text[1:]}." if parts else "Nothing to do."
    return f"{done} Held back: {result.held_back}" if result.held_back else done


def listed(jobs: Sequence[str]) -> str:
    """Job ids, the first ten of them."""
    shown = ", ".join(jobs[:10])
    return f"{shown} and {len(jobs) - 10} more" if len(jobs) > 10 else shown
