"""What is wrong with a session, in sentences that say what to do. A pure function of its snapshot."""

from __future__ import annotations

from collections.abc import Iterator

from dagster_slurm.allocations.snapshot import AllocationSnapshot, SessionSnapshot
from dagster_slurm.slurm.states import StateClass, state_class

#: A worker that runs for longer than this and has not joined Ray will not do so by itself.
JOIN_LIMIT_SECONDS = 300
#: States of allocations that ended although nobody wanted them to. A reached walltime is the ordinary end of a worker.
FAILED_STATES = ("FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")


def findings(snapshot: SessionSnapshot, pending_limit_seconds: float) -> tuple[str, ...]:
    """Everything that is wrong; empty when the session is healthy.

    What could not be observed is a finding too: not known is not healthy.

    Args:
        snapshot: One observation.
        pending_limit_seconds: A worker may wait for this long.
    """
    if not snapshot.certain:
        return (*snapshot.not_observed, "Nothing is known of the allocations. Look again when the scheduler answers.")
    return tuple(_found(snapshot, pending_limit_seconds))


def _found(snapshot: SessionSnapshot, pending_limit_seconds: float) -> Iterator[str]:
    yield from snapshot.not_observed
    if snapshot.closing:
        yield "The session is ending; a new run gets a new one."
    yield from _of_head(snapshot.head)
    for worker in snapshot.workers():
        yield from _of_worker(worker, snapshot.observed_at, pending_limit_seconds)
    if snapshot.unresolved:
        yield f"{snapshot.unresolved} submissions have no known outcome; that settles within about two minutes."
    if snapshot.unrecorded:
        yield (
            f"No record explains the jobs {', '.join(snapshot.unrecorded)} of this session's name. "
            "Cancel them if you did not submit them by hand."
        )


def _of_head(head: AllocationSnapshot) -> Iterator[str]:
    job = f"The head's job {head.slurm_job_id}"
    if head.slurm_job_id is None:
        yield "The session has no head yet. Look at the run's log: its submission may have been refused."
    elif head.committed is False:
        yield f"{job} ended ({head.state}){_said(head)}. Look at its log. A step with a payload brings another."
    elif state_class(head.state or "") is StateClass.PENDING:
        yield f"{job} waits ({head.reason or 'no reason given'}); nothing can run before it."
    elif head.ready is not True:
        yield f"{job} has not started Ray{_said(head)}. Look at its log if this lasts."


def _of_worker(worker: AllocationSnapshot, now: int, pending_limit_seconds: float) -> Iterator[str]:
    job = f"The worker's job {worker.slurm_job_id}"
    if worker.committed is False:
        if worker.state in FAILED_STATES and worker.drain_deadline is None:
            yield f"{job} ended ({worker.state}){_said(worker)}. Look at its log."
        return
    if worker.drain_deadline is not None:
        overdue = now - worker.drain_deadline
        if overdue > 0:
            yield f"{job} should have been cancelled {overdue} s ago. Reconcile, or switch the sensor on."
        return
    if state_class(worker.state or "") is StateClass.PENDING:
        waited = None if worker.submitted_at is None else now - worker.submitted_at
        if waited is not None and waited > pending_limit_seconds:
            yield (
                f"{job} has waited for {waited // 60} min ({worker.reason or 'no reason given'}). "
                "Let the policy try another shape, or give its intent a pending_timeout."
            )
    elif worker.ready is not True and _has_run(worker) > JOIN_LIMIT_SECONDS:
        yield f"{job} has run for {_has_run(worker) // 60} min without joining Ray{_said(worker)}. Look at its log."


def _has_run(worker: AllocationSnapshot) -> int:
    if worker.time_limit_seconds is None or worker.time_left_seconds is None:
        return 0
    return worker.time_limit_seconds - worker.time_left_seconds


def _said(allocation: AllocationSnapshot) -> str:
    return f" and says: {allocation.message}" if allocation.message else ""
