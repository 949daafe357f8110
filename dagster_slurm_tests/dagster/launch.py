"""Jobs of ``jobs.py`` in a process of their own, as Dagster's run workers are, so that a test can interrupt them.

``python -m dagster_slurm_tests.dagster.launch JOB EXECUTOR`` is the far end.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import dagster as dg

_SETTINGS = "telemetry:\n  enabled: false\n"


class Launched:
    """A run in a process of its own.

    Args:
        home: Its DAGSTER_HOME, made here.
        job: Name of the job in ``jobs.py``.
        executor: "in_process" or "multiprocess".
        environment: Variables for its resource.
    """

    def __init__(self, home: Path, job: str, executor: str, environment: Mapping[str, str]) -> None:
        home.mkdir()
        (home / "dagster.yaml").write_text(_SETTINGS)
        self.output = home / "output.log"
        self._instance = dg.DagsterInstance.local_temp(str(home))
        with self.output.open("wb") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dagster_slurm_tests.dagster.launch", job, executor],
                env={**os.environ, **environment, "DAGSTER_HOME": str(home)},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def instance(self) -> dg.DagsterInstance:
        """The instance, as its daemon would have it."""
        return self._instance

    @property
    def run(self) -> dg.DagsterRun | None:
        """The run as the instance has it now; None before it was created."""
        return next(iter(self._instance.get_runs()), None)

    @property
    def run_id(self) -> str:
        """The run's id; it has to be there."""
        run = self.run
        assert run is not None, self.output.read_text()
        return run.run_id

    def log(self) -> str:
        """The run's event log, with errors and their causes."""
        entries = self._instance.all_logs(self.run_id)
        failures = [e.dagster_event for e in entries if e.dagster_event is not None and e.dagster_event.is_step_failure]
        shown = [failure.step_failure_data.error_display_string for failure in failures]
        return "\n".join([*(entry.message for entry in entries), *shown])

    def cancel(self) -> None:
        """As Dagster's webserver and launcher do it: mark the run, interrupt its process."""
        run = self.run
        assert run is not None
        self._instance.report_run_canceling(run)
        self._process.send_signal(signal.SIGINT)

    def interrupt(self) -> None:
        """Ctrl-C: all processes in the foreground get it."""
        os.killpg(self._process.pid, signal.SIGINT)

    def kill(self) -> None:
        """All its processes are gone without a word; the run stays in progress, as Dagster has it."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self, seconds: float = 120) -> dg.DagsterRunStatus:
        """Wait for the end of the process and return the run's status."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not ended after {seconds} s:\n{self.output.read_text()[-5000:]}") from None
        run = self.run
        assert run is not None, self.output.read_text()
        return run.status

    def close(self) -> None:
        """End whatever is left."""
        deadline = time.monotonic() + 5
        while self._process.poll() is None and time.monotonic() < deadline:
            os.killpg(self._process.pid, signal.SIGKILL)
            time.sleep(0.05)
        self._process.wait()
        self._instance.dispose()


def main(job_name: str, executor: str) -> None:
    """Execute a job in the instance of DAGSTER_HOME."""
    from dagster_slurm_tests.dagster import jobs

    config = {"execution": {"config": {executor: {}}}}
    with dg.DagsterInstance.get() as instance:
        dg.execute_job(dg.reconstructable(getattr(jobs, job_name)), instance, run_config=config)


if __name__ == "__main__":
    main(*sys.argv[1:])
