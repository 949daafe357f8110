"""Laws of the planners over any ledger and any observation of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_slurm.allocations.conditions import condition_of
from dagster_slurm.allocations.config import EffectiveShape
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.ledger import AllocationRecord, Ledger, read_ledger
from dagster_slurm.allocations.lifecycle import plan_addition, plan_end, plan_head, plan_upkeep
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.plan import Archive, Cancel, Drain, Forget, Plan, Revoke, Submit
from dagster_slurm.allocations.request import WorkerRequest
from dagster_slurm.allocations.snapshot import build_snapshot
from dagster_slurm.allocations.succession import plan_ensure_head, plan_promotion, plan_successor
from dagster_slurm.allocations.workers import plan_workers
from dagster_slurm.errors import SessionClosing
from dagster_slurm.session.commit_loop import carry_out, fresh_tokens
from dagster_slurm.slurm.states import StateClass, state_class
from dagster_slurm.testing.scheduler import SimulatedScheduler
from dagster_slurm.testing.simulation import SimulatedSite
from dagster_slurm_tests.amount import amount
from dagster_slurm_tests.builders import (
    SESSION,
    WORKER_SHAPE,
    effects,
    token,
)
from dagster_slurm_tests.properties.worlds import requests, worlds

law = settings(max_examples=amount(80, 1000))


def tokens() -> Iterator[str]:
    return (token(n) for n in range(100_000, 200_000))


def books_of(world: Observation) -> Ledger:
    assert world.ledger is not None
    return world.ledger


def decide(world: Observation, request: WorkerRequest) -> Plan:
    return plan_workers(books_of(world), world, request, tokens())


def any_plans(world: Observation, request: WorkerRequest) -> list[Plan]:
    """What every planner makes of a world."""
    books = books_of(world)
    found = [
        decide(world, request),
        plan_upkeep(books, world),
        plan_addition(books, world, WORKER_SHAPE, [token(200_000)], 10**6),
        plan_end(world, SESSION),
    ]
    found += head_plans(world)
    try:
        found.append(plan_head(world, SESSION, WORKER_SHAPE, WORKER_SHAPE, tokens()))
    except SessionClosing:
        assert world.closing
    return found


def head_plans(world: Observation) -> list[Plan]:
    """What the planners of heads make of a world."""
    books = books_of(world)
    return [
        plan_ensure_head(books, world, tokens()),
        plan_promotion(books, world, token(200_001)),
        plan_successor(books, world, WORKER_SHAPE, [token(200_002)], 200),
    ]


def everything(plan: Plan) -> dict[str, AllocationRecord]:
    """Records of the new ledger and those that it sends to the history."""
    gone = [r for effect in effects(plan, Archive) for r in effect.records]
    return {r.slurm_job_id: r for r in (*plan.ledger.records(), *gone)}


@law
@given(worlds(), requests())
def test_a_deadline_is_never_changed_or_lost(world: Observation, request: WorkerRequest) -> None:
    for plan in any_plans(world, request):
        after = everything(plan)
        for before in books_of(world).records():
            assert before.slurm_job_id in after, "no record is ever lost"
            if before.drain_deadline is not None:
                assert after[before.slurm_job_id].drain_deadline == before.drain_deadline


@law
@given(worlds(), requests())
def test_every_deadline_of_an_effect_is_in_the_ledger_of_the_same_plan(
    world: Observation, request: WorkerRequest
) -> None:
    for plan in any_plans(world, request):
        deadlines = {r.token: r.drain_deadline for r in plan.ledger.records()}
        for drain in effects(plan, Drain):
            assert drain.deadline == deadlines[drain.token]
            assert drain.remaining_seconds == max(0, drain.deadline - world.login_clock)
        for job_id in (*plan.released, *plan.expired):
            found = plan.ledger.record(job_id)
            assert found is not None
            assert found.drain_deadline is not None
            assert found.drain_deadline > world.login_clock


@law
@given(worlds(), requests())
def test_tokens_of_submissions_are_new_and_in_the_ledger(world: Observation, request: WorkerRequest) -> None:
    books = books_of(world)
    old = {r.token for r in books.records()} | set(books.worker_submissions) | set(books.revoked_tokens)
    for plan in any_plans(world, request):
        for submit in effects(plan, Submit):
            assert submit.token not in old
            opened = plan.ledger.worker_submissions[submit.token]
            assert (opened.role, opened.intent, opened.shape) == (submit.role, submit.intent, submit.shape)
            assert submit.shape in plan.ledger.shapes
        tokens_of_submits = [submit.token for submit in effects(plan, Submit)]
        assert len(tokens_of_submits) == len(set(tokens_of_submits))


@law
@given(worlds(), requests())
def test_no_submission_is_ever_forgotten_without_a_trace(world: Observation, request: WorkerRequest) -> None:
    for plan in any_plans(world, request):
        known = {r.token for r in everything(plan).values()}
        known |= set(plan.ledger.worker_submissions) | set(plan.ledger.revoked_tokens)
        assert set(books_of(world).worker_submissions) <= known
        for effect in effects(plan, Forget):
            assert not set(effect.tokens) & set(plan.ledger.worker_submissions), "a marker stays while it is open"
        for effect in effects(plan, Revoke):
            assert effect.token in books_of(world).worker_submissions


@law
@given(worlds(), requests())
def test_budget_and_limits_are_kept(world: Observation, request: WorkerRequest) -> None:
    plan = decide(world, request)
    submitted = effects(plan, Submit)
    if request.max_submissions is not None:
        assert len(submitted) <= request.max_submissions
    assert len(submitted) <= request.submissions_per_call
    for intent in request.intents:
        mine = [s for s in submitted if s.intent == intent.key]
        counted = [r for r in plan.ledger.records() if r.intent == intent.key and r.slurm_job_id in plan.live]
        opened = [s for s in plan.ledger.worker_submissions.values() if s.intent == intent.key]
        if mine:
            assert len(counted) + len(opened) <= intent.count
    if submitted:
        alive = [r for r in plan.ledger.records() if condition_of(r, world).live is not False and r.final_state is None]
        assert len(alive) + len(plan.ledger.worker_submissions) <= request.live_per_session


@law
@given(worlds(), requests())
def test_uncertainty_never_submits_or_releases_by_a_count(world: Observation, request: WorkerRequest) -> None:
    plan = decide(world, request)
    if world.closing or not world.listing.answered:
        assert not plan.changes(books_of(world))
        assert (plan.released, plan.expired) == ((), ())
        said = [reason.code for reason in plan.held_back]
        assert ("closing" if world.closing else "scheduler_silent") in said
    unknown = {r.slurm_job_id for r in books_of(world).records() if condition_of(r, world).live is None}
    assert not unknown & {*plan.released, *plan.expired}
    assert not any(unknown & set(cancel.slurm_job_ids) for cancel in effects(plan, Cancel))


@law
@given(worlds(), requests())
def test_unknown_is_never_read_as_ended(world: Observation, request: WorkerRequest) -> None:
    for plan in any_plans(world, request):
        for before in books_of(world).records():
            after = everything(plan)[before.slurm_job_id]
            if condition_of(before, world).live is None:
                assert after.final_state == before.final_state
                assert after.ended_at == before.ended_at
    snapshot = build_snapshot(books_of(world), world)
    for allocation in snapshot.allocations:
        assert (allocation.state is None) == (allocation.committed is None)
        if not world.listing.answered:
            assert allocation.state is None
            assert allocation.ready is None


@law
@given(worlds(), requests())
def test_a_count_releases_only_what_the_snapshot_contains_and_never_a_leader(
    world: Observation, request: WorkerRequest
) -> None:
    plan = decide(world, request)
    asked = {intent.key for intent in request.intents}
    for job_id in (*plan.released, *plan.expired):
        found = plan.ledger.record(job_id)
        assert found is not None
        assert found.intent in asked
        assert not books_of(world).leads(job_id)
        if request.seen is not None and job_id in plan.released and job_id not in request.release:
            assert job_id in request.seen.slurm_job_ids
    assert len(set(plan.released)) == len(plan.released)
    assert not set(plan.released) & set(plan.live)


@law
@given(worlds(), st.integers(0, 6))
def test_scale_in_takes_a_prefix_of_the_documented_order(world: Observation, count: int) -> None:
    plan = decide(world, WorkerRequest(intents=(WorkerIntent("a", count),)))
    candidates = [
        (r, c)
        for r in plan.ledger.records()
        if (c := condition_of(r, world)).live and r.intent == "a" and not books_of(world).leads(r.slurm_job_id)
    ]
    before = {r.slurm_job_id: r for r in books_of(world).records()}
    open_to_go = [
        (r, c)
        for r, c in candidates
        if before.get(r.slurm_job_id) is None or before[r.slurm_job_id].drain_deadline is None
    ]

    def place(item: tuple[AllocationRecord, Any]) -> tuple[Any, ...]:
        found, condition = item
        if state_class(condition.state) is StateClass.PENDING:
            return (0, -(found.submitted_at or condition.job.submitted_at or 0), -int(found.slurm_job_id))
        left = condition.job.time_left_seconds
        return (1, left is None, left or 0, -int(found.slurm_job_id))

    expected = [r.slurm_job_id for r, _ in sorted(open_to_go, key=place)]
    assert list(plan.released) == expected[: len(plan.released)]


@law
@given(worlds(), requests())
def test_the_next_attempt_of_a_call_adds_nothing_to_what_was_done(world: Observation, request: WorkerRequest) -> None:
    first = decide(world, request)
    request = attrs.evolve(
        request,
        own_tokens=request.own_tokens.union(submit.token for submit in effects(first, Submit)),
        own_expired=request.own_expired.union(first.expired),
    )
    second = decide(attrs.evolve(world, ledger=first.ledger), request)
    assert not effects(second, Submit)
    assert (second.released, second.expired, second.adopted) == ((), (), ())
    assert second.live == first.live


@law
@given(worlds(), requests())
def test_every_plan_is_a_ledger_that_can_be_stored_and_keeps_what_it_does_not_know(
    world: Observation, request: WorkerRequest
) -> None:
    for plan in any_plans(world, request):
        assert read_ledger(plan.ledger.to_bytes(), path="plan") == plan.ledger
        assert plan.ledger.extra == books_of(world).extra
        notes = {r.slurm_job_id: r.extra for r in everything(plan).values()}
        assert all(notes[r.slurm_job_id] == r.extra for r in books_of(world).records())


@law
@given(worlds(), requests())
def test_the_same_input_gives_the_same_plan(world: Observation, request: WorkerRequest) -> None:
    assert decide(world, request) == decide(world, request)


# -- on the simulated site ---------------------------------------------------------------------------


def site_with_head() -> SimulatedSite:
    site = SimulatedSite(SimulatedScheduler())
    shape = EffectiveShape(partition="main", time_limit="1-00:00:00")
    outcome = carry_out(site, lambda o: plan_head(o, "sim", shape, WORKER_SHAPE, fresh_tokens()), pause=lambda _: None)
    assert outcome.ledger.head is not None
    site.start_job(outcome.ledger.head.slurm_job_id)
    return site


@law
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=5))
def test_planning_again_after_a_call_changes_nothing_more(calls: list[tuple[int, int]]) -> None:
    """The first look after a call may note how cancelled jobs ended; after that there is nothing to do."""
    site = site_with_head()
    for count, starting in calls:
        request = WorkerRequest(intents=(WorkerIntent("a", count, drain_timeout=30),))

        def call(request: WorkerRequest = request) -> Any:
            return carry_out(
                site,
                lambda o: plan_workers(books_of(o), o, request, fresh_tokens()),
                pause=lambda _: None,
            )

        assert len(call().ledger.records()) == len(site.scheduler.jobs)
        noting = call()
        assert (noting.submitted, noting.released, noting.plan.effects) == ((), (), ())
        stored, steps = site.files.ledger, len(site.steps)
        idle = call()
        assert not idle.plan.changes(site.observe().ledger)
        assert (site.files.ledger, len(site.steps)) == (stored, steps), "nothing to do takes no lock"
        waiting = [j.slurm_job_id for j in site.scheduler.jobs.values() if j.state == "PENDING"]
        for job_id in waiting[:starting]:
            site.start_job(job_id)
