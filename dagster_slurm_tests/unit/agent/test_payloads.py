"""Payloads without Ray: real processes, no cluster."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagster_slurm.agent.payloads import (
    CANCEL_GRACE_SECONDS,
    Payloads,
    final_status,
    payload_argv,
    payload_environment,
)

ADDRESS = "10.0.0.1:6379"


class World:
    """A session directory with payloads, and the head's runner of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "payloads").mkdir()
        self.said: list[str] = []
        self.ray_runs = True
        self.runner = self.new_runner("12")

    def new_runner(self, job: str) -> Payloads:
        return Payloads(
            str(self.directory),
            job,
            python=sys.executable,
            environ={"PATH": os.environ["PATH"], "RAY_AUTH_MODE": "token"},
            node_file="/s/nodes/12.n1.json",
            say=self.said.append,
        )

    def add(self, payload_id: str, program: str, **spec: Any) -> Path:
        directory = self.directory / "payloads" / payload_id
        (directory / "files").mkdir(parents=True)
        (directory / "files" / "main.py").write_text(program)
        content = {"argv": ["{python}", "main.py"], "env": {}, "cwd": "files", **spec}
        (directory / "spec.json").write_text(json.dumps(content))
        return directory

    def status(self, payload_id: str) -> dict[str, Any]:
        content = json.loads((self.directory / "payloads" / payload_id / "status.json").read_text())
        assert isinstance(content, dict)
        return content

    def watch_until(self, condition: Callable[[], bool], later_seconds: float = 0.0) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline
            self.runner.watch(time.monotonic() + later_seconds, lambda: self.ray_runs)
            time.sleep(0.02)

    def run(self, payload_id: str) -> dict[str, Any]:
        self.runner.accept(ADDRESS)
        self.watch_until(lambda: self.status(payload_id)["state"] != "running")
        return self.status(payload_id)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize(
    ("code", "cancelled", "because", "expected"),
    [
        (0, False, None, ("succeeded", 0, None, False)),
        (3, False, None, ("failed", 3, None, False)),
        (-9, False, None, ("failed", None, 9, False)),
        (-15, True, None, ("cancelled", None, 15, False)),
        (0, True, None, ("cancelled", 0, None, False)),
        (-15, False, "walltime", ("failed", None, 15, True)),
        (-15, True, "walltime", ("cancelled", None, 15, False)),
    ],
)
def test_final_states(code: int, cancelled: bool, because: str | None, expected: tuple[Any, ...]) -> None:
    status = final_status(code, cancelled=cancelled, ended_because=because)
    assert (status["state"], status["exit_code"], status["signal"], status["ended_with_head"]) == expected


def test_only_the_whole_word_stands_for_the_python() -> None:
    assert payload_argv(["{python}", "a{python}.py", "x"], "/opt/python") == ["/opt/python", "a{python}.py", "x"]


def test_a_payloads_environment_keeps_its_own_but_not_over_the_sessions() -> None:
    environ = payload_environment(
        {"PATH": "/bin", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/s/ray.token", "PYTHONPATH": "/base"},
        {"MINE": "1", "RAY_AUTH_MODE": "disabled", "RAY_ADDRESS": "elsewhere", "PYTHONPATH": "/own"},
        session_dir="/s",
        directory="/s/payloads/p",
        address=ADDRESS,
        node_file="/s/nodes/12.n1.json",
    )
    assert environ["MINE"] == "1"
    assert (environ["RAY_AUTH_MODE"], environ["RAY_ADDRESS"]) == ("token", ADDRESS)
    assert environ["PYTHONPATH"] == "/s/lib:/own"
    assert environ["DAGSTER_SLURM_WORK_FILE"] == "/s/payloads/p/work.json"
    assert environ["PYTHONUNBUFFERED"] == "1"


def test_a_payload_runs_in_its_directory_and_its_output_is_kept(world: World) -> None:
    directory = world.add(
        "p", "import os, sys; print(os.getcwd()); print('err', file=sys.stderr); print(os.environ['A'])"
    )
    (directory / "spec.json").write_text(json.dumps({"argv": ["{python}", "main.py"], "env": {"A": 7}, "cwd": "files"}))
    status = world.run("p")
    assert (status["state"], status["exit_code"], status["head_job_id"]) == ("succeeded", 0, "12")
    assert (directory / "log").read_text().splitlines() == [str(directory / "files"), "err", "7"]
    assert (directory / "claim.12").exists()


def test_a_payload_without_a_complete_spec_waits(world: World) -> None:
    directory = world.add("p", "")
    spec = (directory / "spec.json").read_text()
    (directory / "spec.json").write_text(spec[:10])
    world.runner.accept(ADDRESS)
    assert not (directory / "status.json").exists()
    (directory / "spec.json").write_text(spec)
    assert world.run("p")["state"] == "succeeded"


def test_a_payload_of_another_head_is_left_alone(world: World) -> None:
    directory = world.add("p", "print('never')")
    (directory / "claim.11").touch()
    world.runner.accept(ADDRESS)
    assert not (directory / "status.json").exists()
    assert not (directory / "claim.12").exists()


def test_a_finished_payload_is_not_run_again_by_a_restarted_head(world: World) -> None:
    directory = world.add("p", "print('once')")
    world.run("p")
    world.new_runner("12").accept(ADDRESS)
    assert world.status("p")["state"] == "succeeded"
    assert (directory / "log").read_text() == "once\n"


def test_a_payload_that_a_restart_interrupted_is_closed(world: World) -> None:
    directory = world.add("p", "print('never')")
    (directory / "claim.12").touch()
    world.runner.accept(ADDRESS)
    status = world.status("p")
    assert (status["state"], status["ended_with_head"]) == ("failed", True)


@pytest.mark.parametrize("spec", [{"argv": ["/no/such/program"]}, {"argv": []}, {"argv": None}, {"cwd": "nowhere"}])
def test_a_payload_that_cannot_start_says_why(world: World, spec: dict[str, Any]) -> None:
    world.add("p", "", **spec)
    status = world.run("p")
    assert status["state"] == "failed"
    assert status["message"].startswith("could not be started")


def test_a_payload_cancelled_before_its_start_never_runs(world: World) -> None:
    directory = world.add("p", "print('never')")
    (directory / "cancel").touch()
    world.runner.accept(ADDRESS)
    assert world.status("p")["state"] == "cancelled"
    assert not (directory / "log").exists()


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
program = "import os, time; os.setsid(); print('child', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", program])
open("pids", "w").write(f"{os.getpid()} {child.pid}")
os.rename("pids", "ready")
time.sleep(600)
"""


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def test_a_cancelled_payload_that_ignores_term_is_killed_with_all_its_processes(world: World) -> None:
    directory = world.add("p", STUBBORN)
    world.runner.accept(ADDRESS)
    ready = directory / "files" / "ready"
    world.watch_until(lambda: ready.exists() and "child" in (directory / "log").read_text())
    pids = [int(word) for word in ready.read_text().split()]
    (directory / "cancel").touch()
    world.watch_until(lambda: any("cancelled" in line for line in world.said))
    assert world.status("p")["state"] == "running"
    world.watch_until(lambda: world.status("p")["state"] != "running", later_seconds=CANCEL_GRACE_SECONDS + 5)
    status = world.status("p")
    assert (status["state"], status["signal"]) == ("cancelled", 9)
    assert all(gone(pid) for pid in pids)


@pytest.mark.parametrize(
    ("program", "ray_runs", "ended_with_head"),
    [("raise SystemExit(1)", True, False), ("raise SystemExit(1)", False, True), ("", False, False)],
)
def test_a_payload_that_fails_because_ray_has_gone_ended_with_its_head(
    world: World, program: str, ray_runs: bool, ended_with_head: bool
) -> None:
    world.ray_runs = ray_runs
    world.add("p", program)
    status = world.run("p")
    assert status["state"] == ("failed" if program else "succeeded")
    assert status["ended_with_head"] is ended_with_head


def test_the_end_of_the_head_ends_all_payloads_and_says_so(world: World) -> None:
    polite = world.add("polite", "open('ready', 'w').close()\nimport time\ntime.sleep(600)")
    stubborn = world.add("stubborn", STUBBORN)
    world.runner.accept(ADDRESS)
    world.watch_until(
        lambda: (
            (polite / "files" / "ready").exists() and "child" in (stubborn / "log").read_text()
            if (stubborn / "files" / "ready").exists()
            else False
        )
    )
    pids = [int(word) for word in (stubborn / "files" / "ready").read_text().split()]
    world.runner.end_all("the session is closing", 0.2)
    for payload_id in ("polite", "stubborn"):
        status = world.status(payload_id)
        assert (status["state"], status["ended_with_head"]) == ("failed", True)
        assert status["message"] == "ended with its head: the session is closing"
    assert all(gone(pid) for pid in pids)
    assert world.runner.child_pids() == []


def test_a_payload_whose_directory_was_removed_harms_nobody(world: World) -> None:
    directory = world.add("p", "open('ready', 'w').close()\nimport time\ntime.sleep(600)")
    world.runner.accept(ADDRESS)
    world.watch_until((directory / "files" / "ready").exists)
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    directory.rmdir()
    world.runner.end_all("the session is closing", 1.0)
    assert world.runner.child_pids() == []
