"""Which intent counts an allocation? Moving one from an intent to another, or out of every intent; pure."""

from __future__ import annotations

import attrs

from dagster_slurm.allocations.bookkeeping import bring_up_to_date
from dagster_slurm.allocations.ledger import Ledger
from dagster_slurm.allocations.named import why_not
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.plan import HeldBack, Plan


def plan_assignment(ledger: Ledger, observation: Observation, slurm_job_id: str, key: str | None) -> Plan:
    """Move a live worker allocation into an intent, or out of every intent when ``key`` is None.

    An allocation that is being released keeps its intent until it ends. One that moves has no ``submitted_at``
    afterwards, so that no ``pending_timeout`` cancels it.

    Returns:
        A plan without effects; it changes nothing, and says why in ``held_back``, when the move is not made.
    """
    books = bring_up_to_date(ledger, observation)
    reason = why_not(books.ledger, observation, slurm_job_id)
    record = books.ledger.record(slurm_job_id)
    if reason is None and record is not None and record.drain_deadline is not None:
        reason = HeldBack("releasing", f"Job {slurm_job_id} is being released and keeps its intent until it ends.")
    if reason is not None:
        return Plan(ledger=ledger, held_back=(reason,))
    if record is None or record.intent == key:
        return Plan(ledger=ledger)
    moved = books.ledger.with_record(slurm_job_id, intent=key, submitted_at=None)
    return Plan(ledger=moved, effects=books.all_effects(()), adopted=books.adopted)


@attrs.frozen(kw_only=True)
class AssignmentResult:
    """What ``assign_worker_intent`` did.

    Attributes:
        slurm_job_id: The allocation.
        intent: Key of the intent that counts it now; None for none, or when there is no such allocation.
        held_back: Why the move was not made; None when it was, or when it was there already. Its code is closing,
            scheduler_silent, not_found, releasing, not_live or contended.
    """

    slurm_job_id: str
    intent: str | None
    held_back: HeldBack | None = None
