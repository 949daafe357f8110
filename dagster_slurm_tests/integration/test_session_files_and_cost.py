"""What a session leaves on the shared filesystem, and what its calls cost the login node and the scheduler."""

from __future__ import annotations

import json
import stat

import attrs

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.sessions import HELD, Observer, Place, until

# -- files -------------------------------------------------------------------------------------------


def test_session_tree_is_private_whatever_the_umask(box: SlurmBox, place: Place, observer: Observer) -> None:
    open_umask = attrs.evolve(place, remote_setup=f"{place.remote_setup}\numask 000")
    session = open_umask.create_running()
    (job,) = session.reconcile_workers(WorkerIntent("w", 1)).submitted
    session.reconcile_workers(WorkerIntent("w", 2, HELD))
    until(lambda: observer.queue().get(job) == "RUNNING", "the worker runs")
    until(lambda: "runs" in session.logs(job), "the job's log")
    session.reconcile_workers(WorkerIntent("w", 0))
    wrong = {
        str(path.relative_to(place.directory)): oct(mode)
        for path in [place.directory, *place.directory.rglob("*")]
        if (mode := stat.S_IMODE(path.lstat().st_mode)) != (0o700 if path.is_dir() else 0o600)
    }
    assert wrong == {}


def test_unknown_keys_of_the_ledger_are_kept(box: SlurmBox, place: Place, observer: Observer) -> None:
    session = place.create()
    session.reconcile_workers(WorkerIntent("w", 1, HELD))
    stored = observer.ledger()
    stored["later_addition"] = {"x": [1, 2]}
    stored["workers"][0]["note"] = "kept"
    (place.directory / "allocation.json").write_text(json.dumps(stored))
    session.reconcile_workers(WorkerIntent("w", 2, HELD))
    kept = observer.ledger()
    assert kept["later_addition"] == {"x": [1, 2]}
    assert kept["workers"][0]["note"] == "kept"
    assert len(kept["workers"]) == 2


# -- cost --------------------------------------------------------------------------------------------


def cost(box: SlurmBox, commands: int, rpcs: int) -> tuple[int, int]:
    """Remote commands and scheduler requests of the job user since the given counts."""
    found = box.rpc_counts(box.user).get(box.user)
    return box.ssh_command_count() - commands, (0 if found is None else found.count) - rpcs


def test_one_command_and_one_query_for_any_number_of_allocations(
    box: SlurmBox, place: Place, observer: Observer
) -> None:
    session = place.create()
    observed = {}
    for count in (1, 20):
        session.reconcile_workers(WorkerIntent("w", count, HELD))
        before = cost(box, 0, 0)
        by_type = box.rpc_counts()
        assert len(session.inspect().workers("w")) == count
        observed[count] = cost(box, *before)
        listings = {
            name: entry.count - (by_type[name].count if name in by_type else 0)
            for name, entry in box.rpc_counts().items()
            if "JOB_USER_INFO" in name
        }
        assert sum(listings.values()) == 1
    # squeue asks for the jobs and for the partitions.
    assert observed == {1: (1, 2), 20: (1, 2)}


def test_growing_by_twenty_is_three_commands(box: SlurmBox, place: Place, observer: Observer) -> None:
    session = place.create()
    observer.mark()
    before = cost(box, 0, 0)
    result = session.reconcile_workers(WorkerIntent("w", 20, HELD))
    commands, requests = cost(box, *before)
    assert len(result.submitted) == len(observer.accepted()) == len(observer.recorded("w")) == 20
    assert commands == 3
    # Twenty submissions, one listing (two requests), and a look whether the controller answers.
    assert 22 <= requests <= 24
    unchanged = cost(box, 0, 0)
    session.reconcile_workers(WorkerIntent("w", 20, HELD))
    assert cost(box, *unchanged) == (1, 2)


def test_an_allocation_changes_its_role(box: SlurmBox, place: Place, observer: Observer) -> None:
    session = place.create()
    added = session.add_worker_allocation(HELD).slurm_job_id
    assert added is not None
    session.reconcile_workers(WorkerIntent("w", 1, HELD))
    assert session.assign_worker_intent(added, "w").intent == "w"
    (kept,) = [w.slurm_job_id for w in session.inspect().workers("w") if w.slurm_job_id != added]
    assert kept is not None
    assert session.assign_worker_intent(kept, None).intent is None
    # From now on the added one is counted and released, and the other is nobody's.
    assert session.reconcile_workers(WorkerIntent("w", 0)).released == (added,)
    until(lambda: set(observer.workers()) == {kept}, "only the kept one is left")
    refused = session.assign_worker_intent(added, None)
    assert refused.held_back is not None
    assert refused.held_back.code in ("releasing", "not_live")
