"""The demo from start to end: start, watch, sum up, wait, stop everything it started."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack, closing
from pathlib import Path
from types import FrameType

import attrs
from dagster import DagsterRunStatus

from example_project.demo.accounting import (
    ACCOUNTING_COMMAND,
    QUEUE_COMMAND,
    accounting_table,
    count_by_state,
    parse_accounting,
    parse_queue,
    shortcomings,
)
from example_project.demo.box import Box, start_box, stop_box
from example_project.demo.dagster_services import (
    ASSET,
    DagsterServices,
    prepare_home,
    require_free_port,
    start_dagster,
)
from example_project.demo.errors import DemoError, Stopped
from example_project.demo.processes import MarkedProcesses, processes_using, wait_until
from example_project.demo.run_log import FINISHED, RunLog, RunProgress
from example_project.demo.state import (
    DemoState,
    clear_state,
    load_state,
    new_state,
    save_state,
)

LEAST_WORKERS = 3
WATCH_SECONDS = 1.0
CANCEL_LIMIT_SECONDS = 45.0
SETTLE_LIMIT_SECONDS = 60.0
_SHOWN = ("best_parameters", "best_score", "tasks", "tasks_reused", "allocations_used")


@attrs.frozen
class DemoOptions:
    """What the command line says.

    Attributes:
        directory: For logs and DAGSTER_HOME, absolute.
        port: Of the webserver on the loopback address.
        oneshot: End after the run instead of waiting for Ctrl-C.
        run_limit_seconds: Longest duration of the run.
    """

    directory: Path
    port: int
    oneshot: bool
    run_limit_seconds: float


class Demo:
    """One demo. What it starts is registered for stopping before it is started."""

    def __init__(self, options: DemoOptions) -> None:
        self._options = options
        self._processes = MarkedProcesses()
        self._logs = options.directory / "logs"
        self._begin = time.monotonic()
        self._problems: list[str] = []

    def run(self) -> list[str]:
        """Run the demo and stop what it started.

        Returns:
            What was not as it should be, one sentence each; empty when all was well.

        Raises:
            DemoError: when it could not go on; what it had started is stopped.
            Stopped: when a signal ended it before the run was over; what it had started is stopped.
        """
        self._logs.mkdir(parents=True, exist_ok=True)
        self._end_leftovers()  # may hold the port
        require_free_port(self._options.port)
        state = new_state(self._processes.mark)
        save_state(self._options.directory, state)
        with ExitStack() as cleanup:
            cleanup.callback(self._check_nothing_left, state)
            cleanup.callback(self._stop_box, state)
            self._say(
                "Starting a Slurm of its own: munge, database, controller, nodes, sshd. The first time on a machine"
            )
            self._say(f"this installs packages and Ray and takes some minutes; see {self._logs / 'slurm.log'}.")
            box = start_box(state.box_directory, self._logs / "slurm.log")
            cleanup.callback(self._stop_dagster)
            self._say("Slurm is up. Starting Dagster's webserver and daemon ...")
            home = prepare_home(self._options.directory / "dagster_home")
            services = start_dagster(self._processes, home, self._logs, self._options.port, box.environment())
            self._run_job(box, services, home)
            if not self._options.oneshot:
                self._wait_for_the_end(services)
            # From here on everything is stopped; a second Ctrl-C must not leave half of it running.
            _ignore_signals()
        return self._problems

    def _run_job(self, box: Box, services: DagsterServices, home: Path) -> None:
        run_id = services.launch()
        self._say(f"Launched. Watch it: {services.url}/runs/{run_id}")
        with closing(RunLog(home, run_id)) as log:
            try:
                status = self._watch(box, services, log)
            except BaseException:
                _ignore_signals()
                self._cancel(services, log, run_id)
                raise
            self._sum_up(box, services, log, run_id, status)

    def _watch(self, box: Box, services: DagsterServices, log: RunLog) -> DagsterRunStatus:
        """Print a line whenever something changed, until the run has ended."""
        deadline = time.monotonic() + self._options.run_limit_seconds
        shown = ""
        while True:
            services.check()
            status = log.read()
            line = f"{count_by_state(parse_queue(box.ask(QUEUE_COMMAND)))}; {log.progress.tasks}"
            if line != shown:
                self._say(line)
                shown = line
            if status in FINISHED:
                return status
            if time.monotonic() > deadline:
                raise DemoError(f"The run took longer than {self._options.run_limit_seconds:.0f} s.")
            time.sleep(WATCH_SECONDS)

    def _cancel(self, services: DagsterServices, log: RunLog, run_id: str) -> None:
        """Cancel the run as a user would, so that it ends its own allocations."""
        self._say("Cancelling the run ...")
        try:
            services.cancel(run_id)
        except DemoError as problem:
            self._say(str(problem))
        if not wait_until(lambda: log.read() in FINISHED, CANCEL_LIMIT_SECONDS):
            self._say("The run did not end in time; its processes and jobs are stopped from outside.")

    def _sum_up(self, box: Box, services: DagsterServices, log: RunLog, run_id: str, status: DagsterRunStatus) -> None:
        """Print result, accounting and addresses, and note what is not as it should be."""

        def missing() -> list[str]:
            jobs = parse_accounting(box.ask(ACCOUNTING_COMMAND))
            return shortcomings(jobs, parse_queue(box.ask(QUEUE_COMMAND)), LEAST_WORKERS)

        # Slurm writes the end of a job to its accounting a little after the job has left.
        wait_until(lambda: not missing(), SETTLE_LIMIT_SECONDS)
        self._problems += missing()
        if status is not DagsterRunStatus.SUCCESS:
            self._problems.append(f"the run ended with {status.value}: {log.progress.failure or 'no step failed'}")
        elif not log.materialized(ASSET):
            self._problems.append(f"the run did not materialize {ASSET}")
        print(f"\nRun {run_id}: {status.value}")
        print(result_lines(log.progress))
        print("\nSlurm's accounting:")
        print(accounting_table(parse_accounting(box.ask(ACCOUNTING_COMMAND))))
        print(f"\nRun:   {services.url}/runs/{run_id}\nAsset: {services.url}/assets/{ASSET}\n", flush=True)

    def _wait_for_the_end(self, services: DagsterServices) -> None:
        for sentence in self._problems:
            self._say(f"PROBLEM: {sentence}")
        self._say("Look around; Ctrl-C stops everything.")
        try:
            while True:
                services.check()
                time.sleep(WATCH_SECONDS)
        except Stopped:
            print()

    def _end_leftovers(self) -> None:
        """End what a demo of this directory left that was itself killed."""
        left = load_state(self._options.directory)
        if left is None:
            return
        self._say("An earlier demo here was killed; ending what it left ...")
        stopped = MarkedProcesses(left.mark).stop()
        stop_box(left.box_directory, self._logs / "slurm.log")
        clear_state(self._options.directory)
        self._say(f"Ended {len(stopped)} processes and the Slurm in {left.box_directory}.")

    def _stop_dagster(self) -> None:
        _ignore_signals()
        stopped = self._processes.stop()
        self._say(f"Stopped Dagster, {len(stopped)} processes:")
        for process in stopped:
            print(f"           {process}", flush=True)

    def _stop_box(self, state: DemoState) -> None:
        _ignore_signals()
        if stop_box(state.box_directory, self._logs / "slurm.log"):
            self._say("Stopped Slurm and every job in it.")

    def _check_nothing_left(self, state: DemoState) -> None:
        left = [*self._processes.left(), *processes_using(state.box_directory)]
        if left:
            self._problems.append("processes are left: " + "; ".join(left))
        else:
            clear_state(self._options.directory)
            self._say("No process of the demo is left.")

    def _say(self, sentence: str) -> None:
        print(f"{time.monotonic() - self._begin:5.0f} s  {sentence}", flush=True)


def result_lines(progress: RunProgress) -> str:
    """What the asset's materialization says, for the terminal."""
    lines = [f"  {name.replace('_', ' ')}: {progress.metadata[name]}" for name in _SHOWN if name in progress.metadata]
    return "\n".join(lines) or "  no result"


def _ignore_signals() -> None:
    # A handler rather than SIG_IGN: programs started from now on would inherit that.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _say_stopping)


def _say_stopping(number: int, frame: FrameType | None) -> None:
    print("Already stopping everything ...", flush=True)
