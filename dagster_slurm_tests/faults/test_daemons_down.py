"""The snapshot and the estimates before, while and after each daemon of the cluster is dead or hangs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dagster_slurm.allocations.config import SlurmWorkerAllocationConfig
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.faults.test_silent_controller import wait_until_saved
from dagster_slurm_tests.sessions import HELD, Observer, Place, until

SHAPE = [SlurmWorkerAllocationConfig(time_limit="00:05:00")]


@contextmanager
def down(box: SlurmBox, daemon: str, how: str) -> Iterator[None]:
    """The daemon is killed or stopped, and serves again afterwards."""
    if how == "killed":
        box.kill_daemon(daemon)
    else:
        box.stop_daemon(daemon)
    try:
        yield
    finally:
        if how == "killed":
            box.start_daemon(daemon)
        else:
            box.continue_daemon(daemon)
        until(lambda: set(box.node_states().values()) <= {"idle", "mixed", "mix", "alloc", "allocated"}, "nodes back")


# A daemon that hangs costs each command its ten seconds, so those cases are for the long run.
HOW = ["killed", pytest.param("stopped", marks=pytest.mark.slow)]


@pytest.mark.fault("F6")
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("daemon", ["slurmctld", "munged"])
def test_A_2_without_the_controller_or_its_authentication_nothing_is_known_and_nothing_is_gone(
    daemon: str, how: str, box: SlurmBox, place: Place, observer: Observer
) -> None:
    session = place.create()
    session.reconcile_workers(WorkerIntent("w", 2, HELD))
    before = session.inspect()
    assert before.certain
    assert session.estimate_worker_starts(SHAPE)[0].start_in_seconds is not None
    wait_until_saved(box, observer)
    asking = place.open()
    with down(box, daemon, how):
        during = session.inspect()
        estimate = asking.estimate_worker_starts(SHAPE)[0]
        result = asking.reconcile_workers(WorkerIntent("w", 3, HELD))
    assert not during.certain
    assert [a.slurm_job_id for a in during.allocations] == [a.slurm_job_id for a in before.allocations]
    assert {(a.state, a.committed, a.ready) for a in during.allocations} == {(None, None, None)}
    assert during.not_observed[0].startswith("The scheduler did not answer: ")
    assert (estimate.start_in_seconds, estimate.answered) == (None, False)
    assert estimate.error
    assert result.submitted == ()
    assert "scheduler_silent" in result.held_back.codes
    after = session.inspect()
    assert after.certain
    assert {a.slurm_job_id: a.state for a in after.allocations} == {a.slurm_job_id: a.state for a in before.allocations}
    assert asking.estimate_worker_starts(SHAPE)[0].start_in_seconds is not None, "silence is not remembered"


@pytest.mark.fault("F7")
@pytest.mark.parametrize("how", HOW)
def test_B_4_without_the_database_the_queue_still_tells_and_submissions_go_on(
    how: str, box: SlurmBox, place: Place
) -> None:
    session = place.create()
    kept, lost = session.reconcile_workers(WorkerIntent("w", 2, HELD)).submitted
    with down(box, "slurmdbd", how):
        during = session.inspect()
        assert during.certain
        assert {a.slurm_job_id: a.state for a in during.workers("w")} == {kept: "PENDING", lost: "PENDING"}
        assert session.estimate_worker_starts(SHAPE)[0].answered
        (added,) = session.reconcile_workers(WorkerIntent("w", 3, HELD)).submitted
    after = session.inspect()
    assert {a.slurm_job_id: a.state for a in after.workers("w")} == dict.fromkeys((kept, lost, added), "PENDING")
