"""What an admin or another tool does to our jobs: renamed, moved, suspended, requeued, and namesakes beside them."""

from __future__ import annotations

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.snapshot import AllocationSnapshot
from dagster_slurm.session.session import AllocationSession
from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.sessions import HELD, Observer, Place, until

TWO_HELD = WorkerIntent("w", 2, HELD)


def seen(session: AllocationSession, slurm_job_id: str) -> AllocationSnapshot:
    snapshot = session.inspect()
    assert snapshot.certain
    return next(w for w in snapshot.workers() if w.slurm_job_id == slurm_job_id)


def scontrol(box: SlurmBox, *words: str) -> None:
    done = box.run(["scontrol", *words])
    assert done.returncode == 0, done.stderr


def test_a_renamed_and_moved_job_is_still_ours_and_nothing_replaces_it(
    box: SlurmBox, place: Place, observer: Observer
) -> None:
    session = place.create()
    renamed, moved = session.reconcile_workers(TWO_HELD).submitted
    scontrol(box, "update", f"JobId={renamed}", "JobName=renamed by hand")
    scontrol(box, "update", f"JobId={moved}", "Partition=gpu-a")
    assert (seen(session, renamed).state, seen(session, renamed).committed) == ("PENDING", True)
    assert seen(session, moved).partition == "gpu-a"
    result = session.reconcile_workers(TWO_HELD)
    assert (result.submitted, set(result.live)) == ((), {renamed, moved})
    # Its end is seen too, although no listing by name shows it.
    box.run(["scancel", renamed])
    until(lambda: seen(session, renamed).state == "CANCELLED", "the renamed job's end seen")
    assert len(session.reconcile_workers(TWO_HELD).submitted) == 1


def test_a_suspended_and_a_requeued_worker_count_and_keep_their_records(
    box: SlurmBox, place: Place, observer: Observer
) -> None:
    session = place.create_running()
    suspended, requeued = session.reconcile_workers(WorkerIntent("w", 2)).submitted
    until(lambda: {seen(session, j).state for j in (suspended, requeued)} == {"RUNNING"}, "both run")
    scontrol(box, "suspend", suspended)
    scontrol(box, "update", f"JobId={requeued}", "Requeue=1")
    scontrol(box, "requeuehold", requeued)
    until(lambda: seen(session, requeued).state == "PENDING", "requeued")
    assert (seen(session, suspended).state, seen(session, suspended).committed) == ("SUSPENDED", True)
    assert seen(session, requeued).reason_category is not None
    result = session.reconcile_workers(WorkerIntent("w", 2))
    assert (result.submitted, set(result.live)) == ((), {suspended, requeued})
    scontrol(box, "resume", suspended)
    observer.check()


def test_arrays_and_foreign_jobs_of_our_name_are_neither_counted_nor_mistaken(
    box: SlurmBox, place: Place, observer: Observer
) -> None:
    session = place.create()
    kept = session.reconcile_workers(TWO_HELD).submitted
    words = ["sbatch", "--parsable", "--hold", f"--job-name={place.job_name}", "--wrap=true"]
    single = box.as_user([*words, "--comment=mine"]).stdout.strip()
    array = box.as_user([*words, "--array=1-3"]).stdout.strip()
    assert single.isdigit()
    assert array.isdigit()
    snapshot = session.inspect()
    assert snapshot.certain
    assert {w.slurm_job_id for w in snapshot.workers("w")} == set(kept)
    assert single in snapshot.unrecorded
    result = session.reconcile_workers(TWO_HELD)
    assert (result.submitted, result.released, set(result.live)) == ((), (), set(kept))
