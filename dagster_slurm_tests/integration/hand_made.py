"""A session directory made by hand and agents started as Slurm would start them, on this host and without Slurm."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

AGENT = Path(__file__).parents[2] / "dagster_slurm" / "agent"
# Not DAGSTER_SLURM_...: the agent keeps such variables from its children.
MARK = "TEST_OF_AGENT_MARK"
GIBIBYTE = 1024**3


def wait_for(what: str, condition: Callable[[], Any], limit_seconds: float = 180.0) -> Any:
    """Poll until the condition gives something true; AssertionError naming ``what`` at the limit."""
    deadline = time.monotonic() + limit_seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {limit_seconds:.0f} s"
        time.sleep(0.1)
    return found


def read_json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    assert isinstance(content, dict)
    return content


class HandMadeSession:
    """The session side of the contract, as plain file operations."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mark = secrets.token_hex(8)
        # Ray's sockets need a short path.
        self.local_directory = tempfile.mkdtemp(prefix="a-", dir="/tmp")
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("submissions", "nodes", "cluster", "payloads", "lib"):
            (directory / name).mkdir(parents=True)
        shutil.copytree(
            AGENT, directory / "lib" / "dagster_slurm_agent", ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
        token = directory / "ray.token"
        token.touch(0o600)
        token.write_text(secrets.token_hex(32))
        (directory / "lease").touch()
        self.write_ledger(None)

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(json.dumps(content))
        temporary.rename(path)

    def write_ledger(self, head_job: str | None) -> None:
        head = None if head_job is None else {"slurm_job_id": head_job, "token": f"t{head_job}"}
        self.write("allocation.json", {"schema_version": 1, "head": head, "workers": [], "worker_submissions": {}})

    def write_settings(self, token: str, settings: Mapping[str, Any]) -> None:
        """The submission's ``agent.json``: defaults for these tests, changed by ``settings``."""
        self.write(
            f"submissions/{token}/agent.json",
            {
                "role": "worker",
                "token": token,
                "slurm_job_name": "",
                "intent": None,
                "drain_window_seconds": 60,
                "rejoin_timeout_seconds": 60,
                "orphan_timeout_seconds": None,
                "head_only": False,
                "ray_start_args": [],
                "ray_resources": {},
                "python": sys.executable,
                **settings,
            },
        )

    def start(
        self, job: str, *, python_command: str = sys.executable, write_settings: bool = True, **settings: Any
    ) -> subprocess.Popen[bytes]:
        """Start the agent of a job that Slurm has granted one CPU and 1 GiB on this host."""
        token = f"t{job}"
        if write_settings:
            self.write_settings(token, settings)
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM", "RAY_", "DAGSTER_SLURM", "CUDA"))
        }
        environ |= {
            MARK: self.mark,
            "SLURM_JOB_ID": job,
            "SLURMD_NODENAME": f"c{job}",
            "SLURM_JOB_CPUS_PER_NODE": "1",
            "SLURM_MEM_PER_NODE": "1024",
            "SLURM_JOB_NUM_NODES": "1",
            "SLURM_NODEID": "0",
            "TMPDIR": self.local_directory,
            "DAGSTER_SLURM_OBJECT_STORE_BYTES": str(80 * 1024 * 1024),
        }
        agent_directory = str(self.directory / "lib" / "dagster_slurm_agent")
        with (self.directory / "submissions" / token / "log").open("ab") as log:
            agent = subprocess.Popen(
                [python_command, "-u", agent_directory, "batch", "--session", str(self.directory), "--token", token],
                env=environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.agents[job] = agent
        return agent

    def report(self, job: str) -> dict[str, Any]:
        return read_json(self.directory / "nodes" / f"{job}.c{job}.json") or {}

    def state(self, job: str) -> str | None:
        state = self.report(job).get("state")
        return None if state is None else str(state)

    def has_state(self, job: str, state: str) -> bool:
        return self.state(job) == state

    def payload_runs(self, payload_id: str) -> bool:
        return self.payload_status(payload_id).get("state") == "running"

    def cluster_nodes(self, head_job: str) -> dict[str, dict[str, Any]]:
        """Living Ray nodes by Slurm job id, as the head has published them."""
        content = read_json(self.directory / "cluster" / f"{head_job}.json") or {}
        return {node["slurm_job_id"]: node for node in content.get("nodes", []) if node["state"] != "DEAD"}

    def log(self, job: str) -> str:
        return (self.directory / "submissions" / f"t{job}" / "log").read_text(errors="replace")

    def start_payload(self, payload_id: str, program: str, **spec: Any) -> Path:
        directory = self.directory / "payloads" / payload_id
        (directory / "files").mkdir(parents=True)
        (directory / "files" / "main.py").write_text(program)
        content = {"schema_version": 1, "argv": ["{python}", "main.py"], "env": {}, "cwd": "files", **spec}
        self.write(f"payloads/{payload_id}/spec.json", content)
        return directory

    def payload_status(self, payload_id: str) -> dict[str, Any]:
        return read_json(self.directory / "payloads" / payload_id / "status.json") or {}

    def processes_left(self) -> list[str]:
        """Command lines of living processes that were started below one of our agents."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                marked = f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if marked and command:
                found.append(f"{entry.name} {command}")
        return found

    def end(self) -> None:
        """End what a test left over, by its process ids."""
        (self.directory / "closing").touch()
        for agent in self.agents.values():
            try:
                agent.wait(timeout=30)
            except subprocess.TimeoutExpired:
                agent.kill()
        for line in self.processes_left():
            os.kill(int(line.split()[0]), signal.SIGKILL)
        shutil.rmtree(self.local_directory)
