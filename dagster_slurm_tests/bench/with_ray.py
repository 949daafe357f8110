"""P12 and P13: what an allocation needs beyond Slurm and Ray to start, to drain and to end, and a payload to run."""

# Dagster reads the annotation of a context as it is written, hence no postponed annotations here.

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs
import dagster as dg

from dagster_slurm import SlurmComputeResource
from dagster_slurm.allocations.config import EffectiveShape
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.session.session import AllocationSession
from dagster_slurm_tests.bench.measuring import Bench, Row, seconds
from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.dagster.box_resource import resource_on

HEAD = EffectiveShape(partition="cpu", cpus_per_task=1, mem="400M", time_limit="00:10:00", head_only=True)
WORKER = EffectiveShape(partition="cpu", cpus_per_task=1, mem="400M", time_limit="00:10:00")

_TASK = """
import os, time
import ray
ray.init(log_to_driver=False)
session = os.environ["DAGSTER_SLURM_SESSION_DIR"]

@ray.remote(num_cpus=1, max_retries=0)
def held():
    open(session + "/held", "w").close()
    while not os.path.exists(session + "/go"):
        time.sleep(0.01)

ray.get(held.remote())
"""


def starting_and_draining(bench: Bench) -> Iterator[Row]:
    """A worker from Slurm's word to Ray's, and back."""
    with bench.place("ray") as stubbed:
        place = attrs.evolve(stubbed, python=str(bench.box.ray_python))
        session = place.create(head=HEAD, worker=WORKER)
        _until(lambda: session.inspect().head.ready is True)
        (job,) = session.reconcile_workers(WorkerIntent("bench", 1)).submitted
        _until(lambda: _state(bench.box, job) == "RUNNING")
        took = seconds(lambda: _until(lambda: session.inspect().workers()[0].ready is True))
        yield Row("P12", "RUNNING to ready", f"{took:.1f} s", "<= 5 s", took <= 5)

        with tempfile.TemporaryDirectory() as directory:
            payload = Path(directory, "held.py")
            payload.write_text(_TASK)
            session.start_payload(payload)
        _until(lambda: (place.directory / "held").exists())
        begun = time.perf_counter()
        session.reconcile_workers(WorkerIntent("bench", 0, drain_timeout=120))
        _until(lambda: '"DRAINING"' in _cluster_file(place.directory))
        took = time.perf_counter() - begun
        yield Row("P12", "release to draining in Ray", f"{took:.1f} s", "<= 5 s", took <= 5)

        assert _state(bench.box, job) == "RUNNING", "a running task is waited for"
        (place.directory / "go").touch()
        took = seconds(lambda: _until(lambda: _state(bench.box, job) == ""))
        yield Row("P12", "last task to job gone", f"{took:.1f} s", "<= 5 s", took <= 5)
        _ended(session)


def payloads(bench: Bench) -> Iterator[Row]:
    """A trivial payload: on a session that it has to make, and on one that is warm."""
    own = _own_start(bench.box)
    times: list[float] = []

    @dg.op
    def twice(context: dg.OpExecutionContext, compute: SlurmComputeResource) -> None:
        with tempfile.TemporaryDirectory() as directory:
            payload = Path(directory, "trivial.py")
            payload.write_text("print('done')\n")
            for _ in range(2):
                times.append(seconds(lambda: compute.run(context=context, payload=payload)))

    @dg.job(resource_defs={"compute": resource_on(bench.box, Path(bench.box.fresh_base("bench-payload")))})
    def bench_job() -> None:
        twice()

    with dg.DagsterInstance.ephemeral() as instance:
        assert bench_job.execute_in_process(instance=instance).success
    first, warm = times
    yield Row("P13", "trivial payload on a warm session", f"{warm:.1f} s", "<= 2 s", warm <= 2)
    wanted = f"<= {1.5 * own:.1f} s, 1.5 x Ray's own {own:.1f} s"
    yield Row("P13", "the first one, the session's start included", f"{first:.1f} s", wanted, first <= 1.5 * own)


def _own_start(box: SlurmBox) -> float:
    """Seconds in which Ray alone starts a head and a worker on this host."""
    with tempfile.TemporaryDirectory(prefix="own-", dir="/tmp") as directory:
        begun = time.perf_counter()
        with _ray(box, directory, "head", "--head", "--port=0", "--include-dashboard=false"):
            address = Path(directory, "head", "ray_current_cluster").read_text().strip()
            with _ray(box, directory, "worker", f"--address={address}"):
                return time.perf_counter() - begun


@contextmanager
def _ray(box: SlurmBox, directory: str, name: str, *options: str) -> Iterator[None]:
    """Ray processes of our own, ended by their process group and never by ``ray stop``."""
    log = Path(directory, f"{name}.log")
    with log.open("wb") as output:
        child = subprocess.Popen(
            [
                str(box.ray_python),
                "-c",
                "from ray.scripts.scripts import main; main()",
                "start",
                "--block",
                f"--temp-dir={directory}/{name}",
                "--num-cpus=1",
                "--object-store-memory=83886080",
                "--disable-usage-stats",
                *options,
            ],
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "RAY_AUTH_MODE": "disabled"},
        )
    try:
        _until(lambda: b"Ray runtime started" in log.read_bytes())
        yield
    finally:
        child.terminate()
        child.wait(timeout=30)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def _until(condition: Callable[[], bool], limit_seconds: float = 90) -> None:
    deadline = time.monotonic() + limit_seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_seconds} s"
        time.sleep(0.02)


def _state(box: SlurmBox, job: str) -> str:
    """The job's state; empty once it has left the queue's live part."""
    listing = ["squeue", "--noheader", f"--jobs={job}", "--format=%T", "--states=PENDING,CONFIGURING,RUNNING"]
    return box.run(listing, check=False).stdout.strip()


def _cluster_file(directory: Path) -> str:
    return "".join(path.read_text() for path in (directory / "cluster").glob("*.json"))


def _ended(session: AllocationSession) -> None:
    _until(lambda: session.end().complete)
