"""How many workers the search gets: the policy of independent tasks with checkpoints and cheap startup.

Any allocation that starts soon is useful while enough tasks remain, even a short one: a task lost with
its worker runs again. So the search starts without workers, grows by one allocation per tick, and
shrinks as soon as the work runs out.
"""

from __future__ import annotations

from collections.abc import Sequence

from dagster_slurm import (
    AllocationSnapshot,
    PolicyContext,
    SessionSnapshot,
    SlurmWorkerAllocationConfig,
    StartEstimate,
    WorkerIntent,
)

TASKS_PER_ALLOCATION = 4
MAX_ALLOCATIONS = 4
STARTS_SOON_SECONDS = 120

# What is left out (partition, account, memory) comes from the resource's worker shape.
CANDIDATES = (
    SlurmWorkerAllocationConfig(cpus_per_task=1, time_limit="00:10:00"),
    SlurmWorkerAllocationConfig(cpus_per_task=1, time_limit="00:05:00"),
)


def batch_policy(context: PolicyContext) -> WorkerIntent | None:
    """The workers wanted now; None (leave them as they are) until the search has said what remains."""
    remaining = (context.work or {}).get("remaining")
    if remaining is None:
        return None
    live = len(active(context.snapshot, context.key))
    wanted = wanted_allocations(remaining)
    # An estimate costs the scheduler a request: ask only when another worker would be of use.
    estimates = context.estimates(CANDIDATES) if wanted > live else []
    return batch_intent(context.key, wanted, live, estimates)


def wanted_allocations(remaining: int) -> int:
    """Allocations that `remaining` tasks keep busy, at most `MAX_ALLOCATIONS`."""
    return min(MAX_ALLOCATIONS, -(-remaining // TASKS_PER_ALLOCATION))  # ceiling division


def batch_intent(key: str, wanted: int, live: int, estimates: Sequence[StartEstimate]) -> WorkerIntent:
    """One more than `live` when a candidate starts soon, and never more than `wanted`.

    Args:
        key: The intent's name.
        wanted: Allocations that the remaining tasks keep busy.
        live: Allocations of the intent that are pending or running and not released.
        estimates: When the candidates would start, in order of preference.
    """
    starts_soon = [estimate for estimate in estimates if estimate.starts_within(STARTS_SOON_SECONDS)]
    return WorkerIntent(
        key=key,
        count=min(wanted, live + (1 if starts_soon else 0)),
        config=starts_soon[0].config if starts_soon else None,
        drain_timeout=60,  # many times one task: a released worker finishes what it runs
        pending_timeout=STARTS_SOON_SECONDS,  # a start that does not happen is cancelled
    )


def active(snapshot: SessionSnapshot, key: str) -> list[AllocationSnapshot]:
    """The allocations of an intent that are pending or running and not released."""
    return [worker for worker in snapshot.workers(key) if worker.committed and worker.drain_deadline is None]
