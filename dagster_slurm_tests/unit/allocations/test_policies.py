"""The two example policies of the documentation, word for word, over built snapshots and estimates."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dagster_slurm.allocations.config import SlurmWorkerAllocationConfig
from dagster_slurm.allocations.estimate import StartEstimate
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.plan import Submit
from dagster_slurm.allocations.snapshot import AllocationSnapshot, SessionSnapshot
from dagster_slurm_tests.builders import NOW, effects, job, ledger, look, reconcile, record, snapshot

MINUTE = 60
HOUR = 3600


def active(snapshot: SessionSnapshot, key: str) -> list[AllocationSnapshot]:
    return [w for w in snapshot.workers(key) if w.committed and w.drain_deadline is None]


def batch_intent(
    remaining_tasks: int,
    snapshot: SessionSnapshot,
    estimates: Sequence[StartEstimate],
    tasks_per_allocation: int = 4,
) -> WorkerIntent:
    live = active(snapshot, "batch")
    wanted = -(-remaining_tasks // tasks_per_allocation)  # ceiling division
    starts_now = [e for e in estimates if e.starts_within(120)]
    return WorkerIntent(
        key="batch",
        count=min(wanted, len(live) + (1 if starts_now else 0)),
        config=starts_now[0].config if starts_now else None,
        pending_timeout=120,  # a start that does not happen is cancelled
    )


def model_intent(
    startup_seconds: int, work_left: int, snapshot: SessionSnapshot, estimates: Sequence[StartEstimate]
) -> WorkerIntent:
    if not work_left:
        return WorkerIntent(key="model", count=0, drain_timeout=900)
    head_left = snapshot.head.time_left_seconds
    worth_it = [
        e
        for e in estimates
        if e.starts_within(300)
        and e.time_limit_seconds is not None
        and e.time_limit_seconds >= 4 * startup_seconds
        # Workers should not outlive the head they join.
        and (head_left is None or e.time_limit_seconds <= head_left - 600)
    ]
    return WorkerIntent(
        key="model",
        count=len(active(snapshot, "model")) + (1 if worth_it else 0),
        config=worth_it[0].config if worth_it else None,
        drain_timeout=900,  # let in-flight requests finish
    )


def estimate(limit: int | None, start: int | None = 0, error: str | None = None) -> StartEstimate:
    """An estimate for a candidate of that walltime."""
    text = None if limit is None else str(limit // MINUTE)
    config = SlurmWorkerAllocationConfig(time_limit=text)
    return StartEstimate(config=config, start_in_seconds=start, time_limit_seconds=limit, error=error)


def session(key: str, workers: int, head_left: int | None = 10 * HOUR) -> SessionSnapshot:
    """A session with so many running allocations of the key, one more released, one more ended."""
    numbers = range(7, 7 + workers)
    books = ledger(
        *(record(n, intent=key) for n in numbers),
        record(90, intent=key, drain_deadline=NOW + 99),
        record(91, intent=key, final_state="TIMEOUT", ended_at=NOW - 9),
    )
    jobs = [job(n) for n in (*numbers, 90)]
    return snapshot(look(books, *jobs, head_job=job(1, time_left_seconds=head_left)))


def asked(policy: str, window: int, workers: int = 1) -> WorkerIntent:
    """What a policy asks for when a window of that length starts now."""
    seen, estimates = session(policy, workers), [estimate(window)]
    return batch_intent(100, seen, estimates) if policy == "batch" else model_intent(600, 5, seen, estimates)


@pytest.mark.parametrize(
    ("policy", "window", "added"),
    [("batch", 20 * MINUTE, 1), ("model", 20 * MINUTE, 0), ("batch", 2 * HOUR, 1), ("model", 2 * HOUR, 1)],
)
def test_a_short_window_is_taken_by_batch_work_and_declined_by_the_model(policy: str, window: int, added: int) -> None:
    intent = asked(policy, window)
    assert intent.count == 1 + added
    config = intent.config
    assert (config is not None) is bool(added)
    if config is not None:
        assert config.time_limit == SlurmWorkerAllocationConfig(time_limit=str(window // MINUTE)).time_limit


@pytest.mark.parametrize(("policy", "window"), [("batch", 20 * MINUTE), ("model", 2 * HOUR)])
def test_what_they_ask_for_is_one_submission_of_that_shape(policy: str, window: int) -> None:
    books = ledger(record(7, intent=policy))
    plan = reconcile(look(books, job(7)), asked(policy, window), max_submissions=1)
    (submit,) = effects(plan, Submit)
    assert plan.ledger.shapes[submit.shape].time_limit_seconds == window


def test_batch_grows_by_one_and_shrinks_as_soon_as_the_work_runs_out() -> None:
    seen = session("batch", 3)
    assert batch_intent(100, seen, [estimate(HOUR)]).count == 4
    assert batch_intent(12, seen, [estimate(HOUR)]).count == 3
    assert batch_intent(5, seen, [estimate(HOUR)]).count == 2
    assert batch_intent(0, seen, [estimate(HOUR)]).count == 0
    assert batch_intent(100, seen, [estimate(HOUR, 121), estimate(HOUR, None, "refused")]).count == 3


def test_the_model_leaves_when_there_is_no_work_and_never_outlives_the_head() -> None:
    assert model_intent(600, 0, session("model", 2), [estimate(2 * HOUR)]).count == 0
    for head_left, count in ((None, 1), (2 * HOUR + 600, 1), (2 * HOUR + 599, 0)):
        assert model_intent(600, 5, session("model", 0, head_left), [estimate(2 * HOUR)]).count == count


def test_a_declined_window_changes_nothing() -> None:
    books = ledger(record(7, intent="model"))
    assert not reconcile(look(books, job(7)), asked("model", 20 * MINUTE), max_submissions=1).changes(books)


def test_the_model_declines_a_window_without_a_known_end() -> None:
    assert model_intent(600, 5, session("model", 0), [estimate(None)]).count == 0
