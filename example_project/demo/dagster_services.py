"""Dagster for the demo: its home, webserver and daemon on loopback, and the launch of the job as a user would."""

from __future__ import annotations

import json
import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import dagster as dg
from dagster_graphql import DagsterGraphQLClient, DagsterGraphQLClientError

from dagster_slurm_tests.cluster.daemons import tail
from example_project.demo.errors import DemoError
from example_project.demo.processes import MarkedProcesses, Service, wait_until

ADDRESS = "127.0.0.1"
DEFINITIONS = "example_project.definitions"
JOB = "digits_job"
ASSET = "digits_search"
START_LIMIT_SECONDS = 120.0
_SETTINGS = """\
# Nothing is reported to anyone, and no dialog covers the first page.
telemetry:
  enabled: false
nux:
  enabled: false
"""
_LOCATIONS = """{ workspaceOrError { ... on Workspace { locationEntries { loadStatus locationOrLoadError {
  __typename ... on PythonError { message } } } } } }"""


@attrs.frozen
class DagsterServices:
    """A webserver and a daemon that have loaded the example."""

    port: int
    webserver: Service
    daemon: Service

    @property
    def url(self) -> str:
        """Where a browser finds the pages."""
        return f"http://localhost:{self.port}"

    def check(self) -> None:
        """Raise DemoError when one of the two has ended."""
        self.webserver.check()
        self.daemon.check()

    def launch(self) -> str:
        """Launch the job through the webserver and return the run's id; DemoError when it refuses."""
        with _explained("launch"):
            return DagsterGraphQLClient(ADDRESS, port_number=self.port).submit_job_execution(JOB)

    def cancel(self, run_id: str) -> None:
        """Ask Dagster to cancel a run; DemoError when it refuses."""
        with _explained("cancel"):
            DagsterGraphQLClient(ADDRESS, port_number=self.port).terminate_run(run_id)


@contextmanager
def _explained(action: str) -> Iterator[None]:
    try:
        yield
    except (DagsterGraphQLClientError, OSError) as problem:
        raise DemoError(f"Dagster's webserver did not {action} the run: {problem}") from problem


def require_free_port(port: int) -> None:
    """Raise DemoError when something listens on that port of the loopback address."""
    with socket.socket() as probe:
        # A connection that a former webserver has closed may still linger; only a listener is in the way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError as problem:
            raise DemoError(
                f"Port {port} of {ADDRESS} cannot be used ({problem.strerror}). "
                "Stop what listens there, or choose another port: DEMO_PORT=3001 make demo"
            ) from None


def prepare_home(directory: Path) -> Path:
    """Make a DAGSTER_HOME, or keep the one that is there with the history of earlier runs.

    Its databases are made here, by one process: webserver and daemon would make them at the same moment, and one of the
    two fails then.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "dagster.yaml").write_text(_SETTINGS, encoding="utf-8")
    with dg.DagsterInstance.from_config(str(directory)) as instance:
        # One question to each of runs, events and schedules.
        instance.get_runs_count()
        instance.get_latest_materialization_event(dg.AssetKey(ASSET))
        instance.all_instigator_state()
    return directory


def start_dagster(
    processes: MarkedProcesses, home: Path, logs: Path, port: int, settings: Mapping[str, str]
) -> DagsterServices:
    """Start webserver and daemon and wait until the example's definitions are loaded.

    Args:
        processes: Starts them.
        home: The DAGSTER_HOME.
        logs: Directory for their logs.
        port: Port of the webserver on the loopback address.
        settings: The environment variables that definitions.py reads.

    Raises:
        DemoError: when one ends, or the definitions do not load.
    """
    # Output that is not buffered: the end of a log says why its process ended.
    environment = {**os.environ, **settings, "DAGSTER_HOME": str(home), "PYTHONUNBUFFERED": "1"}
    webserver = [sys.executable, "-m", "dagster_webserver", "-h", ADDRESS, "-p", str(port), "-m", DEFINITIONS]
    daemon = [sys.executable, "-m", "dagster._daemon", "run", "-m", DEFINITIONS]
    services = DagsterServices(
        port,
        processes.start("dagster-webserver", webserver, environment, logs / "webserver.log"),
        processes.start("dagster-daemon", daemon, environment, logs / "daemon.log"),
    )

    def loaded() -> bool:
        services.check()
        return definitions_loaded(port)

    if not wait_until(loaded, START_LIMIT_SECONDS):
        raise DemoError(f"Dagster did not answer within {START_LIMIT_SECONDS:.0f} s.\n{tail(services.webserver.log)}")
    return services


def definitions_loaded(port: int) -> bool:
    """Whether the webserver answers and has loaded the definitions; DemoError when they cannot be loaded."""
    request = urllib.request.Request(
        f"http://{ADDRESS}:{port}/graphql",
        data=json.dumps({"query": _LOCATIONS}).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            answer: Mapping[str, Any] = json.load(reply)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
    entries = answer["data"]["workspaceOrError"].get("locationEntries", [])
    for entry in entries:
        location = entry["locationOrLoadError"]
        if location is not None and location["__typename"] == "PythonError":
            raise DemoError(f"Dagster cannot load {DEFINITIONS}: {location['message']}")
    return bool(entries) and all(entry["loadStatus"] == "LOADED" for entry in entries)
