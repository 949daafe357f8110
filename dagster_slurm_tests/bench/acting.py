"""P4 to P7, P11, P14: what it costs to act."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.remote.scripts import command, observe_script
from dagster_slurm.remote.submission import submit_command
from dagster_slurm_tests.bench.measuring import Bench, Row, big_session, seconds
from dagster_slurm_tests.clients import Client
from dagster_slurm_tests.sessions import HELD, Place

MANY = 50
PROCESSES = 16


def reconciling(bench: Bench) -> Iterator[Row]:
    """Nothing to do, fifty at once, and their release."""
    with bench.place("reconcile") as place:
        place.create()
        session = big_session(place, place.shell())
        session.inspect()
        before = bench.counters()
        session.reconcile_workers(WorkerIntent("bench", MANY, config=HELD))
        after = bench.counters()
        commands, requests = after[0] - before[0], after[1] - before[1]
        bound = MANY + 2 + 1
        yield Row(
            "P5",
            f"0 to {MANY} allocations",
            f"{commands} commands, {requests} requests",
            f"3, <= {bound}",
            commands == 3 and requests <= bound,
        )
        idle = _files(place.directory)
        cost = bench.cost(lambda: session.reconcile_workers(WorkerIntent("bench", MANY)))
        same = _files(place.directory) == idle
        measured = f"{cost[0]} command, {cost[1]} requests, {'nothing' if same else 'something'} written"
        yield Row("P4", "nothing to do", measured, "1, 2, nothing written", cost == (1, 2) and same)
        yield from _login_node(place)
        cost = bench.cost(lambda: session.reconcile_workers(WorkerIntent("bench", 0)))
        yield Row("P6", f"release {MANY} pending", f"{cost[0]} commands", "2", cost[0] == 2)
    ratios = [_growth_by_bare(bench, number) for number in range(5)]
    ratio = statistics.median(ratios)
    yield Row("P5", f"0 to {MANY} / {MANY} bare sbatch, median of 5", f"{ratio:.2f} x", "<= 1.5 x", ratio <= 1.5)


def _growth_by_bare(bench: Bench, number: int) -> float:
    """Fifty allocations by a fresh session, divided by what the same submissions take right before and after it."""
    with bench.place(f"growth-{number}") as place:
        place.create()
        session = big_session(place, place.shell())
        session.inspect()
        bare = _bare_submissions(place)
        took = seconds(lambda: session.reconcile_workers(WorkerIntent("bench", MANY, config=HELD)))
        return 2 * took / (bare + _bare_submissions(place))


def _bare_submissions(place: Place) -> float:
    """The same submissions, without everything that makes them safe, in one script over an open connection."""
    shell = place.shell()
    session = place.session_on(shell)
    words = submit_command(place.settings(), session.worker_shape(HELD), "0" * 32)
    # Under another name, so that the session does not meet them.
    named = (word.replace(f"--job-name={place.job_name}", "--job-name=bare") for word in words[4:-1])
    line = command([*named, "--output=/dev/null"])
    shell.run(":")
    took = seconds(lambda: shell.run("\n".join([f"{line} --wrap=true >/dev/null"] * MANY)))
    shell.close()
    return took


def _files(directory: Path) -> dict[str, tuple[int, int]]:
    found = {str(path): path.stat() for path in directory.rglob("*") if path.name != "lease"}
    return {path: (stat.st_mtime_ns, stat.st_size) for path, stat in found.items()}


def _login_node(place: Place) -> Iterator[Row]:
    shell = place.shell()
    # In the script's own shell: a section would tell the times of its subshell. What is outside frames is noise.
    # Ten of them, because the kernel counts in steps of ten milliseconds.
    more = "observe >/dev/null\n" * 9
    reply = shell.run(f"{observe_script(place.settings())}\n{more}echo bench_times; times\n")
    shell.close()
    used = sum(_seconds(word) for word in reply.noise.partition("bench_times")[2].split()[:4]) * 1000 / 10
    assert used > 0
    yield Row("P11", "CPU of one look on the login node", f"{used:.0f} ms", "<= 50 ms", used <= 50)
    size = (place.directory / "allocation.json").stat().st_size / (MANY + 1)
    yield Row("P11", "ledger for each live allocation", f"{size:.0f} bytes", "<= 2000", size <= 2000)


def _seconds(word: str) -> float:
    minutes, _, rest = word.rstrip("s").partition("m")
    return 60 * float(minutes) + float(rest)


def many_processes(bench: Bench) -> Iterator[Row]:
    """Sixteen processes that want the same eight at the same moment."""
    with bench.place("processes") as place:
        place.create()
        clients = [Client(place) for _ in range(PROCESSES)]
        try:
            for client in clients:
                client.ready()
            before = bench.counters()[0]
            for client in clients:
                client.begin("reconcile_workers", WorkerIntent("bench", 8, config=HELD))
            took = seconds(lambda: [client.result() for client in clients])
            commands = bench.counters()[0] - before
        finally:
            for client in clients:
                client.kill()
        listing = ["squeue", "-h", "-n", place.job_name, "-o", "%A"]
        made = len(bench.box.run(listing).stdout.split()) - 1
        yield Row("P7", f"{PROCESSES} processes, one intent of 8", f"{made} submitted", "8", made == 8)
        yield Row("P7", "the slowest of them", f"{took:.1f} s", "<= 2 s", took <= 2)
        each = commands / PROCESSES
        yield Row("P7", "commands for each process", f"{each:.1f}", "<= 3", each <= 3)


def ending(bench: Bench) -> Iterator[Row]:
    """The end of a session, to an empty queue."""
    with bench.place("end") as place:
        session = place.create()
        session.reconcile_workers(WorkerIntent("bench", 6))
        took = seconds(session.end)
        yield Row("P14", "end of 7 allocations to an empty queue", f"{took:.1f} s", "<= 3 s", took <= 3)
