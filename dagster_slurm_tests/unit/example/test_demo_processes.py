"""The demo finds and ends what it started, and nothing else."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from example_project.demo.__main__ import parse_options
from example_project.demo.dagster_services import require_free_port
from example_project.demo.errors import DemoError
from example_project.demo.processes import MarkedProcesses, processes_using, wait_until
from example_project.demo.state import DemoState, clear_state, load_state, only_demo, save_state

# Leaves a grandchild in a session of its own, whose parent is then init.
DETACHING = "import subprocess, time; subprocess.Popen(['sleep', '300'], start_new_session=True); time.sleep(300)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(300)"
)


def started(processes: MarkedProcesses, code: str, log: Path) -> int:
    return processes.start("it", [sys.executable, "-c", code], os.environ, log).process.pid


def test_a_detached_grandchild_is_found_and_ended(tmp_path: Path) -> None:
    processes, other = MarkedProcesses(), MarkedProcesses()
    parent = started(processes, DETACHING, tmp_path / "log")
    bystander = started(other, DETACHING, tmp_path / "other")
    try:
        assert wait_until(lambda: any("sleep 300" in process for process in processes.left()), 20)
        os.kill(parent, signal.SIGKILL)
        assert wait_until(lambda: len(processes.left()) == 1, 20)
        assert [process.split(" ", 1)[1] for process in processes.stop()] == ["sleep 300"]
        assert processes.left() == []
        assert any(process.startswith(f"{bystander} ") for process in other.left())
    finally:
        processes.stop()
        other.stop()
    assert other.left() == []


def test_one_that_ignores_the_request_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("example_project.demo.processes.GRACE_SECONDS", 0.3)
    processes = MarkedProcesses()
    started(processes, STUBBORN, tmp_path / "log")
    try:
        assert wait_until(lambda: (tmp_path / "log").read_text() == "up\n", 20)
    finally:
        processes.stop()
    assert processes.left() == []


def test_a_service_that_ended_shows_the_end_of_its_log(tmp_path: Path) -> None:
    service = MarkedProcesses().start(
        "webserver", [sys.executable, "-c", "import sys; sys.exit('no module named x')"], os.environ, tmp_path / "log"
    )
    service.process.wait(30)
    with pytest.raises(DemoError, match=r"webserver ended with status 1(?s:.)*no module named x"):
        service.check()


def test_a_process_that_works_in_a_directory_is_found(tmp_path: Path) -> None:
    assert processes_using(tmp_path) == []
    with subprocess.Popen(["sleep", "300"], cwd=tmp_path) as process:
        try:
            assert wait_until(lambda: processes_using(tmp_path) == [f"{process.pid} sleep 300"], 20)
        finally:
            process.kill()
    assert processes_using(tmp_path) == []


def test_a_port_that_is_taken_is_named_with_the_way_out() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with pytest.raises(DemoError, match=rf"Port {port} of 127\.0\.0\.1 .*DEMO_PORT="):
            require_free_port(port)
    require_free_port(port)


def test_the_state_survives_until_it_is_cleared(tmp_path: Path) -> None:
    state = DemoState("abc", Path("/var/tmp/x/demo-1"))
    assert load_state(tmp_path) is None
    save_state(tmp_path, state)
    assert load_state(tmp_path) == state
    clear_state(tmp_path)
    clear_state(tmp_path)
    assert load_state(tmp_path) is None


@pytest.mark.parametrize("content", ["", "[]", '{"mark": "x"}'])
def test_a_state_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "demo.json").write_text(content)
    with pytest.raises(DemoError, match=r"demo\.json cannot be read"):
        load_state(tmp_path)


def test_one_demo_at_a_time_in_a_directory(tmp_path: Path) -> None:
    with (
        only_demo(tmp_path / "demo"),
        pytest.raises(DemoError, match="Another demo uses"),
        only_demo(tmp_path / "demo"),
    ):
        pass
    with only_demo(tmp_path / "demo"):
        assert (tmp_path / "demo" / "lock").exists()


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("", False), ("0", False)])
def test_make_passes_its_variables_on(monkeypatch: pytest.MonkeyPatch, value: str, expected: bool) -> None:
    monkeypatch.setenv("ONESHOT", value)
    monkeypatch.setenv("DEMO_PORT", "3005")
    options = parse_options([])
    assert (options.oneshot, options.port) == (expected, 3005)
    assert options.directory == Path(".demo").resolve()
