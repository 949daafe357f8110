"""Successors, promotions and elections: what each step writes and does."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from dagster_slurm.allocations.config import EffectiveShape, SlurmWorkerAllocationConfig
from dagster_slurm.allocations.election import CLAIM_LIMIT_SECONDS, LEADER_FAILURES_ALLOWED
from dagster_slurm.allocations.ledger import Ledger
from dagster_slurm.allocations.observation import Fate, Observation
from dagster_slurm.allocations.plan import Cancel, HeldBack, Plan, Submit
from dagster_slurm.allocations.succession import (
    head_result,
    head_shape,
    plan_ensure_head,
    plan_promotion,
    plan_successor,
    successor_shape,
)
from dagster_slurm_tests.builders import (
    HEAD_SHAPE,
    NOW,
    accounting,
    codes,
    effects,
    fresh,
    head,
    intent,
    job,
    later,
    ledger,
    look,
    ray_nodes,
    reconcile,
    record,
    silent,
    submission,
    token,
    trace,
)

NONCE = token(77)


def ensure(observation: Observation) -> Plan:
    assert observation.ledger is not None
    return plan_ensure_head(observation.ledger, observation, fresh())


def promote(observation: Observation) -> Plan:
    assert observation.ledger is not None
    return plan_promotion(observation.ledger, observation, NONCE)


def succeed(observation: Observation, *tokens: str) -> Plan:
    assert observation.ledger is not None
    return plan_successor(observation.ledger, observation, HEAD_SHAPE, tokens or (token(500),), 20)


def ended(books: Ledger, *jobs: Any, **changes: Any) -> Observation:
    return look(books, *jobs, head_job=job(1, "TIMEOUT"), **changes)


def up(n: int) -> dict[str, Any]:
    return {"cluster": {str(n): ray_nodes(n, token=token(n))}}


def claimed(n: int, seconds_ago: int = 5) -> dict[str, Any]:
    return {"election": {"slurm_job_id": str(n), "nonce": NONCE, "claimed_at": NOW - seconds_ago}}


# -- an election -------------------------------------------------------------------------------------


def test_a_session_with_a_head_is_left_alone() -> None:
    books = ledger(record(7))
    assert not ensure(look(books, job(7))).changes(books)


def test_an_election_claims_then_publishes_and_carries_everything() -> None:
    opened = submission(30)
    books = ledger(record(7, submitted_at=NOW - 50), record(8, drain_deadline=NOW + 500), opened=(opened,))
    jobs = (job(7), job(8, time_left_seconds=9000))
    first = ensure(ended(books, *jobs, traces={opened.token: trace()}))
    assert first.ledger.election == {"slurm_job_id": "7", "nonce": next(fresh()), "claimed_at": NOW}
    assert not effects(first, Submit)
    assert first.ledger.head is not None
    assert first.ledger.head.slurm_job_id == "1"

    waiting = later(look(books), first, 3, *jobs, head_job=job(1, "TIMEOUT"), traces={opened.token: trace()})
    waiting = attrs.evolve(waiting, drains=frozenset({token(8)}))
    assert not ensure(waiting).changes(first.ledger), "it waits for Ray"

    second = ensure(attrs.evolve(waiting, **up(7)))
    after = second.ledger
    assert after.head == record(7, submitted_at=NOW - 50)
    assert [r.slurm_job_id for r in after.workers] == ["8"]
    assert [r.slurm_job_id for r in after.predecessors] == ["1"]
    assert after.workers[0].drain_deadline == NOW + 500
    assert set(after.worker_submissions) == {opened.token}
    assert after.election is None
    assert not effects(second, Cancel), "the old head has ended"


def test_an_elected_worker_counts_for_its_intent_and_is_never_released_by_a_count() -> None:
    books = ledger(record(7), record(8), head=head())
    published = ensure(ended(attrs.evolve(books, **claimed(7)), job(7), job(8), **up(7))).ledger
    plan = reconcile(look(published, job(7), job(8)), intent(1))
    assert plan.released == ("8",)
    assert plan.live == ("7",)
    assert reconcile(look(published, job(7), job(8)), intent(0)).released == ("8",)
    between = attrs.evolve(books, **claimed(7))
    assert reconcile(look(between, job(7), job(8)), intent(0)).released == ("8",), "nor is one that is claimed"


def test_the_former_head_is_cancelled_again_until_it_has_ended() -> None:
    books = ledger(record(7), **claimed(7))
    plan = ensure(look(books, job(7), head_job=job(1, time_left_seconds=20), **up(7)))
    assert effects(plan, Cancel) == [Cancel(("1",), only_pending=False)]
    again = ensure(later(look(books), plan, 5, job(7), head_job=job(1, time_left_seconds=15)))
    assert effects(again, Cancel) == [Cancel(("1",), only_pending=False)]
    done = later(look(books), plan, 9, job(7), head_job=job(1, "CANCELLED"))
    assert not effects(ensure(done), Cancel)


def test_a_head_that_ended_without_any_candidate_is_submitted_anew_with_its_shape() -> None:
    books = ledger(record(7, drain_deadline=NOW + 60))
    plan = ensure(ended(books, job(7)))
    (submit,) = effects(plan, Submit)
    assert (submit.role, submit.shape) == ("head", HEAD_SHAPE.digest)
    on_its_way = ended(plan.ledger, job(7), traces={submit.token: trace(Fate.SENT)})
    on_its_way = attrs.evolve(on_its_way, drains=frozenset({token(7)}))
    assert not effects(ensure(on_its_way), Submit)
    assert not ensure(on_its_way).changes(plan.ledger)


def test_a_new_head_has_the_first_heads_shape_after_an_elected_worker() -> None:
    books = ledger(head=record(7), head_template=HEAD_SHAPE.digest)
    (submit,) = effects(ensure(ended(books, job(7, "FAILED"))), Submit)
    assert submit.shape == HEAD_SHAPE.digest


def test_without_any_shape_of_a_head_it_says_so() -> None:
    books = ledger(head=None, head_template=None)
    assert codes(ensure(look(books))) == ("no_head",)
    assert head_shape(ledger(head_template=None)) == HEAD_SHAPE


def test_a_queued_successor_is_waited_for_and_one_that_cannot_lead_is_not() -> None:
    books = ledger(successor=head(2))
    assert not ensure(ended(books, job(2, "PENDING"))).changes(None)
    opened = submission(2, role="successor", intent=None, dated=False, shape=HEAD_SHAPE.digest)
    coming = ended(ledger(opened=(opened,)), traces={opened.token: trace()})
    assert not effects(ensure(coming), Submit)
    failing = ledger(successor=head(2), failed_leaders={"2": LEADER_FAILURES_ALLOWED})
    assert len(effects(ensure(ended(failing, job(2))), Submit)) == 1
    assert len(effects(ensure(ended(books, job(2, "FAILED"))), Submit)) == 1


def test_an_ending_or_silent_head_without_a_better_one_stays() -> None:
    books = ledger()
    plan = ensure(look(books, head_job=job(1, time_left_seconds=10)))
    assert not plan.changes(books)


def test_an_ending_head_gives_way_to_its_successor() -> None:
    books = ledger(record(7), successor=head(2))
    plan = ensure(look(books, job(2), job(7), head_job=job(1, time_left_seconds=10)))
    assert plan.ledger.claimed_leader() == "2"
    published = ensure(
        look(
            plan.ledger,
            job(2),
            job(7),
            head_job=job(1, time_left_seconds=8),
            **up(2),
        )
    )
    assert (published.ledger.head, published.ledger.successor) == (head(2), None)


def test_a_claim_falls_when_the_head_is_well_again() -> None:
    books = ledger(record(7), **claimed(7))
    plan = ensure(look(books, job(7), **up(7)))
    assert plan.ledger.election is None
    assert plan.ledger.head == head()
    assert plan.held_back == ()


def test_one_that_does_not_come_up_is_given_up_and_counted_and_the_next_one_is_claimed() -> None:
    books = ledger(record(7), record(8), **claimed(7, CLAIM_LIMIT_SECONDS + 1))
    plan = ensure(ended(books, job(7), job(8, time_left_seconds=2000)))
    assert plan.ledger.election is None
    assert plan.ledger.failed_leaders == {"7": 1}
    assert codes(plan) == ("leader_failed",)
    assert ensure(ended(plan.ledger, job(7), job(8, time_left_seconds=2000))).ledger.claimed_leader() == "8"


def test_a_claimed_one_that_ended_is_given_up_without_a_count() -> None:
    books = ledger(record(7), **claimed(7))
    plan = ensure(ended(books, job(7, "NODE_FAIL")))
    assert plan.ledger.election is None
    assert plan.ledger.failed_leaders == {}


def test_a_released_worker_is_not_published_although_it_came_up() -> None:
    books = ledger(record(7, drain_deadline=NOW + 60), **claimed(7))
    plan = ensure(ended(books, job(7), **up(7)))
    assert plan.ledger.head == head(final_state="TIMEOUT", ended_at=NOW)
    assert plan.ledger.election is None


def test_failures_of_jobs_without_a_record_are_forgotten() -> None:
    books = ledger(record(7), record(8), failed_leaders={"8": 1, "99": 2}, **claimed(7))
    assert ensure(ended(books, job(7), job(8), **up(7))).ledger.failed_leaders == {"8": 1}


def test_a_first_head_can_be_elected_where_none_was_recorded() -> None:
    books = ledger(record(7), head=None, **claimed(7))
    plan = ensure(look(books, job(7), **up(7)))
    assert plan.ledger.head == record(7)
    assert plan.ledger.predecessors == ()


@pytest.mark.parametrize("act", [ensure, promote, succeed])
def test_uncertainty_and_the_end_of_a_session_change_nothing(act: Any) -> None:
    books = ledger(record(7), successor=head(2), **claimed(7, 999))
    for observation, code in ((silent(books), "scheduler_silent"), (ended(books, closing=True), "closing")):
        plan = act(observation)
        assert codes(plan) == (code,)
        assert not plan.changes(books)


# -- a successor -------------------------------------------------------------------------------------


def test_one_successor_is_submitted_and_no_second_one() -> None:
    plan = succeed(look(ledger()))
    (submit,) = effects(plan, Submit)
    assert (submit.role, submit.token) == ("successor", token(500))
    opened = look(plan.ledger, traces={submit.token: trace(Fate.SENT)})
    assert not effects(succeed(opened, token(501)), Submit)
    for state in ("PENDING", "RUNNING", "SUSPENDED"):
        assert not effects(succeed(look(ledger(successor=head(2)), job(2, state))), Submit)


def test_a_successor_counts_for_the_sessions_limit() -> None:
    books = ledger(*(record(n) for n in range(10, 29)))
    plan = succeed(look(books, *(job(n) for n in range(10, 29))))
    assert codes(plan) == ("limit",)
    assert not plan.changes(books)


def test_an_attempt_that_was_taken_or_dropped_is_not_made_again() -> None:
    books = ledger(revoked_tokens=(token(500),))
    assert not effects(succeed(look(books), token(500), token(501)), Submit)


def test_a_successor_that_ended_becomes_a_predecessor_of_the_next() -> None:
    plan = succeed(look(ledger(successor=head(2)), job(2, "FAILED")))
    assert len(effects(plan, Submit)) == 1
    adopted = plan.ledger.with_adopted(token(500), "9", NOW)
    assert adopted.successor is not None
    assert adopted.successor.slurm_job_id == "9"
    assert adopted.successor.submitted_at is None
    assert [r.slurm_job_id for r in adopted.predecessors] == ["2"]


def test_its_shape_is_the_heads_unless_stated() -> None:
    books = ledger()
    assert successor_shape(books, None) == HEAD_SHAPE
    longer = successor_shape(books, SlurmWorkerAllocationConfig(time_limit="2-00:00:00"))
    assert (longer.head_only, longer.time_limit) == (True, "2-00:00:00")
    assert not successor_shape(books, SlurmWorkerAllocationConfig(head_only=False)).head_only
    assert successor_shape(ledger(head=None, head_template=None), None) == EffectiveShape()


# -- a promotion -------------------------------------------------------------------------------------


def test_a_promotion_claims_and_publishes_and_cancels_the_head_that_is_well() -> None:
    books = ledger(record(7), successor=head(2))
    first = promote(look(books, job(2), job(7)))
    assert first.ledger.election == {"slurm_job_id": "2", "nonce": NONCE, "claimed_at": NOW}
    # Another process that only keeps the session with a head goes on with it.
    coming = later(look(books), first, 4, job(2), job(7))
    assert not ensure(coming).changes(first.ledger)
    for act in (promote, ensure):
        second = act(attrs.evolve(coming, **up(2)))
        assert (second.ledger.head, second.ledger.successor) == (head(2), None)
        assert [r.slurm_job_id for r in second.ledger.predecessors] == ["1"]
        assert effects(second, Cancel) == [Cancel(("1",), only_pending=False)]


def test_a_promotion_that_does_not_come_up_leaves_the_head_that_is_well() -> None:
    books = ledger(successor=head(2), **claimed(2, CLAIM_LIMIT_SECONDS + 1))
    plan = promote(look(books, job(2)))
    assert codes(plan) == ("leader_failed",)
    assert plan.ledger.head == head()
    assert plan.ledger.successor == head(2)


def test_what_cannot_be_promoted_is_said() -> None:
    assert codes(promote(look(ledger()))) == ("no_successor",)
    books = ledger(successor=head(2))
    assert codes(promote(look(books, job(2, "PENDING")))) == ("not_running",)
    assert codes(promote(look(books, job(2, None)))) == ("not_running",)
    released = ledger(successor=head(2, drain_deadline=NOW + 5))
    assert codes(promote(look(released, job(2)))) == ("not_running",)


def test_nobody_takes_the_place_of_a_head_that_is_on_its_way() -> None:
    opened = submission(9, role="head", intent=None, dated=False, shape=HEAD_SHAPE.digest)
    traces = {opened.token: trace()}
    books = ledger(opened=(opened,), successor=head(2))
    assert codes(promote(ended(books, job(2), traces=traces))) == ("unresolved",)
    for act in (promote, ensure):
        plan = act(ended(attrs.evolve(books, **claimed(2, 999)), job(2), traces=traces, **up(2)))
        assert plan.ledger.claimed_leader() == "2", "it waits"
        assert plan.ledger.head is not None
        assert plan.ledger.head.slurm_job_id == "1"


def test_an_election_under_way_is_gone_on_with() -> None:
    books = ledger(record(7), successor=head(2), **claimed(7))
    plan = promote(ended(books, job(2), job(7), **up(7)))
    assert plan.ledger.head == record(7)
    assert plan.ledger.successor == head(2)


# -- the answer --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("observation", "standing"),
    [
        (look(ledger()), "leads"),
        (look(ledger(), head_job=job(1, "PENDING")), "queued"),
        (silent(ledger()), "unknown"),
        (look(ledger(**claimed(7))), "claimed"),
        (ended(ledger()), "none"),
        (look(ledger(head=None)), "none"),
        (ended(ledger(successor=head(2)), job(2, "PENDING")), "queued"),
        (ended(ledger(successor=head(2)), job(2, "FAILED")), "none"),
        (ended(ledger(opened=(submission(9, role="head"),))), "queued"),
        (ended(ledger(opened=(submission(9),))), "none"),
    ],
)
def test_where_the_head_stands(observation: Observation, standing: str) -> None:
    assert observation.ledger is not None
    assert head_result(observation.ledger, observation, (), ()).standing == standing


def test_a_head_that_accounting_still_calls_live_is_unknown() -> None:
    observation = look(ledger(), head_job=job(50), accounting=accounting(j1="RUNNING"))
    assert head_result(ledger(), observation, (), ()).standing == "unknown"


def test_a_new_head_of_this_call_is_queued() -> None:
    new = ledger(head=head(5), predecessors=(head(1),))
    result = head_result(new, ended(ledger()), ("5",), (HeldBack("x", "Because."),))
    assert (result.standing, result.head_job_id, result.submitted) == ("queued", "5", ("5",))
    assert str(result.held_back) == "Because."
    assert result.claimed is None
