"""Laws of elections over any ledger and any observation of it."""

from __future__ import annotations

from hypothesis import given

from dagster_slurm.allocations.bookkeeping import bring_up_to_date
from dagster_slurm.allocations.conditions import condition_of
from dagster_slurm.allocations.election import ENDED, claim_of, has_come_up, head_need, is_on_its_way
from dagster_slurm.allocations.ledger import Ledger
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.plan import Cancel, Submit
from dagster_slurm_tests.builders import effects
from dagster_slurm_tests.properties.test_planner_laws import books_of, everything, head_plans, law
from dagster_slurm_tests.properties.worlds import worlds


def head_id(ledger: Ledger) -> str | None:
    return None if ledger.head is None else ledger.head.slurm_job_id


@law
@given(worlds())
def test_a_released_or_draining_allocation_never_leads_or_is_claimed(world: Observation) -> None:
    before = books_of(world)
    for plan in head_plans(world):
        new = {plan.ledger.claimed_leader()} - {before.claimed_leader()}
        # A plan that changes nothing keeps the head as it was, also when one that came late could be recorded.
        if head_id(plan.ledger) not in (head_id(before), head_id(bring_up_to_date(before, world).ledger)):
            new.add(head_id(plan.ledger))
        for job_id in new - {None}:
            record = plan.ledger.record(str(job_id))
            assert record is not None
            assert record.drain_deadline is None
            assert condition_of(record, world).state == "RUNNING"


@law
@given(worlds())
def test_only_what_was_claimed_and_came_up_is_published(world: Observation) -> None:
    before = bring_up_to_date(books_of(world), world).ledger
    for plan in head_plans(world):
        if head_id(plan.ledger) == head_id(before) or world.closing:
            continue
        claim, head = claim_of(before), plan.ledger.head
        assert claim is not None
        assert head is not None
        assert head.slurm_job_id == claim.slurm_job_id
        assert has_come_up(head, world)
        assert not is_on_its_way(before), "it would be displaced by the head that is on its way"
        assert plan.ledger.election is None
        if before.head is not None:
            assert before.head in plan.ledger.predecessors
        assert head not in plan.ledger.workers


@law
@given(worlds())
def test_nothing_is_elected_while_nobody_knows(world: Observation) -> None:
    before = books_of(world)
    for plan in head_plans(world):
        if world.closing or not world.listing.answered:
            assert not plan.changes(before)
            assert plan.held_back
    # The head as it is known now: one whose job id could be recorded only by this look counts.
    head = bring_up_to_date(before, world).ledger.head
    if head is not None and condition_of(head, world).live is None:
        plan = head_plans(world)[0]
        assert not effects(plan, Submit)
        claimed = plan.ledger.claimed_leader()
        assert claimed is None or claimed == before.claimed_leader()


@law
@given(worlds())
def test_an_election_carries_intents_times_deadlines_and_submissions(world: Observation) -> None:
    before = bring_up_to_date(books_of(world), world).ledger
    for plan in head_plans(world):
        if world.closing or not world.listing.answered:
            continue
        after = everything(plan)
        for record in before.records():
            assert after[record.slurm_job_id] == record
        assert set(before.worker_submissions) <= set(plan.ledger.worker_submissions)
        assert plan.ledger.revoked_tokens == before.revoked_tokens


@law
@given(worlds())
def test_a_head_is_submitted_only_when_none_lives_or_comes(world: Observation) -> None:
    before = bring_up_to_date(books_of(world), world).ledger
    ensured, promoted, succeeded = head_plans(world)
    assert not effects(promoted, Submit)
    for submit in effects(ensured, Submit):
        assert submit.role == "head"
        assert head_need(bring_up_to_date(books_of(world), world), world) == ENDED
        assert not any(s.role == "head" for s in before.worker_submissions.values())
    for submit in effects(succeeded, Submit):
        assert submit.role == "successor"
        successor = before.successor
        assert successor is None or condition_of(successor, world).live is False
    for plan in (ensured, promoted, succeeded):
        assert len(effects(plan, Submit)) <= 1


@law
@given(worlds())
def test_only_predecessors_former_heads_and_overdue_ones_are_cancelled(world: Observation) -> None:
    books = books_of(world)
    for plan in head_plans(world):
        leads = plan.ledger.head
        for cancel in effects(plan, Cancel):
            assert leads is None or leads.slurm_job_id not in cancel.slurm_job_ids or leads.drain_deadline is not None
            for job_id in cancel.slurm_job_ids:
                record = plan.ledger.record(job_id)
                revoked = record is None
                assert revoked or record in plan.ledger.predecessors or record.drain_deadline is not None, books
