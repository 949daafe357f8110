"""Payloads: programs that a client put into ``payloads/<id>`` and that run on the head, several at once."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .files import create_exclusively, exists, read_document, write_document
from .processes import end_tree, signal_group, start, wait_until

#: Between TERM and KILL for a cancelled payload.
CANCEL_GRACE_SECONDS = 10.0

#: How often a running payload's directory is looked at for ``cancel``.
CANCEL_LOOK_SECONDS = 1.0

FINAL_STATES = ("succeeded", "failed", "cancelled")


@dataclass
class Running:
    """A payload's process."""

    payload_id: str
    directory: str
    child: subprocess.Popen[bytes]
    cancelled_at: float | None = None
    killed: bool = False
    looked_at: float = float("-inf")


def payload_argv(argv: Sequence[str], python: str) -> list[str]:
    """The command line; the word ``{python}`` stands for the Python that runs Ray."""
    return [python if word == "{python}" else word for word in argv]


def payload_environment(
    base: Mapping[str, str], own: Mapping[str, str], *, session_dir: str, directory: str, address: str, node_file: str
) -> dict[str, str]:
    """Environment of a payload: the base without step variables, the payload's own, and last what it cannot change."""
    search_path = [os.path.join(session_dir, "lib"), own.get("PYTHONPATH") or base.get("PYTHONPATH") or ""]
    return {
        **base,
        "PYTHONUNBUFFERED": "1",
        **own,
        **{name: base[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH") if name in base},
        "RAY_ADDRESS": address,
        "PYTHONPATH": os.pathsep.join(part for part in search_path if part),
        "DAGSTER_SLURM_WORK_FILE": os.path.join(directory, "work.json"),
        "DAGSTER_SLURM_SESSION_DIR": session_dir,
        "DAGSTER_SLURM_NODE_FILE": node_file,
    }


def final_status(return_code: int, *, cancelled: bool, ended_because: str | None) -> dict[str, Any]:
    """State, exit code, signal and message of a payload that has ended.

    ``ended_because`` is set when the agent ended it; ``return_code`` is negative for a signal.
    """
    status: dict[str, Any] = {
        "exit_code": return_code if return_code >= 0 else None,
        "signal": -return_code if return_code < 0 else None,
        "ended_with_head": False,
    }
    if cancelled:
        return {**status, "state": "cancelled", "message": "cancelled"}
    if ended_because is not None:
        return {
            **status,
            "state": "failed",
            "ended_with_head": True,
            "message": f"ended with its head: {ended_because}",
        }
    if return_code == 0:
        return {**status, "state": "succeeded", "message": None}
    if return_code < 0:
        return {**status, "state": "failed", "message": f"ended by signal {-return_code}"}
    return {**status, "state": "failed", "message": f"exited with status {return_code}"}


class Payloads:
    """Claims, starts, watches and ends the payloads of one head."""

    def __init__(
        self,
        session_dir: str,
        slurm_job_id: str,
        *,
        python: str,
        environ: Mapping[str, str],
        node_file: str,
        say: Callable[[str], None],
    ) -> None:
        self._session_dir = session_dir
        self._folder = os.path.join(session_dir, "payloads")
        self._job = slurm_job_id
        self._python = python
        self._environ = environ
        self._node_file = node_file
        self._say = say
        self._done: set[str] = set()
        self._running: dict[str, Running] = {}
        self._complained: set[str] = set()
        self._owed: dict[str, Mapping[str, Any]] = {}

    def child_pids(self) -> list[int]:
        return [running.child.pid for running in self._running.values()]

    def accept(self, address: str) -> None:
        """Claim and start what waits. A payload that another head has claimed is never run again."""
        try:
            waiting = sorted(set(os.listdir(self._folder)) - self._done - set(self._running))
        except OSError:
            return
        for payload_id in waiting:
            try:
                self._accept_one(payload_id, os.path.join(self._folder, payload_id), address)
            except OSError as error:
                # A full or absent filesystem: nothing is claimed, the payload still waits.
                if payload_id not in self._complained:
                    self._complained.add(payload_id)
                    self._say(f"payload {payload_id} cannot be claimed: {error}")

    def _accept_one(self, payload_id: str, directory: str, address: str) -> None:
        spec = read_document(os.path.join(directory, "spec.json"))
        if spec is None:
            return
        claims = [name for name in os.listdir(directory) if name.startswith("claim.")]
        claimed = not claims and create_exclusively(os.path.join(directory, f"claim.{self._job}"), self._node_file)
        self._done.add(payload_id)
        if claimed:
            self._start(payload_id, directory, spec.content, address)
        elif f"claim.{self._job}" in claims:
            self._close_interrupted(directory)

    def watch(self, now: float, ray_runs: Callable[[], bool]) -> None:
        """Cancel what is to be cancelled, record what has ended.

        Args:
            now: This agent's clock.
            ray_runs: Whether Ray's own processes live; a payload that fails without them did not fail by itself.
        """
        for directory, owed in list(self._owed.items()):
            self._write_status(directory, owed)
        for running in list(self._running.values()):
            look = now - running.looked_at >= CANCEL_LOOK_SECONDS
            running.looked_at = now if look else running.looked_at
            if look and running.cancelled_at is None and exists(os.path.join(running.directory, "cancel")):
                running.cancelled_at = now
                self._say(f"payload {running.payload_id}: cancelled, its processes get SIGTERM")
                signal_group(running.child, signal.SIGTERM)
            late = running.cancelled_at is not None and now - running.cancelled_at > CANCEL_GRACE_SECONDS
            if late and not running.killed:
                running.killed = True
                end_tree(running.child, grace_seconds=0.0)
            if running.child.poll() is not None:
                ray_gone = running.child.returncode != 0 and not ray_runs()
                self._finish(running, "Ray has ended on its node" if ray_gone else None)

    def end_all(self, reason: str, grace_seconds: float) -> None:
        """End every payload because the head ends."""
        ending = list(self._running.values())
        for running in ending:
            signal_group(running.child, signal.SIGTERM)
        wait_until(lambda: all(running.child.poll() is not None for running in ending), grace_seconds)
        for running in ending:
            end_tree(running.child, grace_seconds=0.0)
            self._finish(running, reason)

    def _start(self, payload_id: str, directory: str, spec: Mapping[str, Any], address: str) -> None:
        if exists(os.path.join(directory, "cancel")):
            self._write_status(directory, {"state": "cancelled", "message": "cancelled before it started"})
            return
        try:
            environ = payload_environment(
                self._environ,
                {str(name): str(value) for name, value in dict(spec.get("env") or {}).items()},
                session_dir=self._session_dir,
                directory=directory,
                address=address,
                node_file=self._node_file,
            )
            argv = payload_argv([str(word) for word in spec["argv"]], self._python)
            with open(os.path.join(directory, "log"), "ab") as log:
                child = start(argv, environ, cwd=os.path.join(directory, str(spec.get("cwd") or ".")), output=log)
        except (OSError, KeyError, IndexError, TypeError, ValueError, subprocess.SubprocessError) as error:
            self._write_status(
                directory,
                {"state": "failed", "message": f"could not be started: {type(error).__name__}: {error}"},
            )
            return
        self._running[payload_id] = Running(payload_id, directory, child)
        self._write_status(directory, {"state": "running"})
        self._say(f"payload {payload_id}: started as process {child.pid}")

    def _finish(self, running: Running, reason: str | None) -> None:
        return_code = running.child.wait()
        # What it left in its group is its own and ends with it.
        signal_group(running.child, signal.SIGKILL)
        del self._running[running.payload_id]
        status = final_status(return_code, cancelled=running.cancelled_at is not None, ended_because=reason)
        self._write_status(running.directory, status)
        self._say(f"payload {running.payload_id}: {status['state']} ({status['message'] or 'exit status 0'})")

    def _close_interrupted(self, directory: str) -> None:
        """Ours by its claim but not running: this allocation was started a second time."""
        status = read_document(os.path.join(directory, "status.json"))
        if status is None or status.content.get("state") not in FINAL_STATES:
            message = "ended with its head: the allocation was started again"
            self._write_status(directory, {"state": "failed", "message": message, "ended_with_head": True})

    def _write_status(self, directory: str, status: Mapping[str, Any]) -> None:
        full = {"schema_version": 1, "exit_code": None, "signal": None, "message": None, "ended_with_head": False}
        self._owed.pop(directory, None)
        try:
            write_document(os.path.join(directory, "status.json"), {**full, **status, "head_job_id": self._job})
        except FileNotFoundError:
            return  # the directory was removed meanwhile: nobody reads it
        except OSError as error:
            self._owed[directory] = status
            self._say(f"status of {directory} cannot be written, trying again: {error}")
