"""The session's hooks over the simulated site: what a user calls and reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from dagster_slurm.allocations.config import SlurmWorkerAllocationConfig
from dagster_slurm.allocations.estimate import StartEstimate
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.lifecycle import plan_head
from dagster_slurm.allocations.settings import SessionSettings
from dagster_slurm.errors import ConfigurationError, SessionNotFound, SubmissionRefused
from dagster_slurm.remote.shell import RemoteShell
from dagster_slurm.session.commit_loop import carry_out, fresh_tokens
from dagster_slurm.session.session import AllocationSession
from dagster_slurm.testing.scheduler import SimulatedScheduler
from dagster_slurm.testing.simulation import SimulatedSite
from dagster_slurm_tests.builders import HEAD_SHAPE, WORKER_SHAPE

KEY = "gpu-helpers"


class NoShell:
    """Stands where the login node would; these hooks reach it through their site only."""

    address = "simulated"


class Run:
    """A session whose head runs, and the cluster it is on."""

    def __init__(self, **limits: int) -> None:
        self.scheduler = SimulatedScheduler()
        self.site = SimulatedSite(self.scheduler)
        settings = SessionSettings(session_id="sim", session_dir="/base/sessions/sim")
        self.session = AllocationSession(cast("RemoteShell", NoShell()), self.site, settings, **limits)
        carry_out(self.site, lambda o: plan_head(o, "sim", HEAD_SHAPE, WORKER_SHAPE, fresh_tokens()))
        self.site.start_job("1")

    def start(self, *job_ids: str) -> None:
        for job_id in job_ids:
            self.site.start_job(job_id)


@pytest.fixture
def run() -> Run:
    return Run()


def test_one_reconciliation_step_as_in_the_documentation(run: Run) -> None:
    snapshot = run.session.inspect()
    assert (snapshot.head.slurm_job_id, snapshot.certain, snapshot.workers()) == ("1", True, ())
    result = run.session.reconcile_workers(
        WorkerIntent(
            key=KEY,
            count=3,
            config=SlurmWorkerAllocationConfig(partition="gpu-a", gpus_per_node=2, time_limit="01:00:00"),
            drain_timeout=600,
            pending_timeout=120,
        ),
        observed=snapshot,
    )
    assert result.submitted == result.live == ("2", "3", "4")
    assert (result.released, result.expired, result.recovered) == ((), (), ())
    assert not result.held_back
    after = run.session.inspect()
    assert [w.slurm_job_id for w in after.workers(KEY)] == ["2", "3", "4"]
    assert {w.submitted_at for w in after.workers()} == {run.scheduler.now}
    assert {w.requested_gpus_per_node for w in after.workers()} == {2}
    run.start("2", "3")
    shrunk = run.session.reconcile_workers(WorkerIntent(KEY, 1, drain_timeout=600), observed=after)
    assert shrunk.released == ("4", "3")
    assert shrunk.live == ("2",)


def test_a_stale_snapshot_submits_nothing_and_releases(run: Run) -> None:
    snapshot = run.session.inspect()
    run.session.reconcile_workers(WorkerIntent(KEY, 1))
    run.start("2")
    run.scheduler.advance(301)
    held = run.session.reconcile_workers(WorkerIntent(KEY, 2), observed=snapshot)
    assert held.held_back.codes == ("observation_stale",)
    assert held.submitted == ()
    assert held.live == ("2",)
    longer = run.session.reconcile_workers(WorkerIntent(KEY, 2), observed=snapshot, max_observation_age=400)
    assert longer.submitted == ("3",)
    unseen = run.session.reconcile_workers(WorkerIntent(KEY, 0), observed=snapshot)
    assert unseen.released == (), "neither was in the snapshot"
    assert run.session.reconcile_workers(WorkerIntent(KEY, 0), observed=run.session.inspect()).released == ("3", "2")


def test_max_submissions_and_limits(run: Run) -> None:
    none = run.session.reconcile_workers(WorkerIntent(KEY, 2), max_submissions=0)
    assert (none.submitted, none.held_back.codes) == ((), ("budget",))
    small = Run(submissions_per_call=2, live_per_session=4)
    assert small.session.reconcile_workers(WorkerIntent(KEY, 9)).submitted == ("2", "3")
    last = small.session.reconcile_workers(WorkerIntent(KEY, 9))
    assert last.submitted == ("4",)
    assert set(last.held_back.codes) == {"limit"}


def test_named_releases_take_numbers_and_texts_and_are_repeatable(run: Run) -> None:
    run.session.reconcile_workers(WorkerIntent(KEY, 2))
    run.start("2", "3")
    release: list[Any] = [2, "999"]
    first = run.session.reconcile_workers(WorkerIntent(KEY, 1), release=release)
    assert (first.released, first.submitted, first.live) == (("2",), (), ("3",))
    deadline = {w.slurm_job_id: w.drain_deadline for w in run.session.inspect().workers()}["2"]
    run.scheduler.advance(50)
    again = run.session.reconcile_workers(WorkerIntent(KEY, 1), release=release)
    assert again.released == ()
    assert {w.slurm_job_id: w.drain_deadline for w in run.session.inspect().workers()}["2"] == deadline
    with pytest.raises(ConfigurationError) as raised:
        run.session.reconcile_workers(WorkerIntent(KEY, 1), release="23")
    assert raised.value.field == "release"


def test_a_deadline_that_passed_is_enforced_by_the_next_call(run: Run) -> None:
    run.session.reconcile_workers(WorkerIntent(KEY, 1))
    run.start("2")
    run.session.reconcile_workers(WorkerIntent(KEY, 0, drain_timeout=30))
    run.scheduler.advance(89)
    run.session.reconcile_workers([])
    assert run.scheduler.jobs["2"].state == "RUNNING"
    run.scheduler.advance(1)
    run.session.reconcile_workers([])
    assert run.scheduler.jobs["2"].state == "CANCELLED"


def test_several_intents_in_one_call(run: Run) -> None:
    result = run.session.reconcile_workers([WorkerIntent("a", 1), WorkerIntent("b", 2)])
    assert result.submitted == result.live == ("2", "3", "4")
    snapshot = run.session.inspect()
    assert [len(snapshot.workers(key)) for key in ("a", "b", "c")] == [1, 2, 0]


def test_A_2_silence_is_held_back_and_everything_counts_as_before(run: Run) -> None:
    run.session.reconcile_workers(WorkerIntent(KEY, 2))
    run.scheduler.silent = True
    result = run.session.reconcile_workers(WorkerIntent(KEY, 3))
    assert (result.submitted, result.live) == ((), ("2", "3"))
    assert result.held_back.codes == ("scheduler_silent",)
    assert not run.session.inspect().certain


def test_an_added_worker_is_never_counted_or_released(run: Run) -> None:
    added = run.session.add_worker_allocation(SlurmWorkerAllocationConfig(time_limit="10"))
    assert (added.slurm_job_id, added.role) == ("2", "worker")
    result = run.session.reconcile_workers(WorkerIntent(KEY, 0))
    assert (result.released, result.live) == ((), ())
    (found,) = run.session.inspect().workers()
    assert (found.intent, found.submitted_at, found.time_limit_seconds) == (None, None, 600)


def test_an_added_worker_in_doubt_has_no_id_and_one_refused_is_an_error(run: Run) -> None:
    run.scheduler.submission_answers = ["lost"]
    doubt = run.session.add_worker_allocation()
    assert doubt.slurm_job_id is None
    assert "Socket timed out" in str(doubt.message)
    assert run.session.reconcile_workers([]).recovered == ("2",)
    run.scheduler.submission_answers = ["refused"]
    with pytest.raises(SubmissionRefused, match="QOSMaxSubmitJobPerUserLimit"):
        run.session.add_worker_allocation()
    run.scheduler.silent = True
    with pytest.raises(SubmissionRefused, match="The scheduler did not answer"):
        run.session.add_worker_allocation()


def test_the_end_cancels_everything_and_nothing_starts_after_it(run: Run) -> None:
    run.session.reconcile_workers(WorkerIntent(KEY, 2))
    run.session.add_worker_allocation()
    assert run.session.known_jobs == ("1", "2", "3", "4")
    run.start("2")
    result = run.session.end()
    assert result.complete
    assert not any(job.live for job in run.scheduler.jobs.values())
    held = run.session.reconcile_workers(WorkerIntent(KEY, 2))
    assert held.held_back.codes == ("closing",)
    with pytest.raises(SubmissionRefused, match="ending"):
        run.session.add_worker_allocation()
    assert run.session.end().complete


def test_an_end_that_is_not_complete_names_what_is_left(run: Run) -> None:
    run.scheduler.submission_answers = ["late"]
    run.session.reconcile_workers(WorkerIntent(KEY, 1))
    result = run.session.end(timeout_seconds=0)
    assert (result.complete, result.unresolved) == (False, 1)
    run.scheduler.deliver_late()
    assert run.session.end(timeout_seconds=5).complete


def test_a_session_without_records_is_a_typed_error() -> None:
    settings = SessionSettings(session_id="none", session_dir="/base/sessions/none")
    session = AllocationSession(cast("RemoteShell", NoShell()), SimulatedSite(SimulatedScheduler()), settings)
    for call in (session.inspect, lambda: session.reconcile_workers(WorkerIntent(KEY, 1)), session.worker_shape):
        with pytest.raises(SessionNotFound, match="no records in /base/sessions/none on simulated"):
            call()
    assert session.known_jobs == ()


def test_shapes_and_options_are_those_of_a_submission(run: Run) -> None:
    config = SlurmWorkerAllocationConfig(gpus_per_node=2)
    assert run.session.worker_shape(config).partition == "main"
    assert run.session.worker_shape().time_limit_seconds == 3600
    (options,) = run.session.worker_sbatch_options([config])
    assert "--gpus-per-node=2" in options
    assert any(option.endswith("dagster-sim") for option in options)


def test_any_object_with_an_estimate_method_serves(run: Run) -> None:
    class Calendar:
        def estimate(
            self, session: AllocationSession, candidates: Sequence[SlurmWorkerAllocationConfig]
        ) -> list[StartEstimate]:
            assert session is run.session
            return [
                StartEstimate(config=c, start_in_seconds=7, time_limit_seconds=None, error=None) for c in candidates
            ]

    config = SlurmWorkerAllocationConfig()
    (found,) = run.session.estimate_worker_starts([config], estimator=Calendar())
    assert (found.config, found.start_in_seconds) == (config, 7)


def test_a_plan_is_what_the_call_then_does_and_does_nothing_itself(run: Run) -> None:
    run.session.reconcile_workers(WorkerIntent(KEY, 2))
    before = run.site.files.ledger
    plan = run.session.plan_workers(WorkerIntent(KEY, 4), max_submissions=1)
    assert run.site.files.ledger == before
    assert len(plan.of("submit")) == 1
    assert plan.held_back.codes == ("budget",)
    result = run.session.reconcile_workers(WorkerIntent(KEY, 4), max_submissions=1)
    assert len(result.submitted) == 1
    assert result.held_back == plan.held_back
    gone = run.session.plan_workers([WorkerIntent(KEY, 1)], release=[plan.live[0]])
    released = run.session.reconcile_workers([WorkerIntent(KEY, 1)], release=[plan.live[0]]).released
    assert tuple(planned.slurm_job_id for planned in gone.of("release")) == released


def test_removing_one_gives_it_its_deadline_once(run: Run) -> None:
    (job,) = run.session.reconcile_workers(WorkerIntent(KEY, 1)).submitted
    run.start(job)
    first = run.session.remove_worker_allocation(job, drain_timeout=30)
    assert first.drain_deadline == run.scheduler.now + 90
    run.scheduler.advance(5)
    assert run.session.remove_worker_allocation(job, drain_timeout=900) == first
    assert run.session.remove_worker_allocation("1").held_back.code == "leads"  # type: ignore[union-attr]
    missing = run.session.remove_worker_allocation("77")
    assert (missing.drain_deadline, missing.held_back.code) == (None, "not_found")  # type: ignore[union-attr]
    with pytest.raises(ConfigurationError, match="drain_timeout must be a number of seconds of at least 0"):
        run.session.remove_worker_allocation(job, drain_timeout=-1)


def test_the_sessions_limit_holds_for_one_that_is_added() -> None:
    small = Run(live_per_session=2)
    assert small.session.add_worker_allocation().slurm_job_id is not None
    with pytest.raises(SubmissionRefused, match="at most 2 live allocations"):
        small.session.add_worker_allocation()
