"""May a call act on the worker allocation that it names? Pure."""

from __future__ import annotations

from dagster_slurm.allocations.ledger import Ledger
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.plan import CLOSING, HeldBack, scheduler_silent


def why_not(ledger: Ledger, observation: Observation, slurm_job_id: str) -> HeldBack | None:
    """Why nothing is done with that allocation, or None when it is a live worker allocation of the session.

    Args:
        ledger: Brought up to date with the observation.
        observation: A look that was just taken.
        slurm_job_id: The allocation.
    """
    if observation.closing:
        return HeldBack(*CLOSING)
    if not observation.listing.answered:
        return scheduler_silent(observation)
    record = ledger.record(slurm_job_id)
    if record is None or record not in (*ledger.workers, ledger.head):
        return HeldBack("not_found", f"Job {slurm_job_id} is no worker allocation of this session.")
    if record.final_state is not None:
        return HeldBack("not_live", f"Job {slurm_job_id} has ended: {record.final_state}.")
    return None
