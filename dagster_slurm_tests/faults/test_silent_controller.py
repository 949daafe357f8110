"""slurmctld is dead or hangs: nothing is submitted, nothing is believed to have ended, no deadline moves."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import pytest

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.errors import SubmissionRefused
from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.sessions import HELD, Observer, Place, until

pytestmark = pytest.mark.fault("F6")


def wait_until_saved(box: SlurmBox, observer: Observer) -> None:
    """slurmctld writes its jobs down every few seconds; a crash loses what came after."""
    state, log = box.directory / "state" / "job_state", Path(box.directory) / "log" / "slurmctld.log"
    assert observer.queue()
    last = log.stat().st_mtime
    until(lambda: state.exists() and state.stat().st_mtime > last, "the controller's state saved")


@pytest.fixture(params=["killed", "stopped"])
def silent(request: pytest.FixtureRequest, box: SlurmBox) -> Iterator[tuple[str, SlurmBox]]:
    """How the controller falls silent; it is all right again after the test."""
    yield request.param, box
    if request.param == "stopped":
        box.continue_daemon("slurmctld")
    elif box.daemons()["slurmctld"] is None:
        box.start_daemon("slurmctld")


def test_A_2_silent_controller_stops_submissions_and_changes_nothing(
    silent: tuple[str, SlurmBox], place: Place, observer: Observer
) -> None:
    how, box = silent
    stubborn = attrs.evolve(place, limits={"setup": "export STUB_IGNORES_DRAIN=yes"})
    session = stubborn.create()
    leaving, staying = session.reconcile_workers(WorkerIntent("w", 2)).submitted
    until(lambda: set(observer.workers().values()) == {"RUNNING"}, "both run")
    session.reconcile_workers(WorkerIntent("w", 1), release=[leaving])
    content, jobs = observer.ledger_bytes(), observer.queue()
    wait_until_saved(box, observer)
    observer.mark()
    if how == "killed":
        box.kill_daemon("slurmctld")
    else:
        box.stop_daemon("slurmctld")

    with ThreadPoolExecutor(4) as pool:
        looking = pool.submit(place.open().inspect)
        growing = pool.submit(place.open().reconcile_workers, WorkerIntent("w", 3, HELD))
        shrinking = pool.submit(place.open().reconcile_workers, WorkerIntent("w", 0), release=[staying])
        adding = pool.submit(place.open().add_worker_allocation, HELD)
        snapshot = looking.result(timeout=60)
        grown, shrunk = growing.result(timeout=60), shrinking.result(timeout=60)
        with pytest.raises(SubmissionRefused, match="did not answer"):
            adding.result(timeout=60)
    assert snapshot.certain is False
    assert {a.slurm_job_id for a in snapshot.allocations} == set(jobs)
    assert {a.state for a in snapshot.allocations} == {None}
    assert {a.committed for a in snapshot.allocations} == {None}
    assert snapshot.not_observed
    assert grown.submitted == shrunk.released == ()
    assert grown.held_back.codes == ("scheduler_silent",)
    assert observer.ledger_bytes() == content

    if how == "killed":
        box.start_daemon("slurmctld")
    else:
        box.continue_daemon("slurmctld")
    until(lambda: set(box.node_states().values()) <= {"idle", "mix", "alloc"}, "all nodes back")
    assert observer.queue() == jobs
    seen = place.open().inspect()
    assert seen.certain
    assert {a.slurm_job_id: a.state for a in seen.allocations} == jobs
    assert observer.accepted() == []
    result = place.open().reconcile_workers(WorkerIntent("w", 2, HELD))
    assert list(result.submitted) == observer.accepted()
    deadlines = {r["slurm_job_id"]: r["drain_deadline"] for r in observer.ledger()["workers"]}
    assert deadlines == {leaving: deadlines[leaving], staying: None, result.submitted[0]: None}
    assert f'"drain_deadline": {deadlines[leaving]}'.encode() in content
    observer.check()


def test_end_is_not_complete_while_the_controller_is_dead_and_completes_afterwards(
    box: SlurmBox, place: Place, observer: Observer
) -> None:
    session = place.create_running()
    session.reconcile_workers(WorkerIntent("w", 1))
    until(lambda: set(observer.queue().values()) == {"RUNNING"}, "head and worker run")
    wait_until_saved(box, observer)
    box.kill_daemon("slurmctld")
    try:
        assert not session.end(timeout_seconds=0).complete
        assert (place.directory / "closing").exists()
    finally:
        box.start_daemon("slurmctld")
    until(lambda: set(box.node_states().values()) <= {"idle", "mix", "alloc"}, "all nodes back")
    assert session.end().complete
    assert observer.queue() == {}


def test_controller_that_falls_silent_between_look_and_commit(box: SlurmBox, place: Place, observer: Observer) -> None:
    session = place.create()
    content = observer.ledger_bytes()
    observer.mark()
    # A ping that fails is what the commit sees then.
    faults = 'timeout() { case "$*" in *"scontrol ping"*) echo "Slurmctld(primary) at here is DOWN"; return 1 ;; '
    faults += '*) command timeout "$@" ;; esac; }\n'
    result = place.open(faults=faults).reconcile_workers(WorkerIntent("w", 2, HELD))
    assert (result.submitted, result.held_back.codes) == ((), ("scheduler_silent",))
    assert (observer.accepted(), observer.ledger_bytes()) == ([], content)
    assert len(session.reconcile_workers(WorkerIntent("w", 2, HELD)).submitted) == 2
