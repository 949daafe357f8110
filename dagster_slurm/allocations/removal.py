"""Release one worker allocation by its job id, whichever intent counts it; pure."""

from __future__ import annotations

import attrs

from dagster_slurm.allocations.bookkeeping import bring_up_to_date
from dagster_slurm.allocations.decision import Decision
from dagster_slurm.allocations.ledger import Ledger
from dagster_slurm.allocations.named import why_not
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.plan import HeldBack, Plan
from dagster_slurm.allocations.releases import may_go, release
from dagster_slurm.allocations.request import WorkerRequest


def plan_removal(ledger: Ledger, observation: Observation, slurm_job_id: str, drain_timeout: float | None) -> Plan:
    """Give a live worker allocation its deadline and drain it, or cancel it while it is pending.

    One that is released already keeps its deadline. The head, the successor and a claimed leader are never removed.

    Returns:
        The plan; it changes nothing, and says why in ``held_back``, when the allocation is not released.
    """
    books = bring_up_to_date(ledger, observation)
    reason = why_not(books.ledger, observation, slurm_job_id)
    decision = Decision(books=books, observation=observation, request=WorkerRequest(intents=()))
    record = books.ledger.record(slurm_job_id)
    if reason is None and record is not None and record.drain_deadline is None:
        if books.ledger.leads(slurm_job_id):
            reason = HeldBack("leads", f"Job {slurm_job_id} leads the session: promote another head before it goes.")
        elif not may_go(decision, record):
            reason = HeldBack("unknown", f"Whether job {slurm_job_id} is live is not known now: ask again.")
        else:
            decision = release(decision, [record], drain_timeout)
    if reason is not None:
        return Plan(ledger=ledger, held_back=(reason,))
    return Plan(
        ledger=decision.ledger,
        effects=books.all_effects(decision.effects),
        adopted=books.adopted,
        released=() if decision.ledger == books.ledger else (slurm_job_id,),
    )


@attrs.frozen(kw_only=True)
class RemovalResult:
    """What ``remove_worker_allocation`` did.

    Attributes:
        slurm_job_id: The allocation.
        drain_deadline: Login node's clock at which it is cancelled at the latest; None when it was not released.
        held_back: Why it was not released; None when it is, now or since an earlier call. Its code is closing,
            scheduler_silent, not_found, not_live, leads, unknown or contended.
    """

    slurm_job_id: str
    drain_deadline: int | None
    held_back: HeldBack | None = None
