"""Releasing one allocation by its job id."""

from __future__ import annotations

import attrs
import pytest

from dagster_slurm.allocations.ledger import Ledger
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.plan import Cancel, Drain, Plan
from dagster_slurm.allocations.removal import plan_removal
from dagster_slurm_tests.builders import (
    KEY,
    NOW,
    accounting,
    codes,
    effects,
    head,
    intent,
    job,
    ledger,
    look,
    reconcile,
    record,
    silent,
    submission,
)


def remove(observation: Observation, slurm_job_id: str = "2", drain_timeout: float | None = 30) -> Plan:
    assert observation.ledger is not None
    return plan_removal(observation.ledger, observation, slurm_job_id, drain_timeout)


def deadline(plan: Plan, slurm_job_id: str = "2") -> int | None:
    found = plan.ledger.record(slurm_job_id)
    assert found is not None
    return found.drain_deadline


@pytest.mark.parametrize("key", [None, KEY])
def test_a_running_one_is_drained_until_its_deadline_whatever_its_intent(key: str | None) -> None:
    plan = remove(look(ledger(record(2, intent=key)), job(2)))
    assert deadline(plan) == NOW + 30 + 60
    assert [drain.deadline for drain in effects(plan, Drain)] == [NOW + 90]
    assert plan.released == ("2",)


def test_a_pending_one_is_cancelled_only_while_it_is_pending() -> None:
    plan = remove(look(ledger(record(2)), job(2, "PENDING")), drain_timeout=None)
    assert effects(plan, Cancel) == [Cancel(("2",), only_pending=True)]
    assert deadline(plan) == NOW + 120 + 60


def test_one_of_an_intent_is_replaced_by_the_next_call() -> None:
    plan = remove(look(ledger(record(2)), job(2)))
    again = reconcile(look(plan.ledger, job(2)), intent(1))
    assert len(again.effects) == 2, "the drain once more, and one submission"


def test_a_second_call_moves_no_deadline() -> None:
    books = ledger(record(2, drain_deadline=NOW + 500))
    plan = remove(attrs.evolve(look(books, job(2)), drains=frozenset({books.workers[0].token})))
    assert not plan.changes(books)
    assert (deadline(plan), plan.held_back, plan.released) == (NOW + 500, (), ())


@pytest.mark.parametrize(
    ("observation", "slurm_job_id", "code"),
    [
        (silent(ledger(record(2))), "2", "scheduler_silent"),
        (look(ledger(record(2)), job(2), closing=True), "2", "closing"),
        (look(ledger(record(2)), job(2)), "3", "not_found"),
        (look(ledger(record(2))), "2", "not_live"),
        (look(ledger(record(2)), accounting=accounting(j2="RUNNING")), "2", "unknown"),
        (look(ledger(head=head(1, intent=KEY)), head_job=job(1)), "1", "leads"),
        (look(ledger(record(2), election={"slurm_job_id": "2"}), job(2)), "2", "leads"),
    ],
)
def test_what_cannot_go_stays_and_says_why(observation: Observation, slurm_job_id: str, code: str) -> None:
    plan = remove(observation, slurm_job_id)
    assert codes(plan) == (code,)
    assert not plan.changes(observation.ledger)


def test_earlier_submissions_are_recorded_on_the_way() -> None:
    books: Ledger = ledger(record(2), opened=(submission(3),))
    plan = remove(look(books, job(2), job(3)))
    assert (plan.adopted, plan.released) == (("3",), ("2",))
