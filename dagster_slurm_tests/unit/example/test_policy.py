"""The batch policy: grows by one while tasks remain and something starts soon, shrinks when the work runs out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pytest

from dagster_slurm import AllocationSnapshot, PolicyContext, SessionSnapshot, SlurmWorkerAllocationConfig, StartEstimate
from example_project.policy import CANDIDATES, MAX_ALLOCATIONS, batch_policy

KEY = "digits_search"


def worker(number: int, **facts: Any) -> AllocationSnapshot:
    return AllocationSnapshot(
        **{"slurm_job_id": str(number), "role": "worker", "state": "RUNNING", "committed": True, "intent": KEY, **facts}
    )


@attrs.define
class Scheduler:
    """Answers when each candidate starts, in seconds, and counts how often it was asked."""

    starts: Sequence[int | None] = (0, 0)
    asked: int = 0

    def estimate(self, candidates: Sequence[SlurmWorkerAllocationConfig]) -> list[StartEstimate]:
        self.asked += 1
        return [
            StartEstimate(
                config=candidate,
                start_in_seconds=start,
                time_limit_seconds=600,
                error=None if start is not None else "refused",
                answered=True,
            )
            for candidate, start in zip(candidates, self.starts, strict=True)
        ]


def context(
    scheduler: Scheduler, work: Mapping[str, Any] | None, workers: Sequence[AllocationSnapshot] = ()
) -> PolicyContext:
    head = AllocationSnapshot(slurm_job_id="1", role="head", state="RUNNING", committed=True)
    snapshot = SessionSnapshot(
        session_id="run",
        observed_at=1000,
        certain=True,
        head=head,
        successor=None,
        allocations=(head, *workers),
    )
    return PolicyContext(snapshot=snapshot, key=KEY, work=work, estimate=scheduler.estimate)


def test_nothing_changes_before_the_search_has_said_what_remains() -> None:
    scheduler = Scheduler()
    assert batch_policy(context(scheduler, None)) is None
    assert scheduler.asked == 0


def test_it_grows_by_one_allocation_per_tick_up_to_its_cap() -> None:
    scheduler = Scheduler()
    counts = []
    for live in range(MAX_ALLOCATIONS + 1):
        intent = batch_policy(context(scheduler, {"remaining": 48}, [worker(n) for n in range(2, 2 + live)]))
        assert intent is not None
        counts.append(intent.count)
    assert counts == [1, 2, 3, 4, 4]
    # At the cap another worker is of no use, so nothing is asked.
    assert scheduler.asked == MAX_ALLOCATIONS


@pytest.mark.parametrize(
    ("starts", "count", "config"),
    [
        ((0, 0), 1, CANDIDATES[0]),
        ((120, None), 1, CANDIDATES[0]),
        ((121, 30), 1, CANDIDATES[1]),
        ((None, 0), 1, CANDIDATES[1]),
        ((3600, 3600), 0, None),
        ((None, None), 0, None),
    ],
)
def test_it_takes_the_first_candidate_that_starts_soon(
    starts: Sequence[int | None], count: int, config: SlurmWorkerAllocationConfig | None
) -> None:
    intent = batch_policy(context(Scheduler(starts), {"remaining": 48}))
    assert intent is not None
    assert (intent.key, intent.count, intent.config) == (KEY, count, config)
    assert intent.pending_timeout == 120


@pytest.mark.parametrize(("remaining", "count"), [(48, 4), (13, 4), (12, 3), (5, 2), (4, 1), (1, 1), (0, 0)])
def test_it_shrinks_as_the_work_runs_out(remaining: int, count: int) -> None:
    scheduler = Scheduler()
    intent = batch_policy(context(scheduler, {"remaining": remaining}, [worker(n) for n in range(2, 6)]))
    assert intent is not None
    assert intent.count == count
    assert scheduler.asked == 0


def test_pending_ones_count_and_released_or_foreign_ones_do_not() -> None:
    workers = [
        worker(2, state="PENDING"),
        worker(3, drain_deadline=1180),
        worker(4, intent=None),
        worker(5, state="COMPLETED", committed=False),
        worker(6, state=None, committed=None),
    ]
    intent = batch_policy(context(Scheduler(), {"remaining": 48}, workers))
    assert intent is not None
    assert intent.count == 2
