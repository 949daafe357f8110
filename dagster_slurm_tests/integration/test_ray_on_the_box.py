"""Allocations of one session that share hosts, on a real Slurm with a real Ray: join, drain, leave nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from dagster_slurm.allocations import election, releases
from dagster_slurm.allocations.config import EffectiveShape
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.snapshot import AllocationSnapshot
from dagster_slurm.session.session import AllocationSession
from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.sessions import Observer, Place, processes_of, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

WORKERS = 6
SMALL = EffectiveShape(partition="cpu", cpus_per_task=1, mem="300M", time_limit="00:10:00")

#: A task on the node of one job that ends when a file appears.
HELD = """
import os, time
import ray
ray.init(log_to_driver=False)
session = os.environ["DAGSTER_SLURM_SESSION_DIR"]

@ray.remote(num_cpus=1, max_retries=0, label_selector={"dagster-slurm/job": os.environ["JOB"]})
def held():
    open(session + "/held", "w").close()
    while not os.path.exists(session + "/go"):
        time.sleep(0.05)
    return "finished"

print(ray.get(held.remote()))
"""


@pytest.fixture
def session(box: SlurmBox, place: Place) -> Iterator[AllocationSession]:
    """A session with a real Ray; its end is a part of each test."""
    return attrs.evolve(place, python=str(box.ray_python)).create(
        head=attrs.evolve(SMALL, head_only=True), worker=SMALL
    )


def test_six_allocations_on_shared_hosts_join_drain_to_their_ends_and_leave_nothing(
    place: Place,
    observer: Observer,
    session: AllocationSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = session.reconcile_workers(WorkerIntent("w", WORKERS)).submitted

    def workers() -> dict[str, AllocationSnapshot]:
        return {str(w.slurm_job_id): w for w in session.inspect().workers()}

    until(lambda: [w.ready for w in workers().values()] == [True] * WORKERS, "six workers ready", 150)
    seen = workers()
    assert len({next(iter((w.ray_nodes or {}).values())) for w in seen.values()}) == WORKERS
    assert len({w.nodes for w in seen.values()}) < WORKERS, "some of them share a node"

    released = jobs[0]
    payload = tmp_path / "held.py"
    payload.write_text(HELD)
    payload_id = session.start_payload(payload, env={"JOB": released})
    until(lambda: (place.directory / "held").exists(), "the task's start", 60)
    result = session.reconcile_workers(WorkerIntent("w", WORKERS), release=[released], max_submissions=0)
    assert result.released == (released,)
    until(lambda: workers()[released].draining is True, "draining")
    assert observer.queue()[released] == "RUNNING", "its task runs"
    assert session.poll_payload(payload_id).state == "running"
    (place.directory / "go").touch()
    until(lambda: session.poll_payload(payload_id).state == "succeeded", "the task's end")
    until(lambda: released not in observer.queue(), "the drained job gone", 10)
    assert [w.ready for job, w in workers().items() if job != released] == [True] * (WORKERS - 1)

    # A deadline that is shorter than the task: Ray does not enforce it, the agent does.
    monkeypatch.setattr(releases, "DRAIN_GRACE_SECONDS", 6)
    (place.directory / "go").unlink()
    (place.directory / "held").unlink()
    late = session.start_payload(payload, env={"JOB": jobs[1]})
    until(lambda: (place.directory / "held").exists(), "the task's start", 60)
    removed = session.remove_worker_allocation(jobs[1], drain_timeout=0)
    assert removed.drain_deadline is not None
    before = last = session.inspect()
    while jobs[1] in observer.queue():
        last = session.inspect()
        assert last.observed_at < removed.drain_deadline + 15
    assert before.observed_at < removed.drain_deadline <= session.inspect().observed_at
    assert last.observed_at >= removed.drain_deadline - 2, "it worked until then"
    until(lambda: session.poll_payload(late).state == "failed", "the lost task's payload has failed")
    assert workers()[jobs[1]].state == "COMPLETED", "it left by itself"

    assert session.end().complete
    until(lambda: processes_of(place.directory) == {}, "no process left")


@pytest.mark.slow
@pytest.mark.fault("F21")
def test_a_head_that_hangs_is_given_up_for_a_worker_that_does_not(
    place: Place, observer: Observer, session: AllocationSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(election, "HEAD_SILENT_SECONDS", 15)
    (worker,) = session.reconcile_workers(WorkerIntent("w", 1)).submitted
    until(lambda: all(a.ready for a in session.inspect().allocations), "head and worker ready", 150)
    head = str(session.inspect().head.slurm_job_id)
    for pid in processes_of(place.directory, head):
        os.kill(pid, signal.SIGSTOP)
    until(lambda: session.inspect().head_needs == "silent", "nothing heard of the head", 60)
    assert session.inspect().head.state == "RUNNING", "as far as Slurm knows"
    assert session.ensure_head().claimed == worker
    until(lambda: session.ensure_head().standing == "leads", "the worker leads", 90)
    assert session.inspect().head.slurm_job_id == worker
    # What is stopped does not hear that it is to end; Slurm kills it.
    until(lambda: head not in observer.queue(), "the former head gone", 60)
    assert session.end().complete
    until(lambda: processes_of(place.directory) == {}, "no process left")
