"""A decision in words."""

from __future__ import annotations

import pytest

from dagster_slurm.allocations.explanation import WorkerPlan, explain
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.observation import Fate, Observation
from dagster_slurm.allocations.request import WorkerRequest
from dagster_slurm.allocations.workers import plan_workers
from dagster_slurm.slurm.replies import Refused
from dagster_slurm_tests.builders import (
    KEY,
    NOW,
    accounting,
    fresh,
    head,
    intent,
    job,
    ledger,
    look,
    record,
    silent,
    submission,
    token,
    trace,
)


def told(observation: Observation, *intents: WorkerIntent, **request: object) -> WorkerPlan:
    assert observation.ledger is not None
    asked = WorkerRequest(intents=intents, **request)  # type: ignore[arg-type]
    return explain(plan_workers(observation.ledger, observation, asked, fresh()), observation, asked)


def lines(plan: WorkerPlan) -> list[str]:
    return str(plan).splitlines()


def test_growing_keeps_what_is_there_and_says_what_is_missing() -> None:
    plan = told(look(ledger(record(2)), job(2)), intent(3))
    assert lines(plan) == [
        f"submit a new allocation of {KEY!r}: {KEY!r} asks for 3, 1 counted",
        f"submit a new allocation of {KEY!r}: {KEY!r} asks for 3, 1 counted",
        f"keep job 2 of {KEY!r}: it counts: RUNNING, 3000 s left",
    ]
    assert [planned.slurm_job_id for planned in plan.of("submit")] == [None, None]
    assert plan.live == ("2",)


def test_shrinking_names_expiry_and_surplus() -> None:
    books = ledger(record(2), record(3), record(4, submitted_at=NOW - 700), record(5))
    seen = look(books, job(2), job(3, time_left_seconds=90), job(4, "PENDING"), job(5))
    plan = told(seen, intent(1, pending_timeout=600), release=frozenset({"5"}))
    assert lines(plan) == [
        f"expire job 4 of {KEY!r}: it has been pending for more than 600 s",
        f"release job 5 of {KEY!r}: it is named in release",
        f"release job 3 of {KEY!r}: {KEY!r} asks for 1, 4 counted, and it goes first: RUNNING, 90 s left",
        f"keep job 2 of {KEY!r}: it counts: RUNNING, 3000 s left",
    ]


def test_what_earlier_calls_left_is_told_too() -> None:
    books = ledger(
        record(2, drain_deadline=NOW - 1),
        record(3, drain_deadline=NOW + 70),
        record(4, drain_deadline=NOW + 70),
        opened=(submission(6), submission(7), submission(8, prepared_at=NOW - 300)),
        revoked_tokens=(token(9),),
    )
    seen = look(
        books,
        job(2),
        job(3, "PENDING"),
        job(4),
        job(6, "PENDING"),
        job(9),
        traces={token(6): trace(), token(7): trace(), token(8): trace(Fate.SENT)},
    )
    assert lines(told(seen, intent(3))) == [
        f"drop a submission without a known job of {KEY!r}: no job of it was seen; one that comes late ends at once",
        "cancel job 9: its submission was dropped before it came",
        f"cancel job 2 of {KEY!r}: its deadline has passed",
        f"cancel job 3 of {KEY!r}: it was released and is still pending",
        f"drain job 4 of {KEY!r}: its drain did not begin; 70 s are left until its deadline",
        f"record job 6 of {KEY!r}: it was found for a submission whose answer was not recorded",
        f"wait for a submission without a known job of {KEY!r}: its outcome is not known yet, so it counts as live",
        f"held back (unresolved): 2 submission(s) of {KEY!r} have no known outcome yet; they count as live.",
    ]


def test_a_refusal_that_nobody_recorded_is_dropped() -> None:
    books = ledger(opened=(submission(7),))
    seen = look(books, traces={token(7): trace(outcome=Refused("sbatch: error: invalid account"))})
    plan = told(seen, intent(0))
    assert [str(planned).partition(":")[0] for planned in plan.actions] == ["drop a submission without a known job"]
    assert plan.held_back.codes == ("refused",)


def test_what_is_not_known_and_what_leads_says_so() -> None:
    books = ledger(record(2), head=head(1, intent=KEY))
    plan = told(look(books, head_job=job(1), accounting=accounting(j2="RUNNING")), intent(2))
    assert lines(plan) == [
        f"keep job 1 of {KEY!r}: it counts: RUNNING, 3000 s left; it leads the session",
        f"keep job 2 of {KEY!r}: it counts: state not known",
    ]


def test_silence_is_held_back_and_nothing_is_nothing() -> None:
    plan = told(silent(ledger(record(2))), intent(0))
    assert plan.held_back.codes == ("scheduler_silent",)
    assert [planned.action for planned in plan.actions] == ["keep"]
    assert str(told(look(ledger()))) == "Nothing to do."


@pytest.mark.parametrize("count", [0, 1, 4])
def test_two_intents_are_counted_apart(count: int) -> None:
    books = ledger(record(2), record(3, intent="other"), opened=(submission(4, intent="other"),))
    seen = look(books, job(2), job(3), traces={token(4): trace()})
    plan = told(seen, intent(2), WorkerIntent("other", count))
    whys = {planned.why for planned in (*plan.of("submit"), *plan.of("release")) if planned.intent == "other"}
    assert all(why.startswith(f"'other' asks for {count}, 2 counted") for why in whys)
    assert len(plan.of("submit")) == 1 + max(0, count - 2)
