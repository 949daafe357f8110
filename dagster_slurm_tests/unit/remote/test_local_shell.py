"""The local shell: the same framing, a hard limit, and nothing left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_slurm.errors import RemoteTimeout
from dagster_slurm.remote.frames import quote
from dagster_slurm.remote.shell import LocalShell


def wait_until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Poll until it holds; fail after the bound."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # Killed, and only not yet collected by its new parent.
    return ") Z " in Path(f"/proc/{pid}/stat").read_text()


def test_runs_count_and_reply() -> None:
    shell = LocalShell(remote_setup="NAME=world; export NAME", slurm_bin="/opt/slurm/bin")
    reply = shell.run('section hello printenv NAME\nemit path 0 "${PATH%%:*}"')
    assert [section.text for section in reply.sections] == ["world\n", "/opt/slurm/bin"]
    assert shell.run("section t true").complete
    assert (shell.address, shell.round_trips) == ("local", 2)


def test_starts_in_the_home_directory() -> None:
    section = LocalShell().run("section where pwd").section("where")
    assert section is not None
    assert os.path.samefile(section.text.strip(), os.path.expanduser("~"))


def test_M_2_the_time_limit_kills_the_whole_group(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    body = f"sh -c 'echo $$ >>{pids}; sleep 600' & echo $$ >>{pids}; section t sleep 600"
    with pytest.raises(RemoteTimeout, match="unknown"):
        LocalShell().run(body, timeout_seconds=1.0)
    found = [int(line) for line in pids.read_text().split()]
    assert len(found) == 2
    for pid in found:
        wait_until(lambda pid=pid: gone(pid))  # type: ignore[misc]


def test_a_large_script_and_a_large_reply_do_not_block_each_other() -> None:
    text = "x" * (32 << 20)
    reply = LocalShell().run(
        f"section size sh -c 'head -c 9000000 /dev/zero | tr \"\\0\" a'\nv={quote(text)}\nemit n 0 ${{#v}}"
    )
    assert [len(section.body) for section in reply.sections] == [9_000_000, len(str(32 << 20))]


def test_a_background_process_that_holds_the_streams_delays_nothing_for_long() -> None:
    started = time.monotonic()
    reply = LocalShell().run("sleep 600 & echo $! >&2\nsection t true", timeout_seconds=120)
    try:
        assert reply.complete
        assert time.monotonic() - started < 60
    finally:
        os.kill(int(reply.noise), signal.SIGKILL)


class Interrupted(BaseException):
    pass


@pytest.fixture
def interrupt() -> object:
    """Raise Interrupted in the main thread by a signal."""

    def handler(number: int, frame: object) -> None:
        raise Interrupted

    previous = signal.signal(signal.SIGUSR1, handler)
    yield lambda: os.kill(os.getpid(), signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, previous)


@pytest.mark.parametrize(("ignores", "finishes"), [("trap '' HUP", True), (":", False)])
def test_an_interrupted_run_ends_unless_the_script_must_go_on(
    tmp_path: Path, interrupt: Callable[[], None], ignores: str, finishes: bool
) -> None:
    ready, go, finished = tmp_path / "ready", tmp_path / "go", tmp_path / "finished"
    body = f"{ignores}\necho $$ >{ready}\nwhile [ ! -e {go} ]; do sleep 0.05; done\n: >{finished}"

    def watch() -> None:
        wait_until(lambda: ready.exists() and bool(ready.read_text()))
        interrupt()
        if finishes:
            go.touch()

    thread = threading.Thread(target=watch)
    thread.start()
    with pytest.raises(Interrupted):
        LocalShell().run(body)
    thread.join()
    assert gone(int(ready.read_text()))
    assert finished.exists() is finishes
