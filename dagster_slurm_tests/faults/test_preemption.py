"""Preemption on a real Slurm: work is finished with a real Ray, nobody counts as a failure or is replaced too early."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from dagster_slurm.allocations.config import EffectiveShape, SlurmWorkerAllocationConfig
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.snapshot import AllocationSnapshot
from dagster_slurm.health import findings
from dagster_slurm.session.session import AllocationSession
from dagster_slurm_tests.cluster import NodeGroup, SlurmBox
from dagster_slurm_tests.counting import executed
from dagster_slurm_tests.sessions import Observer, Place, close_connections, make_place, processes_of, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

GROUP = NodeGroup("cpu", count=3, cpus=3, default=True)
#: A low partition, a high one that takes its nodes, and one for heads. KillWait: from TERM to KILL.
SLURM_CONF = (
    "KillWait=30",
    "PreemptType=preempt/partition_prio",
    "PreemptMode=REQUEUE",
    "PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime=120 State=UP",
    "PartitionName=now Nodes=ALL PriorityTier=1 PreemptMode=CANCEL State=UP",
    "PartitionName=again Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE State=UP",
    "PartitionName=safe Nodes=ALL PriorityTier=1 PreemptMode=OFF State=UP",
    "PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF State=UP",
)

#: The site sends a preempted job the signal that it asked for; else its tasks get SIGTERM and its batch script nothing.
USER_SIGNAL = "SlurmctldParameters=preempt_send_user_signal"

WARNED = "Slurm warns that it ends soon (walltime or preemption)"

#: One task on each job; they end when a file appears.
HELD = """
import os, time
import ray
ray.init(log_to_driver=False)
session = os.environ["DAGSTER_SLURM_SESSION_DIR"]

@ray.remote(num_cpus=1, max_retries=0)
def held(job):
    open(session + "/held." + job, "w").close()
    while not os.path.exists(session + "/go"):
        time.sleep(0.05)
    return job

on = lambda job: held.options(label_selector={"dagster-slurm/job": job}).remote(job)
print("finished:", *ray.get([on(job) for job in os.environ["JOBS"].split()]))
"""


@pytest.fixture(scope="module")
def low_box() -> Iterator[SlurmBox]:
    """A box with partitions that preempt each other."""
    with SlurmBox.start(groups=(GROUP,), extra_slurm_conf=SLURM_CONF) as box:
        yield box


@contextmanager
def place_on(box: SlurmBox) -> Iterator[Place]:
    """A place for one session; afterwards nothing of it is in the queue."""
    place = make_place(box, box.fresh_base(f"preemption-{next(_NUMBERS)}"))
    try:
        yield place
    finally:
        close_connections()
        box.run(["scancel", f"--user={box.user}"])
        until(lambda: not box.run(["squeue", "--noheader"]).stdout.strip(), "nothing left in the queue", 60)


_NUMBERS = itertools.count(1)


@pytest.fixture
def low_place(low_box: SlurmBox) -> Iterator[Place]:
    with place_on(low_box) as place:
        yield place


@attrs.frozen
class Workers:
    """Running workers beside a head that nobody preempts, and who can take their nodes away."""

    box: SlurmBox
    place: Place
    session: AllocationSession
    intent: WorkerIntent
    jobs: tuple[str, ...]
    observer: Observer

    @classmethod
    def start(
        cls, box: SlurmBox, place: Place, partition: str, *, count: int = 3, nodes: int = 1, ray: bool = False
    ) -> Workers:
        python = str(box.ray_python) if ray else place.python
        heads_node = max(box.node_states())
        small = EffectiveShape(partition="safe", cpus_per_task=1, mem="300M", nodelist=heads_node, head_only=True)
        session = attrs.evolve(place, python=python).create(head=small)
        shape = SlurmWorkerAllocationConfig(
            partition=partition, cpus_per_task=1, mem="300M", nodes=nodes, exclude=heads_node, head_only=False
        )
        intent = WorkerIntent("w", count, shape, drain_timeout=600)
        jobs = session.reconcile_workers(intent).submitted
        workers = cls(box, place, session, intent, jobs, Observer(box, place))
        until(lambda: {w.state for w in workers.look()} == {"RUNNING"}, "the workers run")
        if ray:
            until(lambda: all(w.ready for w in workers.look()), "the workers ready", 150)
        return workers

    def look(self) -> list[AllocationSnapshot]:
        """The allocations that were submitted first, as they are now."""
        seen = self.session.inspect()
        assert seen.certain
        return [w for w in seen.allocations if w.slurm_job_id in self.jobs]

    def hold_tasks(self, payload: Path) -> str:
        """Start a task on each of them; returns the payload's id."""
        payload.write_text(HELD)
        payload_id = self.session.start_payload(payload, env={"JOBS": " ".join(self.jobs)})
        until(lambda: all((self.place.directory / f"held.{job}").exists() for job in self.jobs), "their tasks", 90)
        return payload_id

    def take_their_nodes(self) -> None:
        """A job comes in that is worth more."""
        nodes = ",".join(sorted(self.box.node_states())[:-1])
        command = ["sbatch", "--partition=high", f"--nodelist={nodes}", "--nodes=2", "--ntasks-per-node=1"]
        self.box.as_user([*command, "--cpus-per-task=3", "--mem=100M", "--output=/dev/null", "--wrap=sleep 600"])

    def check_replaced_by_the_next_call_only(self) -> None:
        assert self.observer.accepted() == [], "a look submits nothing"
        assert not [line for line in findings(self.session.inspect(), 600) if "ended" in line], "no failures"
        assert len(self.session.reconcile_workers(self.intent).submitted) == self.intent.count

    def end(self) -> None:
        assert self.session.end().complete
        until(lambda: processes_of(self.place.directory) == {}, "no process left", 60)


def check_tasks_are_finished_in_the_grace_time(workers: Workers, payload: Path) -> None:
    payload_id = workers.hold_tasks(payload)
    workers.observer.mark()
    workers.take_their_nodes()
    until(lambda: all(w.draining for w in workers.look()), "they drain", 60)
    assert {w.state for w in workers.look()} == {"RUNNING"}, "the grace time has only begun"
    for worker in workers.look():
        assert WARNED in str(worker.message)
        assert WARNED in workers.session.logs(str(worker.slurm_job_id))
        assert worker.drain_deadline is None, "nobody released it"
    result = workers.session.reconcile_workers(workers.intent)
    assert (result.submitted, sorted(result.live)) == ((), sorted(workers.jobs)), "it counts until it ends"
    (workers.place.directory / "go").touch()
    until(lambda: workers.session.poll_payload(payload_id).ended, "the payload's end", 60)
    poll = workers.session.poll_payload(payload_id)
    assert poll.state == "succeeded", poll.log.decode()
    assert f"finished: {' '.join(workers.jobs)}" in poll.log.decode()
    until(lambda: {w.state for w in workers.look()} == {"COMPLETED"}, "they left by themselves", 30)
    assert WARNED in str(workers.look()[0].message)
    workers.check_replaced_by_the_next_call_only()
    workers.end()


@pytest.mark.fault("F17")
@pytest.mark.parametrize("repeat", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 6))])
def test_preempted_workers_finish_their_tasks_in_the_grace_time(
    low_box: SlurmBox, low_place: Place, tmp_path: Path, repeat: int
) -> None:
    workers = Workers.start(low_box, low_place, "low", ray=True)
    check_tasks_are_finished_in_the_grace_time(workers, tmp_path / "held.py")
    executed("F17", real=len(workers.jobs))


@pytest.mark.slow
@pytest.mark.fault("F17")
def test_an_allocation_of_two_nodes_does_so_where_the_site_sends_the_jobs_signal(tmp_path: Path) -> None:
    with (
        SlurmBox.start(groups=(GROUP,), extra_slurm_conf=(*SLURM_CONF, USER_SIGNAL)) as box,
        place_on(box) as place,
    ):
        workers = Workers.start(box, place, "low", count=2, nodes=2, ray=True)
        check_tasks_are_finished_in_the_grace_time(workers, tmp_path / "held.py")
        executed("F17", real=len(workers.jobs))


@pytest.mark.slow
@pytest.mark.fault("F17")
def test_a_worker_that_somebody_cancels_says_so_and_takes_its_tasks_along(
    low_box: SlurmBox, low_place: Place, tmp_path: Path
) -> None:
    workers = Workers.start(low_box, low_place, "low", ray=True)
    payload_id = workers.hold_tasks(tmp_path / "held.py")
    workers.observer.mark()
    low_box.as_user(["scancel", *workers.jobs])
    until(lambda: {w.state for w in workers.look()} == {"CANCELLED"}, "Slurm ends them", 60)
    for worker in workers.look():
        assert "Slurm ends it (preempted or cancelled)" in str(worker.message)
        assert "Slurm ends it (preempted or cancelled)" in workers.session.logs(str(worker.slurm_job_id))
    until(lambda: workers.session.poll_payload(payload_id).state == "failed", "the lost tasks' payload has failed", 60)
    workers.check_replaced_by_the_next_call_only()
    workers.end()
    executed("F17", real=len(workers.jobs))


@pytest.mark.fault("F17")
def test_workers_preempted_without_grace_are_no_failures(low_box: SlurmBox, low_place: Place) -> None:
    workers = Workers.start(low_box, low_place, "now")
    workers.observer.mark()
    workers.take_their_nodes()
    until(lambda: {w.state for w in workers.look()} == {"PREEMPTED"}, "preempted", 60)
    workers.check_replaced_by_the_next_call_only()
    workers.end()
    executed("F17", real=len(workers.jobs))


@pytest.mark.fault("F16")
@pytest.mark.parametrize("repeat", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 4))])
def test_released_workers_that_a_preemption_requeues_keep_their_deadlines_and_do_not_run_again(
    low_box: SlurmBox, low_place: Place, repeat: int
) -> None:
    unmoved = attrs.evolve(low_place, limits={"setup": "export STUB_IGNORES_DRAIN=1"})
    workers = Workers.start(low_box, unmoved, "again")
    assert sorted(workers.session.reconcile_workers(WorkerIntent("w", 0, drain_timeout=600)).released) == sorted(
        workers.jobs
    )
    deadlines = {w.slurm_job_id: w.drain_deadline for w in workers.look()}
    assert None not in deadlines.values()
    for job in workers.jobs:
        low_box.run(["scontrol", "update", f"JobId={job}", "Requeue=1"])
    workers.take_their_nodes()
    until(lambda: {w.state for w in workers.look()} == {"PENDING"}, "requeued", 60)
    assert {w.slurm_job_id: w.drain_deadline for w in workers.look()} == deadlines
    result = workers.session.reconcile_workers(workers.intent)
    assert len(result.submitted) == workers.intent.count, "they do not count, so others do"
    until(lambda: {w.state for w in workers.look()} == {"CANCELLED"}, "they do not come back", 60)
    assert {w.slurm_job_id: w.drain_deadline for w in workers.look()} == deadlines
    workers.end()
    executed("F16", real=len(workers.jobs))
