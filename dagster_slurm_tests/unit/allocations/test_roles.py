"""Moving an allocation between intents."""

from __future__ import annotations

import pytest

from dagster_slurm.allocations.roles import plan_assignment
from dagster_slurm_tests.builders import KEY, NOW, codes, head, intent, job, ledger, look, reconcile, record, silent


def test_an_added_allocation_joins_an_intent_and_is_counted_from_then_on() -> None:
    books = ledger(record(2, intent=None, submitted_at=None))
    seen = look(books, job(2))
    moved = plan_assignment(books, seen, "2", KEY).ledger
    assert moved.record("2").intent == KEY  # type: ignore[union-attr]
    assert reconcile(look(moved, job(2)), intent(1)).effects == ()


def test_one_that_moves_is_never_cancelled_for_staying_pending() -> None:
    books = ledger(record(2, intent="other", submitted_at=1))
    moved = plan_assignment(books, look(books, job(2, "PENDING")), "2", KEY).ledger
    assert moved.record("2").submitted_at is None  # type: ignore[union-attr]
    assert reconcile(look(moved, job(2, "PENDING")), intent(1, pending_timeout=1)).expired == ()


def test_one_that_leaves_every_intent_is_kept_by_every_count() -> None:
    books = ledger(record(2, intent=KEY))
    moved = plan_assignment(books, look(books, job(2)), "2", None).ledger
    assert reconcile(look(moved, job(2)), intent(0)).released == ()


def test_the_intent_it_has_already_is_no_change() -> None:
    books = ledger(record(2, intent=KEY, submitted_at=77))
    plan = plan_assignment(books, look(books, job(2)), "2", KEY)
    assert not plan.changes(books)
    assert plan.held_back == ()


def test_an_elected_head_can_leave_its_intent() -> None:
    books = ledger(head=head(1, intent=KEY))
    plan = plan_assignment(books, look(books, head_job=job(1)), "1", None)
    assert plan.ledger.head is not None
    assert plan.ledger.head.intent is None


@pytest.mark.parametrize(
    ("changes", "listed", "code"),
    [
        ({"drain_deadline": 10**10}, [job(2)], "releasing"),
        ({}, [], "not_live"),
        ({"final_state": "TIMEOUT", "ended_at": NOW - 5}, [], "not_live"),
    ],
)
def test_one_that_goes_or_is_gone_keeps_its_intent(changes: dict[str, object], listed: list[object], code: str) -> None:
    books = ledger(record(2, intent=KEY, **changes))
    plan = plan_assignment(books, look(books, *listed), "2", "other")  # type: ignore[arg-type]
    assert codes(plan) == (code,)
    assert not plan.changes(books)


def test_nothing_moves_in_silence_at_the_end_or_without_an_allocation() -> None:
    books = ledger(record(2, intent=KEY))
    assert codes(plan_assignment(books, silent(books), "2", None)) == ("scheduler_silent",)
    assert codes(plan_assignment(books, look(books, job(2), closing=True), "2", None)) == ("closing",)
    assert codes(plan_assignment(books, look(books, job(2)), "3", KEY)) == ("not_found",)
    assert codes(plan_assignment(books, silent(books, error=None), "2", None)) == ("scheduler_silent",)
