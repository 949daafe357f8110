"""Which allocations of an intent go, and in which order: named, expired, surplus."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from dagster_slurm.allocations.bookkeeping import drain_of
from dagster_slurm.allocations.conditions import Condition
from dagster_slurm.allocations.config import DEFAULT_DRAIN_WINDOW_SECONDS
from dagster_slurm.allocations.decision import Decision
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.ledger import AllocationRecord
from dagster_slurm.allocations.plan import Cancel, Effect

#: Seconds between the end of a drain window and the cancel, so that an allocation can end by itself.
DRAIN_GRACE_SECONDS = 60


def release_named(decision: Decision, intent: WorkerIntent) -> Decision:
    """Release what the call names: live allocations of the intent, leaders never."""
    named = [
        record
        for record in decision.counted(intent.key)
        if record.slurm_job_id in decision.request.release and may_go(decision, record)
    ]
    return _released(decision, named, intent.drain_timeout)


def expire(decision: Decision, intent: WorkerIntent) -> Decision:
    """Release what stayed pending for too long."""
    if intent.pending_timeout is None:
        return decision
    late = [r for r in decision.counted(intent.key) if _expired(decision, r, intent.pending_timeout)]
    decision = release(decision, late, intent.drain_timeout)
    return attrs.evolve(decision, expired=(*decision.expired, *(r.slurm_job_id for r in late)))


def scale_in(decision: Decision, intent: WorkerIntent) -> Decision:
    """Release the surplus. Nothing is known to be surplus while the scheduler does not answer.

    An allocation that the policy's snapshot does not contain is never released by a count.
    """
    surplus = len(decision.counted(intent.key)) - intent.count
    if surplus <= 0:
        return decision
    seen = decision.request.seen
    candidates = [
        record
        for record in decision.counted(intent.key)
        if may_go(decision, record) and (seen is None or record.slurm_job_id in seen.slurm_job_ids)
    ]
    candidates.sort(key=lambda record: scale_in_rank(record, decision.condition(record)))
    return _released(decision, candidates[:surplus], intent.drain_timeout)


def scale_in_rank(record: AllocationRecord, condition: Condition) -> tuple[float, float, int]:
    """Sort key of scale-in: pending first (latest submitted first), then least time left, unknown last, newest id."""
    number = int(record.slurm_job_id) if record.slurm_job_id.isdecimal() else 0
    job = condition.job
    if condition.pending:
        submitted = record.submitted_at or (None if job is None else job.submitted_at) or 0
        return (0.0, -float(submitted), -number)
    left = None if job is None else job.time_left_seconds
    return (1.0, math.inf if left is None else float(left), -number)


def may_go(decision: Decision, record: AllocationRecord) -> bool:
    """Known to be live, and no leader. In a listing that was not answered nothing is known to be live."""
    return decision.condition(record).live is True and not decision.ledger.leads(record.slurm_job_id)


def _expired(decision: Decision, record: AllocationRecord, pending_timeout: float) -> bool:
    condition = decision.condition(record)
    if not condition.pending or record.submitted_at is None or not may_go(decision, record):
        return False
    # A requeue starts anew: the scheduler's submit time moves then.
    scheduler_time = None if condition.job is None else condition.job.submitted_at
    since = max(record.submitted_at, scheduler_time or 0)
    return decision.now - since >= pending_timeout


def _released(decision: Decision, records: Sequence[AllocationRecord], drain_timeout: float | None) -> Decision:
    decision = release(decision, records, drain_timeout)
    return attrs.evolve(decision, released=(*decision.released, *(r.slurm_job_id for r in records)))


def release(decision: Decision, records: Sequence[AllocationRecord], drain_timeout: float | None) -> Decision:
    """Give each its deadline in the ledger; the cancel or drain is an effect after that.

    Args:
        decision: The decision so far.
        records: Live allocations without a deadline.
        drain_timeout: Seconds to finish running work in; None means the drain window of each one's shape.
    """
    ledger, effects = decision.ledger, list[Effect]()
    pending = tuple(r.slurm_job_id for r in records if decision.condition(r).pending)
    if pending:
        effects.append(Cancel(pending, only_pending=True))
    for record in records:
        deadline = _drain_deadline(decision, record, drain_timeout)
        ledger = ledger.with_record(record.slurm_job_id, drain_deadline=deadline)
        if record.slurm_job_id not in pending:
            effects.append(drain_of(record, deadline, decision.now))
    return attrs.evolve(decision.with_ledger(ledger), effects=(*decision.effects, *effects))


def _drain_deadline(decision: Decision, record: AllocationRecord, drain_timeout: float | None) -> int:
    shape = decision.ledger.shapes.get(record.shape)
    window = drain_timeout
    if window is None:
        window = DEFAULT_DRAIN_WINDOW_SECONDS if shape is None else shape.drain_window_seconds
    return decision.now + math.ceil(window) + DRAIN_GRACE_SECONDS
