"""The Slurm that the demo runs on: started and ended through its command line, asked with Slurm's own commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from dagster_slurm_tests.cluster.box import SlurmBox
from dagster_slurm_tests.cluster.daemons import tail
from example_project.demo.errors import DemoError
from example_project.demo.processes import wait_until

START_LIMIT_SECONDS = 900.0  # a fresh machine installs packages and Ray first
STOP_LIMIT_SECONDS = 120.0
_SETTINGS = ("host", "port", "user", "key_file", "known_hosts", "remote_base", "remote_setup", "ray_python")


@attrs.frozen
class Box:
    """A running Slurm.

    Attributes:
        directory: Everything of it lies below.
        settings: What ``up --json`` printed: where it listens and how to log in.
    """

    directory: Path
    settings: Mapping[str, Any]

    def environment(self) -> dict[str, str]:
        """The variables that definitions.py reads."""
        return {f"SLURM_{name.upper()}": str(self.settings[name]) for name in _SETTINGS}

    def ask(self, command: Sequence[str]) -> str:
        """Run a Slurm command as the administrator of this Slurm and return what it printed.

        Raises:
            BoxError: when the command fails.
        """
        return SlurmBox.attach(self.directory).run(command).stdout


def start_box(directory: Path, log: Path) -> Box:
    """Start a Slurm in `directory`; its progress goes to `log`.

    Raises:
        DemoError: when it does not come up; the message has the end of the log.
    """
    return Box(directory, json.loads(_run(("up", "--dir", str(directory), "--json"), log, START_LIMIT_SECONDS)))


def stop_box(directory: Path, log: Path) -> bool:
    """End the Slurm of that directory and every job in it; False when there is none.

    Raises:
        DemoError: when it does not go down; the message has the end of the log.
    """
    if not (directory / "state.json").exists():
        return False
    _run(("down", "--dir", str(directory)), log, STOP_LIMIT_SECONDS)
    return True


def _run(arguments: Sequence[str], log: Path, limit_seconds: float) -> str:
    """Run the command line of the box in a session of its own, so that Ctrl-C does not cut it in half."""
    with log.open("ab") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "dagster_slurm_tests.cluster", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
            start_new_session=True,
        )
    try:
        output, _ = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        raise DemoError(f"Slurm: {arguments[0]} took longer than {limit_seconds:.0f} s.\n{tail(log)}") from None
    finally:
        # After a timeout or a signal it is asked to end, and gets the time to clean up after itself.
        if process.poll() is None:
            process.terminate()
            if not wait_until(lambda: process.poll() is not None, 30.0):
                process.kill()
                process.wait()
    if process.returncode != 0:
        raise DemoError(f"Slurm: {arguments[0]} ended with status {process.returncode}.\n{tail(log)}")
    return output
