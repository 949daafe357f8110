"""Who goes first, with which deadline, and who never goes."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from dagster_slurm.allocations.conditions import Condition
from dagster_slurm.allocations.ledger import AllocationRecord, Ledger
from dagster_slurm.allocations.plan import Cancel, Drain, Submit
from dagster_slurm.allocations.releases import scale_in_rank
from dagster_slurm.allocations.request import Seen
from dagster_slurm_tests.builders import (
    NOW,
    WORKER_SHAPE,
    accounting,
    effects,
    head,
    intent,
    job,
    later,
    ledger,
    look,
    reconcile,
    record,
    silent,
    snapshot,
    token,
)


def deadline(plan_ledger: Ledger, n: int) -> int | None:
    found = plan_ledger.record(str(n))
    assert found is not None
    return found.drain_deadline


# -- order -----------------------------------------------------------------------------------------


def test_pending_goes_first_the_latest_submitted_before_all() -> None:
    books = ledger(
        record(7, submitted_at=NOW - 30),
        record(8, submitted_at=NOW - 10),
        record(9, submitted_at=NOW - 20),
        record(10),
    )
    observation = look(books, job(7, "PENDING"), job(8, "PENDING"), job(9, "PENDING"), job(10, time_left_seconds=1))
    assert reconcile(observation, intent(0)).released == ("8", "9", "7", "10")
    assert reconcile(observation, intent(2)).released == ("8", "9")


def test_then_the_running_ones_with_the_least_time_left() -> None:
    books = ledger(record(7), record(8), record(9))
    observation = look(
        books, job(7, time_left_seconds=50), job(8, time_left_seconds=None), job(9, time_left_seconds=20)
    )
    assert reconcile(observation, intent(0)).released == ("9", "7", "8")


def test_E_1_a_worker_without_a_time_limit_is_the_last_candidate() -> None:
    books = ledger(record(7), record(8))
    observation = look(books, job(7, time_left_seconds=None, time_limit_seconds=None), job(8, time_left_seconds=90_000))
    assert snapshot(observation).workers()[0].time_left_seconds is None
    assert reconcile(observation, intent(1)).released == ("8",)


def test_ties_go_to_the_highest_job_id_as_a_number() -> None:
    books = ledger(record(9), record(10))
    assert reconcile(look(books, job(9), job(10)), intent(1)).released == ("10",)
    waiting = look(books, job(9, "PENDING"), job(10, "PENDING"))
    assert reconcile(waiting, intent(1)).released == ("10",)


def test_a_pending_allocation_without_our_date_goes_by_the_schedulers() -> None:
    books = ledger(record(7, submitted_at=None), record(8, submitted_at=NOW - 50))
    observation = look(books, job(7, "PENDING", submitted_at=NOW - 10), job(8, "PENDING"))
    assert reconcile(observation, intent(1)).released == ("7",)
    undated = look(books, job(7, "PENDING", submitted_at=None), job(8, "PENDING"))
    assert reconcile(undated, intent(1)).released == ("8",)


def test_an_id_that_is_no_number_sorts_without_a_crash() -> None:
    odd = attrs.evolve(record(7), slurm_job_id="33_1")
    assert scale_in_rank(odd, Condition(state="RUNNING")) == (1.0, float("inf"), 0)


# -- who never goes --------------------------------------------------------------------------------


def test_what_the_snapshot_did_not_contain_is_never_released_by_a_count() -> None:
    books = ledger(record(7), record(8, submitted_at=NOW - 1))
    observation = look(books, job(7), job(8, "PENDING"))
    before = Seen(observed_at=NOW - 5, head_job_id="1", slurm_job_ids=frozenset({"1", "7"}))
    assert reconcile(observation, intent(1), seen=before).released == ("7",)
    assert reconcile(observation, intent(0), seen=before).released == ("7",)
    assert reconcile(observation, intent(2), seen=before, release=frozenset({"8"})).released == ("8",), "named ones are"


@pytest.mark.parametrize(
    "leading",
    [
        {"head": record(7), "workers": (record(8),)},
        {"successor": record(7), "workers": (record(8),)},
        {"election": {"slurm_job_id": "7"}, "workers": (record(7), record(8))},
    ],
)
def test_leaders_and_claimed_leaders_are_never_released_or_expired(leading: dict[str, Any]) -> None:
    books = attrs.evolve(ledger(), **leading)
    waiting = look(books, job(7, "PENDING"), job(8), head_job=job(1))
    plan = reconcile(waiting, intent(0, pending_timeout=1), release=frozenset({"7", "8"}))
    assert plan.released == ("8",)
    assert plan.expired == ()
    assert plan.live == ("7",)


def test_a_damaged_claim_claims_nobody() -> None:
    assert ledger(election={"slurm_job_id": 7}).claimed_leader() is None
    assert ledger(election={}).claimed_leader() is None
    assert ledger().claimed_leader() is None


def test_an_allocation_whose_state_is_unknown_is_never_released() -> None:
    books = ledger(record(7), record(8))
    observation = look(books, job(8), accounting=accounting(j7="RUNNING"))
    plan = reconcile(observation, intent(0), release=frozenset({"7"}))
    assert plan.released == ("8",)
    assert plan.live == ("7",)
    assert deadline(plan.ledger, 7) is None


def test_a_silent_scheduler_stops_scale_in_named_releases_and_expiry() -> None:
    books = ledger(record(7), record(8))
    plan = reconcile(silent(books), intent(0, pending_timeout=1), release=frozenset({"7"}))
    assert (plan.released, plan.expired) == ((), ())
    assert plan.live == ("7", "8")
    assert not plan.changes(books)


# -- deadlines -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drain_timeout", "shape_window", "window"), [(600, 120, 600), (0, 120, 0), (0.5, 120, 1), (None, 300, 300)]
)
def test_L_11_the_deadline_is_the_drain_window_and_a_minute(
    drain_timeout: float | None, shape_window: int, window: int
) -> None:
    shape = attrs.evolve(WORKER_SHAPE, drain_window_seconds=shape_window)
    books = ledger(record(7, shape=shape.digest), record(8, shape=shape.digest))
    books = attrs.evolve(books, shapes={**books.shapes, shape.digest: shape})
    plan = reconcile(look(books, job(7), job(8, "PENDING")), intent(0, drain_timeout=drain_timeout))
    assert deadline(plan.ledger, 7) == NOW + window + 60
    assert deadline(plan.ledger, 8) == NOW + window + 60, "a pending one gets its deadline too"
    assert effects(plan, Drain) == [Drain(token(7), "7", NOW + window + 60, window + 60)]


def test_a_record_whose_shape_is_not_known_drains_for_two_minutes() -> None:
    plan = reconcile(look(ledger(record(7, shape="gone")), job(7)), intent(0))
    assert deadline(plan.ledger, 7) == NOW + 120 + 60


def test_a_deadline_is_never_moved_by_a_later_call() -> None:
    first = look(ledger(record(7), record(8)), job(7), job(8))
    plan = reconcile(first, intent(0, drain_timeout=600))
    then = later(first, plan, 100, job(7), job(8), drains=frozenset({token(7), token(8)}))
    again = reconcile(then, intent(0, drain_timeout=5), release=frozenset({"7", "8"}))
    assert again.released == ()
    assert not again.changes(plan.ledger)


def test_pending_ones_are_cancelled_only_while_pending_and_drained_when_they_started() -> None:
    first = look(ledger(record(7), record(8)), job(7, "PENDING"), job(8))
    plan = reconcile(first, intent(0))
    assert effects(plan, Cancel) == [Cancel(("7",), only_pending=True)]
    assert [drain.slurm_job_id for drain in effects(plan, Drain)] == ["8"]
    started = later(first, plan, 30, job(7), job(8), drains=frozenset({token(8)}))
    retried = reconcile(started, intent(0))
    assert retried.effects == (Drain(token(7), "7", NOW + 180, 150),), "with the time that is left"
    over = later(first, plan, 180, job(7), job(8), drains=frozenset({token(7), token(8)}))
    assert reconcile(over, intent(0)).effects == (Cancel(("7", "8"), only_pending=False),)


# -- named releases --------------------------------------------------------------------------------


def test_a_named_release_goes_whatever_the_order_and_is_replaced_by_its_count() -> None:
    books = ledger(record(7), record(8))
    observation = look(books, job(7, "PENDING"), job(8))
    kept = reconcile(observation, intent(2), release=frozenset({"8"}))
    assert kept.released == ("8",)
    assert len(effects(kept, Submit)) == 1
    lowered = reconcile(observation, intent(1), release=frozenset({"8"}))
    assert lowered.released == ("8",)
    assert not effects(lowered, Submit)
    assert lowered.live == ("7",)


def test_named_and_surplus_together_release_each_once() -> None:
    books = ledger(record(7), record(8), record(9))
    observation = look(books, job(7, time_left_seconds=1), job(8), job(9))
    assert reconcile(observation, intent(1), release=frozenset({"9"})).released == ("9", "7")


@pytest.mark.parametrize("ignored", ["999", "1", "7", "8"])
def test_release_ignores_what_is_no_live_allocation_of_the_intent(ignored: str) -> None:
    books = ledger(record(7, drain_deadline=NOW + 500), record(8, final_state="FAILED", ended_at=NOW), record(9))
    observation = look(books, job(7), job(9), drains=frozenset({token(7)}))
    plan = reconcile(observation, intent(1), release=frozenset({ignored}))
    assert plan.released == ()
    assert not plan.changes(books)


# -- pending_timeout -------------------------------------------------------------------------------


@pytest.mark.parametrize(("pending_for", "expired"), [(119, ()), (120, ("7",)), (500, ("7",))])
def test_pending_timeout_cancels_and_does_not_replace_in_the_same_call(
    pending_for: int, expired: tuple[str, ...]
) -> None:
    submitted = NOW - pending_for
    books = ledger(record(7, submitted_at=submitted), record(8))
    first = look(books, job(7, "PENDING", submitted_at=submitted), job(8))
    plan = reconcile(first, intent(2, pending_timeout=120))
    assert plan.expired == expired
    assert plan.released == ()
    assert not effects(plan, Submit)
    if expired:
        assert effects(plan, Cancel) == [Cancel(("7",), only_pending=True)]
        assert deadline(plan.ledger, 7) == NOW + 180
        assert plan.live == ("8",)
        following = later(first, plan, 1, job(7, "CANCELLED"), job(8))
        assert len(effects(reconcile(following, intent(2, pending_timeout=120)), Submit)) == 1


def test_without_pending_timeout_nothing_expires() -> None:
    books = ledger(record(7, submitted_at=NOW - 90_000))
    assert reconcile(look(books, job(7, "PENDING")), intent(1)).expired == ()


def test_a_requeue_starts_the_pending_time_anew() -> None:
    books = ledger(record(7, submitted_at=NOW - 4000))
    requeued = look(books, job(7, "PENDING", submitted_at=NOW - 50))
    assert reconcile(requeued, intent(1, pending_timeout=60)).expired == ()
    assert reconcile(requeued, intent(1, pending_timeout=50)).expired == ("7",)


def test_the_pending_time_never_begins_before_our_submission() -> None:
    books = ledger(record(7, submitted_at=NOW - 50))
    early = look(books, job(7, "PENDING", submitted_at=NOW - 4000))
    unknown = look(books, job(7, "PENDING", submitted_at=None))
    for observation in (early, unknown):
        assert reconcile(observation, intent(1, pending_timeout=60)).expired == ()
        assert reconcile(observation, intent(1, pending_timeout=50)).expired == ("7",)


def test_an_allocation_that_the_intent_did_not_submit_never_expires() -> None:
    joined: AllocationRecord = record(7, submitted_at=None)
    assert reconcile(look(ledger(joined), job(7, "PENDING")), intent(1, pending_timeout=1)).expired == ()


@pytest.mark.parametrize(
    "reason",
    [
        "JobHeldUser",
        "JobHeldAdmin",
        "DependencyNeverSatisfied",
        "PartitionTimeLimit",
        "AccountNotAllowed",
        "QOSNotAllowed",
        "BadConstraints",
        "ReservationDeleted",
    ],
)
def test_L_4_a_job_that_can_never_start_counts_shows_its_reason_and_expires(reason: str) -> None:
    observation = look(ledger(record(7)), job(7, "PENDING", reason=reason))
    assert snapshot(observation).workers()[0].reason == reason
    assert not reconcile(observation, intent(1)).effects
    assert reconcile(observation, intent(1, pending_timeout=60)).expired == ("7",)


def test_C_1_a_deleted_reservation_holds_pending_and_expires() -> None:
    observation = look(ledger(record(7)), job(7, "RESV_DEL_HOLD", reason="Reservation r1 was deleted"))
    worker = snapshot(observation).workers()[0]
    assert (worker.state, worker.committed, worker.ready) == ("RESV_DEL_HOLD", True, False)
    assert worker.reason == "Reservation r1 was deleted"
    assert reconcile(observation, intent(1, pending_timeout=60)).expired == ("7",)


def test_expiry_makes_room_before_the_surplus_is_counted() -> None:
    books = ledger(record(7), record(8), record(9))
    observation = look(books, job(7, "PENDING"), job(8), job(9))
    plan = reconcile(observation, intent(2, pending_timeout=60))
    assert plan.expired == ("7",)
    assert plan.released == ()
    assert plan.live == ("8", "9")


def test_a_former_head_of_the_intent_can_go() -> None:
    books = ledger(head=head(2), predecessors=(record(7),))
    assert reconcile(look(books, job(7), head_job=job(2)), intent(0)).released == ("7",)
