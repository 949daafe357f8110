"""A session on a real Slurm: what its methods do, seen from outside."""

from __future__ import annotations

import json
from collections.abc import Iterator

import attrs
import pytest

from dagster_slurm.allocations.config import SlurmWorkerAllocationConfig
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.snapshot import AllocationSnapshot, SessionSnapshot
from dagster_slurm.errors import SessionClosing, SessionRecordsLost, SubmissionRefused
from dagster_slurm_tests.cluster import NodeGroup, SlurmBox
from dagster_slurm_tests.sessions import HELD, Observer, Place, make_place, until

LONGER = SlurmWorkerAllocationConfig(time_limit="00:20:00")


def worker(snapshot: SessionSnapshot, slurm_job_id: str) -> AllocationSnapshot:
    return next(w for w in snapshot.workers() if w.slurm_job_id == slurm_job_id)


def deadline(observer: Observer, slurm_job_id: str) -> int | None:
    records = {record["slurm_job_id"]: record["drain_deadline"] for record in observer.ledger()["workers"]}
    found: int | None = records[slurm_job_id]
    return found


def all_run(observer: Observer, jobs: list[str]) -> None:
    until(lambda: all(observer.queue().get(job) == "RUNNING" for job in jobs), f"{jobs} run")


# -- observing ---------------------------------------------------------------------------------------


def test_inspect_tells_what_the_scheduler_says(box: SlurmBox, place: Place, observer: Observer) -> None:
    session = place.create_running()
    running = session.add_worker_allocation()
    (pending,) = session.reconcile_workers(WorkerIntent("w", 1, HELD)).submitted
    assert running.slurm_job_id is not None
    head = observer.ledger()["head"]["slurm_job_id"]
    all_run(observer, [head, running.slurm_job_id])
    snapshot = session.inspect()

    assert snapshot.certain
    assert (snapshot.head.slurm_job_id, snapshot.head.state, snapshot.head.committed) == (head, "RUNNING", True)
    assert {w.slurm_job_id for w in snapshot.workers()} == {running.slurm_job_id, pending}
    seen = worker(snapshot, running.slurm_job_id)
    assert (seen.state, seen.reason, seen.intent, seen.submitted_at) == ("RUNNING", None, None, None)
    assert seen.partition == "cpu"
    assert seen.time_limit_seconds == 600
    assert seen.time_left_seconds is not None
    assert 0 < seen.time_left_seconds <= 600
    node = box.run(["squeue", "--noheader", f"--jobs={running.slurm_job_id}", "--format=%N"]).stdout.strip()
    assert seen.nodes == (node,)
    # The stub reports nothing: not observed is None, never False.
    assert (seen.ready, seen.ray_nodes) == (None, None)
    waiting = worker(snapshot, pending)
    assert (waiting.state, waiting.reason, waiting.intent) == ("PENDING", "JobHeldUser", "w")
    assert waiting.time_left_seconds is None
    assert waiting.submitted_at is not None
    assert abs(waiting.submitted_at - snapshot.observed_at) <= 60
    assert waiting.committed is True


def test_inspect_tells_how_an_allocation_ended(box: SlurmBox, place: Place, observer: Observer) -> None:
    session = place.create()
    (job,) = session.reconcile_workers(WorkerIntent("w", 1, HELD)).submitted
    box.run(["scancel", job])
    until(lambda: job not in observer.queue(), "job cancelled")
    seen = worker(session.inspect(), job)
    assert (seen.state, seen.committed, seen.reason, seen.time_left_seconds) == ("CANCELLED", False, None, None)
    # The ledger has it for good, also when the scheduler has forgotten it.
    assert session.reconcile_workers(WorkerIntent("w", 0)).live == ()
    assert observer.ledger()["workers"][0]["final_state"] == "CANCELLED"


def test_B_6_job_that_left_the_queue_is_explained_by_accounting_and_without_it_ended() -> None:
    """On a box that forgets ended jobs after two seconds."""
    group = NodeGroup("cpu", count=1, default=True)
    with SlurmBox.start(groups=[group], min_job_age_seconds=2) as forgetful:
        place = make_place(forgetful, forgetful.fresh_base("accounting"))
        session, observer = place.create(), Observer(forgetful, place)

        def end_and_forget(job: str) -> None:
            forgetful.run(["scancel", job])
            listing = ["squeue", "--noheader", "--states=all", f"--name={place.job_name}", "--format=%A"]
            until(lambda: job not in forgetful.run(listing).stdout.split(), f"{job} forgotten", 90)

        first, second = session.reconcile_workers(WorkerIntent("w", 2, HELD)).submitted
        end_and_forget(first)
        accounted = ["sacct", "--noheader", "--allocations", f"--jobs={first}", "--format=State"]
        until(lambda: "CANCELLED" in forgetful.run(accounted).stdout, "the end in accounting")
        before = forgetful.ssh_command_count()
        snapshot = session.inspect()
        assert forgetful.ssh_command_count() == before + 2
        assert (worker(snapshot, first).state, worker(snapshot, first).committed) == ("CANCELLED", False)
        # Replaced once; then its end is recorded and accounting is not asked again.
        assert len(session.reconcile_workers(WorkerIntent("w", 2, HELD)).submitted) == 1
        before = forgetful.ssh_command_count()
        assert worker(session.inspect(), first).state == "CANCELLED"
        assert forgetful.ssh_command_count() == before + 1

        forgetful.kill_daemon("slurmdbd")
        end_and_forget(second)
        snapshot = session.inspect()
        assert snapshot.certain
        assert (worker(snapshot, second).state, worker(snapshot, second).committed) == ("ENDED", False)
        assert len(session.reconcile_workers(WorkerIntent("w", 2, HELD)).submitted) == 1
        observer.check()


def test_D_7_variables_of_the_users_profile_hide_no_job_and_change_no_command(place: Place, observer: Observer) -> None:
    names = {
        "SQUEUE_STATES": "RUNNING",
        "SQUEUE_PARTITION": "gpu-a",
        "SQUEUE_USERS": "root",
        "SQUEUE_FORMAT": "%i",
        "SBATCH_PARTITION": "gpu-a",
        "SBATCH_JOB_NAME": "another",
        "SCANCEL_STATE": "RUNNING",
        "SCANCEL_PARTITION": "gpu-a",
        "SLURM_TIME_FORMAT": "%H",
    }
    exports = "".join(f"\nexport {name}='{value}'" for name, value in names.items())
    session = attrs.evolve(place, remote_setup=place.remote_setup + exports).create()
    observer.mark()
    submitted = session.reconcile_workers(WorkerIntent("w", 2, HELD)).submitted
    assert sorted(submitted) == sorted(observer.accepted()) == sorted(observer.workers())
    assert session.reconcile_workers(WorkerIntent("w", 2, HELD)).submitted == ()
    assert {w.partition for w in session.inspect().workers("w")} == {"cpu"}
    assert len(session.reconcile_workers(WorkerIntent("w", 1, HELD)).released) == 1
    until(lambda: len(observer.workers()) == 1, "one released")
    assert session.end().complete
    assert observer.queue() == {}


# -- adding and reconciling --------------------------------------------------------------------------


def test_a_removed_allocation_is_cancelled_while_pending_and_drained_while_it_runs(
    place: Place, observer: Observer
) -> None:
    session = place.create_running()
    running = session.add_worker_allocation()
    (pending,) = session.reconcile_workers(WorkerIntent("w", 1, HELD)).submitted
    assert running.slurm_job_id is not None
    all_run(observer, [running.slurm_job_id])
    gone = session.remove_worker_allocation(pending)
    until(lambda: pending not in observer.queue(), "the pending one cancelled")
    drained = session.remove_worker_allocation(running.slurm_job_id, drain_timeout=0)
    assert None not in (gone.drain_deadline, drained.drain_deadline)
    assert (gone.held_back, drained.held_back) == (None, None)
    assert deadline(observer, running.slurm_job_id) == drained.drain_deadline
    assert observer.queue()[running.slurm_job_id] == "RUNNING"
    # Replaced unless the count is lowered, as the plan says.
    assert len(session.plan_workers(WorkerIntent("w", 1, HELD)).of("submit")) == 1
    observer.check()


def test_added_allocation_belongs_to_no_intent(place: Place, observer: Observer) -> None:
    session = place.create()
    observer.mark()
    added = session.add_worker_allocation(HELD)
    assert [added.slurm_job_id] == observer.accepted() == observer.recorded(None)
    result = session.reconcile_workers(WorkerIntent("w", 0))
    assert result.live == result.released == ()
    assert observer.accepted() == list(observer.workers())
    observer.check()


def test_several_intents_grow_in_one_call_and_are_idempotent(place: Place, observer: Observer) -> None:
    session = place.create()
    observer.mark()
    intents = [WorkerIntent("a", 2, HELD), WorkerIntent("b", 1, HELD)]
    result = session.reconcile_workers(intents)
    assert sorted(result.submitted) == sorted(result.live) == sorted(observer.accepted())
    assert (len(observer.recorded("a")), len(observer.recorded("b"))) == (2, 1)
    content = observer.ledger_bytes()
    again = session.reconcile_workers(intents)
    assert (again.submitted, sorted(again.live)) == ((), sorted(result.live))
    assert observer.ledger_bytes() == content
    observer.check()


def test_shrinking_releases_pending_first_then_least_time_left(place: Place, observer: Observer) -> None:
    session = place.create()
    (longer,) = session.reconcile_workers(WorkerIntent("w", 1, LONGER)).submitted
    (shorter,) = session.reconcile_workers(WorkerIntent("w", 2)).submitted
    (pending,) = session.reconcile_workers(WorkerIntent("w", 3, HELD)).submitted
    all_run(observer, [longer, shorter])

    assert session.reconcile_workers(WorkerIntent("w", 2)).released == (pending,)
    until(lambda: pending not in observer.queue(), "pending one cancelled")
    assert sorted(observer.workers()) == sorted([longer, shorter])

    before = session.inspect().observed_at
    result = session.reconcile_workers(WorkerIntent("w", 1, drain_timeout=300))
    assert (result.released, result.live) == ((shorter,), (longer,))
    due = deadline(observer, shorter)
    assert due is not None
    assert before + 360 <= due <= session.inspect().observed_at + 360
    token = next(r["token"] for r in observer.ledger()["workers"] if r["slurm_job_id"] == shorter)
    drain = json.loads((place.directory / "submissions" / token / "drain").read_text())
    assert drain["deadline"] == due
    assert 0 < drain["remaining_seconds"] <= 360
    until(lambda: shorter not in observer.queue(), "released one drained")
    assert observer.workers() == {longer: "RUNNING"}


def test_named_release_keeps_its_deadline_and_is_replaced_when_the_count_stays(
    place: Place, observer: Observer
) -> None:
    session = attrs.evolve(place, limits={"setup": "export STUB_IGNORES_DRAIN=yes"}).create()
    (sick, well) = session.reconcile_workers(WorkerIntent("w", 2)).submitted
    all_run(observer, [sick, well])
    head = observer.ledger()["head"]["slurm_job_id"]
    other = session.add_worker_allocation(HELD).slurm_job_id
    assert other is not None
    observer.mark()
    result = session.reconcile_workers(WorkerIntent("w", 2, HELD), release=[sick, "999999", head, other])
    assert result.released == (sick,)
    assert list(result.submitted) == observer.accepted()
    assert sorted(result.live) == sorted([well, *result.submitted])
    first = deadline(observer, sick)
    again = session.reconcile_workers(WorkerIntent("w", 2, HELD, drain_timeout=9999), release=[sick])
    assert (again.released, again.submitted) == ((), ())
    assert deadline(observer, sick) == first
    assert observer.queue()[sick] == "RUNNING"
    assert worker(session.inspect(), sick).drain_deadline == first


def test_allocation_pending_for_too_long_is_cancelled_and_replaced_by_the_next_call_only(
    place: Place, observer: Observer
) -> None:
    session = place.create()
    intent = WorkerIntent("w", 1, HELD, pending_timeout=1)
    (late,) = session.reconcile_workers(intent).submitted
    observer.mark()
    results = []

    def expired() -> bool:
        results.append(session.reconcile_workers(intent))
        return bool(results[-1].expired)

    until(expired, "the pending allocation expired")
    assert results[-1].expired == (late,)
    assert observer.accepted() == []
    until(lambda: late not in observer.queue(), "the expired allocation cancelled")
    following = session.reconcile_workers(attrs.evolve(intent, pending_timeout=None))
    assert list(following.submitted) == observer.accepted() == list(observer.workers())


def test_budget_bounds_what_one_call_submits(place: Place, observer: Observer) -> None:
    session = place.create()
    observer.mark()
    result = session.reconcile_workers(WorkerIntent("w", 3, HELD), max_submissions=1)
    assert len(result.submitted) == len(observer.accepted()) == 1
    assert result.held_back.codes == ("budget",)
    none = session.reconcile_workers(WorkerIntent("w", 3, HELD), max_submissions=0)
    assert (none.submitted, none.held_back.codes) == ((), ("budget",))
    assert len(observer.accepted()) == 1


def test_nothing_is_submitted_on_an_old_observation_or_another_head(place: Place, observer: Observer) -> None:
    session = place.create()
    session.reconcile_workers(WorkerIntent("w", 1, HELD))
    snapshot = session.inspect()
    observer.mark()
    old = attrs.evolve(snapshot, observed_at=snapshot.observed_at - 301)
    stale = session.reconcile_workers(WorkerIntent("w", 2, HELD), observed=old)
    assert (stale.submitted, stale.held_back.codes) == ((), ("observation_stale",))
    other = attrs.evolve(snapshot, head=attrs.evolve(snapshot.head, slurm_job_id="1"))
    changed = session.reconcile_workers(WorkerIntent("w", 2, HELD), observed=other)
    assert (changed.submitted, changed.held_back.codes) == ((), ("head_changed",))
    assert observer.accepted() == []
    # Releases go on.
    assert len(session.reconcile_workers(WorkerIntent("w", 0), observed=old).released) == 1


def test_nothing_is_submitted_without_a_head(box: SlurmBox, place: Place, observer: Observer) -> None:
    session = place.create()
    session.reconcile_workers(WorkerIntent("w", 1, HELD))
    box.run(["scancel", observer.ledger()["head"]["slurm_job_id"]])
    observer.mark()
    until(lambda: len(observer.queue()) == 1, "the head cancelled")
    result = session.reconcile_workers(WorkerIntent("w", 2, HELD))
    assert (result.submitted, result.held_back.codes) == ((), ("no_head",))
    assert observer.accepted() == []
    assert len(session.reconcile_workers(WorkerIntent("w", 0)).released) == 1


# -- the end -----------------------------------------------------------------------------------------


@pytest.fixture
def foreign_jobs(box: SlurmBox, place: Place) -> Iterator[dict[str, str]]:
    """A job of the job user with another name, one of another user with the session's name, and one of ours that
    no record knows."""
    options = ["--parsable", "--hold", "--output=/dev/null", "--mem=100M", "--wrap=true"]
    jobs = {
        "other name": box.as_user(["sbatch", f"--job-name={place.job_name}-2", *options]).stdout.strip(),
        "other user": box.run(["sbatch", f"--job-name={place.job_name}", *options]).stdout.strip(),
        "unrecorded": box.as_user(["sbatch", f"--job-name={place.job_name}", *options]).stdout.strip(),
    }
    yield jobs
    box.run(["scancel", *jobs.values()])


def test_D_9_end_cancels_every_job_of_ours_with_the_name_and_no_other(
    box: SlurmBox, place: Place, observer: Observer, foreign_jobs: dict[str, str]
) -> None:
    with pytest.raises(SessionRecordsLost, match="its jobs live"):
        place.create()
    box.run(["scancel", foreign_jobs["unrecorded"]])
    session = place.create_running()
    session.reconcile_workers([WorkerIntent("a", 1), WorkerIntent("b", 1, HELD)])
    session.add_worker_allocation(HELD)
    options = ["--parsable", "--hold", "--output=/dev/null", "--mem=100M", "--wrap=true"]
    stranger = box.as_user(["sbatch", f"--job-name={place.job_name}", *options]).stdout.strip()
    snapshot = session.inspect()
    assert foreign_jobs["other user"] not in {a.slurm_job_id for a in snapshot.allocations}
    assert stranger in snapshot.unrecorded
    result = session.end()
    assert result.complete
    assert observer.queue() == {foreign_jobs["other user"]: "PENDING"}
    alive = box.run(["squeue", "--noheader", f"--jobs={foreign_jobs['other name']}", "--format=%T"]).stdout.strip()
    assert alive == "PENDING"
    assert (place.directory / "closing").exists()


def test_ending_session_starts_no_new_work(place: Place, observer: Observer) -> None:
    session = place.create()
    session.reconcile_workers(WorkerIntent("w", 1, HELD))
    assert session.end().complete
    observer.mark()
    result = session.reconcile_workers(WorkerIntent("w", 2, HELD))
    assert result.submitted == ()
    assert "closing" in result.held_back.codes
    with pytest.raises(SubmissionRefused, match="ending"):
        session.add_worker_allocation(HELD)
    with pytest.raises(SessionClosing):
        place.create()
    assert session.inspect().closing
    assert session.end().complete
    assert observer.accepted() == []
    assert observer.queue() == {}


def test_a_named_cluster_is_named_in_every_command(box: SlurmBox, place: Place, observer: Observer) -> None:
    (name,) = [
        line.split("=")[1].strip()
        for line in box.run(["scontrol", "show", "config"]).stdout.splitlines()
        if line.startswith("ClusterName")
    ]
    named = attrs.evolve(place, limits={"cluster": name})
    session = named.create()
    assert len(session.reconcile_workers(WorkerIntent("w", 2, HELD)).submitted) == 2
    assert session.estimate_worker_starts([SlurmWorkerAllocationConfig()])[0].answered
    assert len(session.reconcile_workers(WorkerIntent("w", 1)).released) == 1
    until(lambda: len(observer.workers()) == 1, "one is left")
    assert session.inspect().certain
    assert session.end().complete
    assert observer.queue() == {}
