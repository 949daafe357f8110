"""P1 to P3, P8 to P10: what it costs to look."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

from dagster_slurm.allocations.config import SlurmWorkerAllocationConfig
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.snapshot import build_snapshot
from dagster_slurm.remote.replies import read_observation
from dagster_slurm.remote.scripts import command, observe_script
from dagster_slurm.slurm.replies import squeue_arguments
from dagster_slurm_tests.bench.delay import delayed
from dagster_slurm_tests.bench.measuring import Bench, Row, big_session, medians, seconds
from dagster_slurm_tests.sessions import HELD, Place

ROUND_TRIP_SECONDS = 0.02


def inspecting(bench: Bench) -> Iterator[Row]:
    """Inspect with ever more allocations, close by and at 20 ms."""
    with bench.place("inspect") as place:
        place.create()
        session = big_session(place, place.shell())
        session.inspect()
        costs: dict[int, tuple[int, int]] = {}
        ratios: dict[int, float] = {}
        for size in (1, 10, 100, 500):
            session.reconcile_workers(WorkerIntent("bench", size - 1, config=HELD))
            costs[size] = bench.cost(session.inspect)
            ratios[size] = _ratio_at_a_distance(bench, place)
        same = len(set(costs.values())) == 1
        for size, (commands, requests) in costs.items():
            met = (commands, requests) == (1, 2) and same
            yield Row("P1", f"inspect, {size} allocations", f"{commands} command, {requests} requests", "1, 2", met)
        for size, limit in ((1, 1.5), (10, 1.5), (100, 1.5), (500, 2.0)):
            figure = ratios[size]
            what = f"inspect at 20 ms / bare squeue, {size} allocations"
            yield Row("P2", what, f"{figure:.2f} x", f"<= {limit} x", figure <= limit)
        yield _parsing(place)
        requests = bench.cost(lambda: [session.inspect() for _ in range(60)])[1]
        yield Row("P9", "60 inspects of 500 allocations (an hour)", f"{requests} requests", "<= 130", requests <= 130)


def _ratio_at_a_distance(bench: Bench, place: Place) -> float:
    with delayed(bench.box.port, ROUND_TRIP_SECONDS) as port:
        shell = place.reached_through(port, bench.box.directory / "bench_known_hosts").shell()
        session = big_session(place, shell)
        bare = f"SLURM_TIME_FORMAT=%s {command(squeue_arguments(place.job_name))}"
        found = medians({"inspect": session.inspect, "bare": lambda: shell.run(bare)})
        shell.close()
    return found["inspect"] / found["bare"]


def _parsing(place: Place) -> Row:
    shell = place.shell()
    reply = shell.run(observe_script(place.settings()))
    shell.close()

    def parse() -> None:
        observation = read_observation(reply, place.settings(), "bench")
        assert observation.ledger is not None
        assert len(build_snapshot(observation.ledger, observation).allocations) == 500

    took = medians({"parse": parse})["parse"] * 1000
    return Row("P10", "500 jobs parsed into a snapshot", f"{took:.0f} ms", "<= 15 ms", took <= 15)


def estimating(bench: Bench) -> Iterator[Row]:
    """Eight shapes in one call, and again."""
    shapes = [SlurmWorkerAllocationConfig(time_limit=f"00:{minutes}:00") for minutes in range(10, 18)]
    with bench.place("estimate") as place:
        session = place.create()
        session.inspect()
        commands, requests = bench.cost(lambda: session.estimate_worker_starts(shapes))
        bound = 2 * len(shapes) + 2
        yield Row(
            "P3",
            "estimate, 8 shapes",
            f"{commands} command, {requests} requests",
            f"1, <= {bound} (2 a shape, ping, partitions)",
            commands == 1 and requests <= bound,
        )
        again = bench.cost(lambda: session.estimate_worker_starts(shapes))
        yield Row("P3", "the same within the minute", f"{again[0]} commands, {again[1]} requests", "0", again == (0, 0))


def silent_controller(bench: Bench) -> Iterator[Row]:
    """Every hook against a controller that is dead, and one that is stopped."""
    shapes = [SlurmWorkerAllocationConfig(time_limit=f"00:{minutes}:00") for minutes in range(10, 18)]
    with bench.place("silent") as place:
        session = place.create()
        session.inspect()
        hooks: dict[str, Callable[[], object]] = {
            "inspect": session.inspect,
            "estimate of 8": lambda: session.estimate_worker_starts(shapes),
            "reconcile": lambda: session.reconcile_workers(WorkerIntent("bench", 3)),
        }
        for state, begin, end in (
            ("stopped", bench.box.stop_daemon, bench.box.continue_daemon),
            ("dead", bench.box.kill_daemon, bench.box.start_daemon),
        ):
            begin("slurmctld")
            try:
                took = {name: seconds(hook) for name, hook in hooks.items()}
            finally:
                end("slurmctld")
            for name, figure in took.items():
                yield Row("P8", f"{name}, controller {state}", f"{figure:.1f} s", "<= 12 s", figure <= 12)


def importing(_: Bench) -> Iterator[Row]:
    """What our names cost on top of Dagster's."""
    ours = "from dagster_slurm import SlurmComputeResource, WorkerIntent, worker_policy, PolicyContext"

    def run(code: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", code], check=True)

    found = medians({"dagster": run("import dagster"), "both": run(f"import dagster\n{ours}")}, repeat=5)
    extra = found["both"] - found["dagster"]
    ratio = extra / found["dagster"]
    # 150 ms where Dagster's own import takes 360 ms, as it did when the target was set.
    measured = f"{extra * 1000:.0f} ms, {ratio:.2f} x dagster's"
    yield Row("P10", "import above dagster's own", measured, "<= 0.42 x (150 ms of 360)", ratio <= 0.42)
