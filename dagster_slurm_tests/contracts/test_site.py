"""What a site promises to the planners: the same assertions hold for the simulated one and for the real Slurm.

So what is shown with the simulated scheduler is shown about something that behaves like the real one.
"""

from __future__ import annotations

import pytest

from dagster_slurm.allocations.observation import Fate, tokens_of
from dagster_slurm.allocations.plan import Cancel, Close, CommitRefused, Committed, Drain, Forget, Revoke
from dagster_slurm.slurm.states import StateClass, state_class
from dagster_slurm_tests.contracts.worlds import World, commit, known, reconcile, row, submit
from dagster_slurm_tests.sessions import until

# -- submitting --------------------------------------------------------------------------------------


def test_a_submitted_job_is_listed_pending_with_its_token(world: World) -> None:
    job_id = submit(world, held=True)
    observation = world.site.observe()
    (record,) = known(observation).workers
    job = row(world, job_id)
    assert observation.listing.answered
    assert (job.name, job.state, job.reason) == (world.job_name, "PENDING", "JobHeldUser")
    assert (job.time_left_seconds, job.time_limit_seconds, job.nodes) == (None, 600, ())
    assert tokens_of(job) == {record.token}
    assert job.command is not None
    assert record.token in job.command
    assert job.submitted_at is not None
    assert record.submitted_at is not None
    assert abs(job.submitted_at - record.submitted_at) <= 5
    assert not observation.traces, "what is recorded is not open"


def test_a_started_job_runs_on_nodes_and_has_claimed_its_fate(world: World) -> None:
    with world.answering("lost") as site:
        reconcile(site, 1)
    (token,) = known(world.site.observe()).worker_submissions
    (job,) = [job for job in world.site.observe().listing.jobs if token in tokens_of(job)]
    world.start(job.slurm_job_id)
    until(lambda: world.site.observe().traces[token].fate is Fate.STARTED, "the fate claimed")
    started = row(world, job.slurm_job_id)
    assert started.state == "RUNNING"
    assert world.site.observe().traces[token].started_job_id == job.slurm_job_id
    assert started.nodes
    assert started.time_left_seconds is not None
    assert 0 < started.time_left_seconds <= 600
    assert started.reason is None


def test_a_refused_submission_makes_no_job(world: World) -> None:
    before = {job.slurm_job_id for job in world.site.observe().listing.jobs}
    with world.answering("refused") as site:
        outcome = reconcile(site, 1)
    assert outcome.submitted == ()
    assert [reason.code for reason in outcome.held_back] == ["refused"]
    assert "QOSMaxSubmitJobPerUserLimit" in str(outcome.held_back[0])
    observation = world.site.observe()
    assert {job.slurm_job_id for job in observation.listing.jobs} == before
    assert not known(observation).worker_submissions


@pytest.mark.fault("F4")
def test_a_lost_answer_leaves_a_job_that_its_token_finds(world: World) -> None:
    with world.answering("lost") as site:
        doubtful = reconcile(site, 1)
    assert (doubtful.submitted, [reason.code for reason in doubtful.held_back]) == ((), ["unresolved"])
    observation = world.site.observe()
    (token,) = known(observation).worker_submissions
    assert token in observation.traces
    (job,) = [job for job in observation.listing.jobs if token in tokens_of(job)]
    assert reconcile(world.site, 1).recovered == (job.slurm_job_id,)


@pytest.mark.fault("F4")
def test_a_submission_without_any_effect_stays_open(world: World) -> None:
    with world.answering("nothing") as site:
        reconcile(site, 1)
    assert reconcile(world.site, 1).submitted == ()
    observation = world.site.observe()
    (token,) = known(observation).worker_submissions
    assert observation.traces[token].fate is Fate.SENT
    assert not [job for job in observation.listing.jobs if token in tokens_of(job)]


@pytest.mark.fault("F4")
def test_a_late_job_of_a_dropped_submission_does_nothing(world: World) -> None:
    with world.answering("late") as site:
        reconcile(site, 1)
    (token,) = known(world.site.observe()).worker_submissions
    answer = commit(world.site, Revoke(token, Fate.SENT))
    assert isinstance(answer, Committed)
    assert answer.revoked == {token: True}
    world.late_arrive()
    (job,) = [job for job in world.site.observe().listing.jobs if token in tokens_of(job)]
    world.start(job.slurm_job_id)
    until(lambda: world.state(job.slurm_job_id) == "COMPLETED", "the late job ended by itself")
    assert world.site.observe().traces[token].fate is Fate.REVOKED


def test_a_submission_that_started_cannot_be_dropped(world: World) -> None:
    with world.answering("lost") as site:
        reconcile(site, 1)
    (token,) = known(world.site.observe()).worker_submissions
    (job,) = [job for job in world.site.observe().listing.jobs if token in tokens_of(job)]
    world.start(job.slurm_job_id)
    until(lambda: world.site.observe().traces[token].fate is Fate.STARTED, "the fate claimed")
    answer = commit(world.site, Revoke(token, Fate.SENT))
    assert isinstance(answer, Committed)
    assert answer.revoked == {token: False}
    assert world.state(job.slurm_job_id) == "RUNNING"


# -- cancelling and ending ---------------------------------------------------------------------------


def test_cancelling_what_is_pending_leaves_a_running_job_alone(world: World) -> None:
    running, pending = submit(world), submit(world, held=True)
    world.start(running)
    commit(world.site, Cancel((running, pending), only_pending=True))
    until(lambda: world.state(pending) == "CANCELLED", "the pending one cancelled")
    assert row(world, running).state == "RUNNING"


def test_a_cancelled_job_stays_in_the_listing_as_ended(world: World) -> None:
    running = submit(world)
    world.start(running)
    commit(world.site, Cancel((running,), only_pending=False))
    until(lambda: state_class(row(world, running).state or "") is StateClass.ENDED, "the job ended")
    until(lambda: row(world, running).state != "COMPLETING", "its end is final")
    ended = row(world, running)
    assert ended.state in ("CANCELLED", "COMPLETED"), "the stub ends by itself when it is told to"
    assert (ended.time_left_seconds, ended.reason, ended.expected_start_at) == (None, None, None)


def test_K_3_cancelling_ended_and_unknown_jobs_is_no_failure(world: World) -> None:
    job_id = submit(world, held=True)
    for _ in range(2):
        answer = commit(world.site, Cancel((job_id, "999999"), only_pending=False))
        assert isinstance(answer, Committed)
        assert answer.skipped == 0
        until(lambda: world.state(job_id) == "CANCELLED", "cancelled")


# The real one takes a minute to purge a job.
@pytest.mark.fault("F8")
@pytest.mark.parametrize(
    "world", ["simulated", pytest.param("real", marks=[pytest.mark.integration, pytest.mark.slow])], indirect=True
)
def test_an_ended_job_vanishes_and_accounting_names_its_end(world: World) -> None:
    job_id = submit(world)
    world.start(job_id)
    world.finish(job_id)
    assert row(world, job_id).state == "COMPLETED"
    world.forget_ended(job_id)
    assert world.site.observe().listed(job_id) is None
    until(lambda: world.account(job_id).rows[job_id].state == "COMPLETED", "accounting names the end")
    account = world.account(job_id)
    assert account.answered
    assert account.rows[job_id].name == world.job_name
    outcome = reconcile(world.site, 0)
    record = outcome.ledger.record(job_id)
    assert record is not None
    assert record.final_state == "COMPLETED"


@pytest.mark.fault("F16")
def test_L_2_a_requeued_job_is_the_same_job(world: World) -> None:
    job_id = submit(world)
    world.start(job_id)
    before = row(world, job_id)
    world.requeue(job_id)
    after = row(world, job_id)
    assert after.state is not None
    assert state_class(after.state) is StateClass.PENDING
    assert after.comment == before.comment
    assert after.submitted_at is not None
    assert before.submitted_at is not None
    assert after.submitted_at >= before.submitted_at
    assert (after.time_left_seconds, after.nodes) == (None, ())
    outcome = reconcile(world.site, 1)
    assert (outcome.submitted, outcome.plan.live) == ((), (job_id,))


def test_a_job_that_somebody_renamed_is_found_by_its_id(world: World) -> None:
    job_id = submit(world, held=True)
    world.rename(job_id)
    job = row(world, job_id)
    assert job.name != world.job_name
    assert job.state == "PENDING"
    outcome = reconcile(world.site, 1)
    assert (outcome.submitted, outcome.plan.live) == ((), (job_id,))


def test_foreign_jobs_are_neither_listed_nor_cancelled(world: World) -> None:
    other_name, other_user = world.strangers()
    observation = world.site.observe()
    assert not {other_name, other_user} & {job.slurm_job_id for job in observation.listing.jobs}
    commit(world.site, Cancel((other_name, other_user), only_pending=False))
    commit(world.site, Close(), even_if_closing=True)
    until(
        lambda: all(state_class(j.state or "") is StateClass.ENDED for j in world.site.observe().listing.jobs),
        "everything of ours ended",
    )
    assert (world.state(other_name), world.state(other_user)) == ("PENDING", "PENDING")


def test_closing_marks_the_session_and_cancels_by_name(world: World) -> None:
    running, pending = submit(world), submit(world, held=True)
    world.start(running)
    answer = commit(world.site, Close(), even_if_closing=True)
    assert isinstance(answer, Committed)
    assert world.site.observe().closing
    for job_id in (running, pending):
        until(lambda job_id=job_id: world.state(job_id) in ("CANCELLED", "COMPLETED"), "ended")  # type: ignore[misc]
    refused = commit(world.site, Forget(()))
    assert isinstance(refused, CommitRefused)
    assert refused.code == "closing"


# -- committing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "code"),
    [({"expected_sha256": "0" * 64}, "changed"), ({"observed_at": 1_000}, "stale"), ({"observed_at": 2**33}, "stale")],
)
def test_a_commit_on_other_grounds_is_refused_and_has_done_nothing(
    world: World, changed: dict[str, object], code: str
) -> None:
    job_id = submit(world, held=True)
    before = world.site.observe()
    answer = commit(world.site, Cancel((job_id,), only_pending=False), **changed)
    assert isinstance(answer, CommitRefused)
    assert answer.code == code
    assert answer.observation.ledger_sha256 == before.ledger_sha256
    assert world.state(job_id) == "PENDING"
    assert isinstance(commit(world.site, Forget(())), Committed)


def test_a_drain_is_seen_by_the_next_look(world: World) -> None:
    job_id = submit(world)
    world.start(job_id)
    record = known(world.site.observe()).record(job_id)
    assert record is not None
    deadline = world.site.observe().login_clock + 90
    commit(world.site, Drain(record.token or "", job_id, deadline, 90))
    assert world.site.observe().drains == {record.token}
