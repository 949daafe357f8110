"""Nodes that fail or are set down, slurmd killed under a job, requeues: nobody is replaced too early."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import attrs
import pytest

from dagster_slurm.allocations.config import SlurmWorkerAllocationConfig
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.snapshot import AllocationSnapshot
from dagster_slurm.session.session import AllocationSession
from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.sessions import SMALL, Observer, Place, until

pytestmark = pytest.mark.integration


def times(count: int) -> pytest.MarkDecorator:
    """Once in the subset, that many times in the full set."""
    more = [pytest.param(n, marks=pytest.mark.slow) for n in range(1, count)]
    return pytest.mark.parametrize("repeat", [0, *more])


UP = ("idle", "mix", "mixed", "alloc", "allocated")


@pytest.fixture
def node(box: SlurmBox) -> str:
    """A node that a job is sent to by its name, and that others can be kept from."""
    return max(name for name in box.node_states() if name.startswith("cpu-"))


@contextmanager
def set_down(box: SlurmBox, node: str) -> Iterator[None]:
    """The node is down, and back afterwards."""
    box.run(["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test"])
    try:
        yield
    finally:
        # It may have come back by itself: then there is nothing to resume.
        box.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False)
        until(lambda: box.node_states()[node] in UP, "the node back")


def seen(session: AllocationSession, slurm_job_id: str) -> AllocationSnapshot:
    snapshot = session.inspect()
    assert snapshot.certain
    return next(a for a in snapshot.allocations if a.slurm_job_id == slurm_job_id)


def one_on(node: str, session: AllocationSession) -> str:
    (job,) = session.reconcile_workers(WorkerIntent("w", 1, SlurmWorkerAllocationConfig(nodelist=node))).submitted
    until(lambda: seen(session, job).state == "RUNNING", "the worker runs")
    return str(job)


@times(10)
@pytest.mark.fault("F15")
def test_a_worker_whose_node_fails_is_replaced_by_the_next_call_and_by_nobody_else(
    box: SlurmBox, place: Place, observer: Observer, node: str, repeat: int
) -> None:
    session = place.create()
    lost = one_on(node, session)
    observer.mark()
    with set_down(box, node):
        until(lambda: seen(session, lost).committed is False, "its end seen")
        assert (seen(session, lost).state, seen(session, lost).ready) == ("NODE_FAIL", False)
        assert observer.accepted() == [], "a look submits nothing"
        result = session.reconcile_workers(WorkerIntent("w", 1))
        assert result.submitted == tuple(observer.accepted())
        assert len(result.submitted) == 1
    observer.check()


@times(10)
@pytest.mark.fault("F15")
def test_a_worker_whose_slurmd_is_killed_runs_on_and_is_not_replaced(
    box: SlurmBox, place: Place, observer: Observer, node: str, repeat: int
) -> None:
    session = place.create()
    job = one_on(node, session)
    observer.mark()
    box.kill_daemon(f"slurmd.{node}")
    try:
        assert seen(session, job).state == "RUNNING"
        assert session.reconcile_workers(WorkerIntent("w", 1)).live == (job,)
    finally:
        box.start_daemon(f"slurmd.{node}")
    until(lambda: box.node_states()[node] in UP, "the node back")
    assert session.reconcile_workers(WorkerIntent("w", 1)).live == (job,)
    assert observer.accepted() == []


@times(10)
@pytest.mark.fault("F15", "F21")
def test_a_head_whose_node_fails_is_followed_by_the_running_worker(
    box: SlurmBox, place: Place, observer: Observer, node: str, repeat: int
) -> None:
    session = place.create(head=attrs.evolve(SMALL, nodelist=node))
    away = SlurmWorkerAllocationConfig(exclude=node)
    (worker,) = session.reconcile_workers(WorkerIntent("w", 1, away)).submitted
    until(lambda: list(observer.queue().values()) == ["RUNNING"] * 2, "head and worker run")
    with set_down(box, node):
        until(lambda: session.inspect().head.state == "NODE_FAIL", "its end seen")
        assert session.inspect().head_needs == "ended"
        result = session.ensure_head()
        assert (result.standing, result.claimed, result.submitted) == ("claimed", worker, ())


@times(9)
@pytest.mark.fault("F16")
@pytest.mark.parametrize("by", ["an admin", "its failed node"])
def test_a_released_worker_that_is_requeued_keeps_its_deadline_and_does_not_run_again(
    box: SlurmBox, place: Place, observer: Observer, node: str, by: str, repeat: int
) -> None:
    session = attrs.evolve(place, limits={"setup": "export STUB_IGNORES_DRAIN=1"}).create()
    job = one_on(node, session)
    assert session.reconcile_workers(WorkerIntent("w", 0, drain_timeout=600)).released == (job,)
    deadline = seen(session, job).drain_deadline
    assert deadline is not None
    box.run(["scontrol", "update", f"JobId={job}", "Requeue=1"])
    with ExitStack() as stack:
        if by == "an admin":
            box.run(["scontrol", "requeue", job])
        else:
            stack.enter_context(set_down(box, node))
        until(lambda: seen(session, job).state == "PENDING", "requeued")
        assert seen(session, job).drain_deadline == deadline
        result = session.reconcile_workers(WorkerIntent("w", 1))
        assert len(result.submitted) == 1, "it does not count, so another one does"
        assert job not in result.live
    until(lambda: seen(session, job).state == "CANCELLED", "it does not come back")
    assert seen(session, job).drain_deadline == deadline
    observer.check()


@times(5)
@pytest.mark.fault("F16", "F21")
def test_a_head_that_is_requeued_is_waited_for(box: SlurmBox, place: Place, observer: Observer, repeat: int) -> None:
    session = place.create_running()
    session.reconcile_workers(WorkerIntent("w", 1))
    until(lambda: list(observer.queue().values()) == ["RUNNING"] * 2, "head and worker run")
    head = str(session.inspect().head.slurm_job_id)
    box.run(["scontrol", "update", f"JobId={head}", "Requeue=1"])
    box.run(["scontrol", "requeue", head])
    until(lambda: session.inspect().head.state == "PENDING", "requeued")
    result = session.ensure_head()
    assert (result.standing, result.head_job_id, result.claimed) == ("queued", head, None)
