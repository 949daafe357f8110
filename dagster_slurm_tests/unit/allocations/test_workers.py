"""What reconcile_workers counts, submits and holds back."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from dagster_slurm.allocations.config import EffectiveShape, SlurmWorkerAllocationConfig
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.ledger import Ledger
from dagster_slurm.allocations.observation import Fate
from dagster_slurm.allocations.plan import Cancel, Drain, Forget, Revoke, Submit
from dagster_slurm.allocations.request import Seen, WorkerRequest
from dagster_slurm.allocations.workers import base_shape, effective_shape
from dagster_slurm.errors import ConfigurationError
from dagster_slurm.slurm.replies import Listing, Refused, Submitted
from dagster_slurm_tests.builders import (
    HEAD_SHAPE,
    KEY,
    NOW,
    WORKER_SHAPE,
    codes,
    effects,
    head,
    intent,
    job,
    later,
    ledger,
    look,
    reconcile,
    record,
    snapshot,
    submission,
    token,
    trace,
)


def seen(books: Ledger, age: int = 10, **changes: Any) -> Seen:
    """A snapshot of everything in these books, taken some seconds ago."""
    ids = frozenset(r.slurm_job_id for r in books.records())
    return attrs.evolve(Seen(observed_at=NOW - age, head_job_id="1", slurm_job_ids=ids), **changes)


# -- counting --------------------------------------------------------------------------------------


def test_L_6_pending_and_running_allocations_count() -> None:
    observation = look(ledger(record(7), record(8)), job(7), job(8, "PENDING"))
    plan = reconcile(observation, intent(2))
    assert not plan.changes(observation.ledger)
    assert plan.live == ("7", "8")
    assert plan.held_back == ()


@pytest.mark.parametrize("final", ["COMPLETED", "TIMEOUT"])
def test_L_8_what_ended_is_replaced_by_the_next_call(final: str) -> None:
    plan = reconcile(look(ledger(record(7), record(8)), job(7), job(8, final)), intent(2))
    assert len(effects(plan, Submit)) == 1
    assert plan.live == ("7",)


def test_C_5_ended_jobs_that_the_listing_still_shows_do_not_count() -> None:
    plan = reconcile(look(ledger(record(7)), job(7, "CANCELLED", reason="JobHeldUser")), intent(1))
    assert len(effects(plan, Submit)) == 1


def test_C_7_a_booting_allocation_counts_and_is_never_expired() -> None:
    observation = look(ledger(record(7)), job(7, "CONFIGURING"))
    plan = reconcile(observation, intent(1, pending_timeout=1))
    assert not plan.changes(observation.ledger)
    assert plan.live == ("7",)


def test_L_9_released_allocations_stay_released_and_do_not_count() -> None:
    first = look(ledger(record(7), record(8), record(9)), job(7, "PENDING"), job(8, "PENDING"), job(9, "CONFIGURING"))
    down = reconcile(first, intent(0))
    assert down.released == ("8", "7", "9"), "pending first, the newest id first"
    assert down.live == ()
    up_again = later(first, down, 10, job(7, "CANCELLED"), job(8, "CANCELLED"), job(9, "CONFIGURING"))
    plan = reconcile(up_again, intent(3))
    assert len(effects(plan, Submit)) == 3
    assert plan.ledger.record("9").drain_deadline == down.ledger.record("9").drain_deadline  # type: ignore[union-attr]
    assert not reconcile(later(up_again, plan, 5, job(9)), intent(3), max_submissions=0).released


def test_allocations_of_another_intent_or_of_none_are_not_counted_or_released() -> None:
    books = ledger(record(7, intent=None), record(8, intent="other"), record(9))
    observation = look(books, job(7), job(8), job(9))
    plan = reconcile(observation, intent(0), release=frozenset({"7", "8"}))
    assert plan.released == ("9",)
    assert effects(plan, Drain)[0].slurm_job_id == "9"


def test_an_elected_head_counts_toward_its_intent_and_is_never_released() -> None:
    books = ledger(record(8), head=record(7), predecessors=(head(final_state="FAILED", ended_at=NOW),))
    observation = look(books, job(8), head_job=job(7))
    plan = reconcile(observation, intent(2))
    assert plan.live == ("7", "8")
    assert not plan.changes(books)
    shrunk = reconcile(observation, intent(0), release=frozenset({"7"}))
    assert shrunk.released == ("8",)
    assert shrunk.live == ("7",)
    keys = [worker.slurm_job_id for worker in snapshot(observation).workers(KEY)]
    assert keys == ["7", "8"]
    assert [worker.slurm_job_id for worker in snapshot(observation).workers()] == ["8"]


def test_the_snapshot_and_the_count_agree() -> None:
    books = ledger(
        record(7), record(8), record(9, drain_deadline=NOW + 5), record(10), record(11, intent="other"), head=record(6)
    )
    observation = look(
        books, job(7), job(8, "FAILED"), job(9), job(10, "PENDING"), job(11), job(6), head_job=job(1, "COMPLETED")
    )
    workers = snapshot(observation).workers(KEY)
    active = [w.slurm_job_id for w in workers if w.committed and w.drain_deadline is None]
    assert tuple(active) == reconcile(observation, intent(3)).live == ("6", "7", "10")


# -- submitting ------------------------------------------------------------------------------------


def test_missing_allocations_are_submitted_and_their_tokens_are_in_the_ledger() -> None:
    plan = reconcile(look(ledger(record(7)), job(7)), intent(3))
    submits = effects(plan, Submit)
    assert [s.token for s in submits] == [token(100_000), token(100_001)]
    for submit in submits:
        opened = plan.ledger.worker_submissions[submit.token]
        assert (opened.intent, opened.role, opened.prepared_at, opened.dated) == (KEY, "worker", NOW, True)
        assert plan.ledger.shapes[submit.shape] == WORKER_SHAPE
    assert plan.live == ("7",)
    assert plan.unresolved == ()


def test_the_config_is_for_what_is_submitted_only() -> None:
    config = SlurmWorkerAllocationConfig(partition="gpu-a", gpus_per_node=2)
    plan = reconcile(look(ledger(record(7)), job(7)), intent(2, config=config))
    shape = plan.ledger.shapes[effects(plan, Submit)[0].shape]
    assert (shape.partition, shape.gpus_per_node, shape.time_limit) == ("gpu-a", 2, WORKER_SHAPE.time_limit)
    assert plan.ledger.record("7").shape == WORKER_SHAPE.digest  # type: ignore[union-attr]


def test_shapes_inherit_from_the_worker_shape_else_from_the_head() -> None:
    assert base_shape(ledger()) == WORKER_SHAPE
    assert base_shape(ledger(worker_template=None)) == HEAD_SHAPE
    assert base_shape(ledger(worker_template=None, head=None)) is None
    assert effective_shape(ledger(worker_template=None, head=None), None) == EffectiveShape()
    inherited = effective_shape(ledger(worker_template=None), None)
    assert (inherited.partition, inherited.head_only) == ("main", False)


def test_several_intents_share_one_decision() -> None:
    books = ledger(record(7), record(8, intent="b"), record(9, intent="b"))
    plan = reconcile(look(books, job(7), job(8), job(9)), WorkerIntent("b", 1), intent(2), max_submissions=5)
    assert plan.released == ("9",)
    assert [s.intent for s in effects(plan, Submit)] == [KEY]
    assert plan.live == ("8", "7")
    kinds = [type(effect) for effect in plan.effects]
    assert kinds.index(Drain) < kinds.index(Submit), "what a release frees can be used"


def test_J_9_a_second_process_that_decides_on_the_first_ones_ledger_submits_nothing() -> None:
    first = look(ledger())
    plan = reconcile(first, intent(3))
    again = later(first, plan, 0, traces={s.token: trace(Fate.READY) for s in effects(plan, Submit)})
    assert not effects(reconcile(again, intent(3)), Submit)


# -- the budget and limits -------------------------------------------------------------------------


@pytest.mark.parametrize(("budget", "submitted"), [(0, 0), (1, 1), (3, 3), (9, 4), (None, 4)])
def test_L_5_max_submissions_bounds_a_call_and_says_so(budget: int | None, submitted: int) -> None:
    plan = reconcile(look(ledger()), intent(4), max_submissions=budget)
    assert len(effects(plan, Submit)) == submitted
    assert codes(plan) == (() if submitted == 4 else ("budget",))
    if plan.held_back:
        assert f"asks for 4 more, {4 - submitted} of them not submitted" in str(plan.held_back[0])


def test_the_budget_is_shared_by_the_intents_of_a_call() -> None:
    plan = reconcile(look(ledger()), intent(2), WorkerIntent("b", 2), max_submissions=3)
    assert [s.intent for s in effects(plan, Submit)] == [KEY, KEY, "b"]
    assert codes(plan) == ("budget",)


def test_a_call_submits_at_most_fifty() -> None:
    plan = reconcile(look(ledger()), intent(80))
    assert len(effects(plan, Submit)) == 50
    assert codes(plan) == ("limit",)
    assert "a call submits at most 50" in str(plan.held_back[0])


def test_a_session_has_at_most_so_many_live_allocations_the_head_and_the_unknown_included() -> None:
    books = ledger(record(7), record(8, drain_deadline=NOW + 9), record(9), opened=(submission(10),))
    observation = look(books, job(7), job(8), job(9, "FAILED"), traces={token(10): trace()})
    plan = reconcile(observation, intent(20), live_per_session=6)
    assert len(effects(plan, Submit)) == 2, "head, 7, 8 and the open submission are four"
    assert codes(plan) == ("unresolved", "limit")
    full = reconcile(observation, intent(20), live_per_session=2)
    assert not effects(full, Submit)


def test_a_bound_that_is_not_the_tightest_is_not_named() -> None:
    plan = reconcile(look(ledger()), intent(10), max_submissions=2, submissions_per_call=5)
    assert codes(plan) == ("budget",)
    assert codes(reconcile(look(ledger()), intent(10), max_submissions=5, submissions_per_call=2)) == (
        "budget",
        "limit",
    )


# -- attempts of one call --------------------------------------------------------------------------


def test_what_an_earlier_attempt_submitted_counts_against_the_budget() -> None:
    first = look(ledger())
    plan = reconcile(first, intent(5), max_submissions=2)
    own = frozenset(s.token for s in effects(plan, Submit))
    one, two = sorted(own)
    files = {one: trace(outcome=Submitted("20", None), submitted_at=NOW), two: trace(Fate.SENT)}
    again = later(first, plan, 1, traces=files)
    second = reconcile(again, intent(5), max_submissions=2, own_tokens=own)
    assert not effects(second, Submit)
    assert codes(second) == ("unresolved", "budget")
    assert len(effects(reconcile(first, intent(5), max_submissions=2, own_tokens=own), Submit)) == 2, "it was not done"


def test_I_5_after_a_refusal_of_its_own_a_call_submits_nothing_more() -> None:
    first = look(ledger())
    plan = reconcile(first, intent(1))
    own = effects(plan, Submit)[0].token
    refused = later(first, plan, 1, traces={own: trace(outcome=Refused("sbatch: error: Invalid qos"))})
    second = reconcile(refused, intent(1), own_tokens=frozenset({own}))
    assert not effects(second, Submit)
    assert codes(second) == ("refused", "refused")
    assert "Invalid qos" in str(second.held_back[0])
    assert len(effects(reconcile(refused, intent(1)), Submit)) == 1, "the next call tries again"


def test_what_an_earlier_attempt_let_expire_is_not_replaced_by_the_call() -> None:
    first = look(ledger(record(7)), job(7, "PENDING"))
    plan = reconcile(first, intent(1, pending_timeout=60))
    assert plan.expired == ("7",)
    again = later(first, plan, 1, job(7, "CANCELLED"))
    same_call = reconcile(again, intent(1, pending_timeout=60), own_expired=frozenset({"7"}))
    assert not effects(same_call, Submit)
    assert len(effects(reconcile(again, intent(1, pending_timeout=60)), Submit)) == 1
    not_done = look(ledger(record(7)), job(7))
    kept = reconcile(not_done, intent(2, pending_timeout=60), own_expired=frozenset({"7"}))
    assert len(effects(kept, Submit)) == 1, "it started before it was cancelled, so it keeps its own place only"


# -- why nothing is submitted ----------------------------------------------------------------------


@pytest.mark.parametrize(("age", "held"), [(0, ()), (300, ()), (301, ("observation_stale",)), (-20, ())])
def test_N_8_the_age_of_the_snapshot_is_by_the_login_nodes_clock(age: int, held: tuple[str, ...]) -> None:
    books = ledger()
    plan = reconcile(look(books), intent(1), seen=seen(books, age))
    assert codes(plan) == held
    assert len(effects(plan, Submit)) == (0 if held else 1)


def test_a_stale_snapshot_stops_submissions_and_no_release() -> None:
    books = ledger(record(7), record(8, drain_deadline=NOW - 1))
    observation = look(books, job(7), job(8))
    plan = reconcile(observation, intent(0), WorkerIntent("b", 1), seen=seen(books, 400), max_observation_age=300)
    assert plan.released == ("7",)
    assert effects(plan, Cancel) == [Cancel(("8",), only_pending=False)]
    assert codes(plan) == ("observation_stale",)
    assert "400 s old, more than 300 s" in str(plan.held_back[0])


def test_a_head_that_changed_since_the_snapshot_stops_submissions() -> None:
    books = ledger(record(7), record(8))
    observation = look(books, job(7), job(8))
    plan = reconcile(observation, intent(3), seen=seen(books, head_job_id="99"))
    assert codes(plan) == ("head_changed",)
    assert not effects(plan, Submit)
    assert reconcile(observation, intent(1), seen=seen(books, head_job_id="99")).released == ("8",)
    assert codes(reconcile(observation, intent(3), seen=seen(books, head_job_id=None))) == ()


def test_without_a_head_nothing_is_submitted() -> None:
    ended = look(ledger(), head_job=job(1, "TIMEOUT"))
    assert codes(reconcile(ended, intent(1))) == ("no_head",)
    nobody = ledger(head=None)
    assert codes(reconcile(look(nobody), intent(1))) == ("no_head",)


def test_a_head_on_its_way_a_successor_and_an_unknown_head_are_heads() -> None:
    coming = ledger(head=None, opened=(submission(1, role="head", intent=None, dated=False),))
    observation = look(coming, listing=Listing(answered=True))
    assert len(effects(reconcile(observation, intent(1)), Submit)) == 1
    succeeded = ledger(successor=head(2))
    assert len(effects(reconcile(look(succeeded, job(2), head_job=job(1, "FAILED")), intent(1)), Submit)) == 1
    gone = look(succeeded, job(2, "FAILED"), head_job=job(1, "FAILED"))
    assert codes(reconcile(gone, intent(1))) == ("no_head",), "a successor that ended is none"
    unknown = look(ledger(), head_job=job(1, None))
    assert len(effects(reconcile(unknown, intent(1)), Submit)) == 1


def test_the_reason_is_given_once_and_only_when_something_is_missing() -> None:
    ended = look(ledger(record(7)), job(7), head_job=job(1, "TIMEOUT"))
    assert codes(reconcile(ended, intent(1))) == ()
    assert codes(reconcile(ended, intent(2), WorkerIntent("b", 1))) == ("no_head",)


def test_a_session_that_is_ending_commits_nothing() -> None:
    books = ledger(record(7), record(8, drain_deadline=NOW - 1), opened=(submission(9),))
    observation = look(books, job(7), job(8), closing=True, traces={token(9): trace(outcome=Submitted("9", None))})
    plan = reconcile(observation, intent(3), release=frozenset({"7"}))
    assert codes(plan) == ("closing",)
    assert not plan.changes(books)
    assert (plan.released, plan.expired) == ((), ())


def test_nothing_asked_for_brings_the_books_up_to_date_only() -> None:
    books = ledger(record(7), opened=(submission(8),))
    observation = look(books, job(7), job(8), traces={token(8): trace(Fate.STARTED, started_job_id="8")})
    plan = reconcile(observation)
    assert plan.adopted == ("8",)
    assert plan.live == ()
    assert plan.effects == (Forget((token(8),)),)
    assert not effects(plan, Revoke)


# -- requests that make no sense -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"intents": (intent(1), intent(2))}, "WorkerIntent.key"),
        ({"max_submissions": -1}, "max_submissions"),
        ({"max_submissions": True}, "max_submissions"),
        ({"max_submissions": 1.5}, "max_submissions"),
        ({"max_observation_age": 0}, "max_observation_age"),
        ({"max_observation_age": float("nan")}, "max_observation_age"),
    ],
)
def test_a_request_that_makes_no_sense_names_its_argument(values: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        WorkerRequest(**{"intents": (intent(1),), **values})
    assert raised.value.field == field
