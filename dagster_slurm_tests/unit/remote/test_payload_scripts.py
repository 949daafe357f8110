"""Scripts of payloads: what is brought, and that nothing stays behind on the login node."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from dagster_slurm.errors import ReplyIncomplete, SessionClosing, SessionNotFound
from dagster_slurm.remote.frames import Reply
from dagster_slurm.remote.payload_scripts import (
    CHUNK_BYTES,
    PayloadPoll,
    cancel_script,
    poll_script,
    read_poll,
    read_running,
    read_start,
    replace_script,
    start_script,
)
from dagster_slurm.remote.shell import LocalShell
from dagster_slurm.remote.transfer import pack

PAYLOAD = "1800000000-abcdef01"


@pytest.fixture
def session(tmp_path: Path) -> Path:
    (tmp_path / "session" / "payloads").mkdir(parents=True)
    (tmp_path / "session" / "lease").touch()
    return tmp_path / "session"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "main.py").write_text("print('hello')\n")
    return tmp_path / "main.py"


def start(session: Path, source: Path) -> str:
    script = start_script(str(session), PAYLOAD, pack(source), ["{python}", "files/main.py"], {"A": "it's"})
    return read_start(LocalShell().run(script), str(session), "here")


def poll(session: Path, messages: int = 0, log: int = 0) -> PayloadPoll:
    return read_poll(LocalShell().run(poll_script(str(session), PAYLOAD, messages, log)), str(session), "here")


def test_a_payload_is_brought_whole_and_waits(session: Path, source: Path) -> None:
    assert start(session, source) == PAYLOAD
    directory = session / "payloads" / PAYLOAD
    assert (directory / "files" / "main.py").read_text() == "print('hello')\n"
    assert json.loads((directory / "spec.json").read_text())["env"] == {"A": "it's"}
    seen = poll(session)
    assert (seen.state, seen.messages, seen.log, seen.work, seen.closing) == ("waiting", b"", b"", None, False)
    assert not seen.ended


def test_output_of_any_bytes_comes_from_the_offset_on(session: Path, source: Path) -> None:
    start(session, source)
    directory = session / "payloads" / PAYLOAD
    (directory / "log").write_bytes(b"0123\x00\xff\n" + b"x" * CHUNK_BYTES)
    (directory / "messages").write_bytes(b'{"a": 1}\n')
    (directory / "work.json").write_text('{"remaining": 3}')
    seen = poll(session, messages=4, log=4)
    assert seen.log[:4] == b"\x00\xff\nx"
    assert seen.log_left
    assert (seen.messages_left, seen.work) == (False, {"remaining": 3})
    assert seen.messages == b'{"a": 1}\n'[4:]


def test_M_9_a_look_ends_at_once_and_leaves_no_follower(session: Path, source: Path) -> None:
    start(session, source)
    (session / "payloads" / PAYLOAD / "log").write_text("a line without end")
    script = poll_script(str(session), PAYLOAD, 0, 0)
    assert "tail -f" not in script.lower()
    assert LocalShell().run(script, timeout_seconds=10).complete


def test_a_session_that_is_gone_or_ends_takes_no_payload(session: Path, source: Path, tmp_path: Path) -> None:
    with pytest.raises(SessionNotFound):
        start(tmp_path / "elsewhere", source)
    (session / "closing").touch()
    with pytest.raises(SessionClosing):
        start(session, source)


def test_a_cancel_is_one_file(session: Path, source: Path) -> None:
    start(session, source)
    assert LocalShell().run(cancel_script(str(session), PAYLOAD)).complete
    assert (session / "payloads" / PAYLOAD / "cancel").exists()


def other_payload(session: Path, name: str, *, claimed: bool = True, state: str | None = None) -> Path:
    directory = session / "payloads" / name
    directory.mkdir()
    (directory / "spec.json").write_text("{}")
    if claimed:
        (directory / "claim.7").touch()
    if state is not None:
        (directory / "status.json").write_text(json.dumps({"schema_version": 1, "state": state}))
    return directory


def test_what_other_attempts_of_a_step_left_running_is_cancelled_and_told(session: Path) -> None:
    running = other_payload(session, "1-aaaa-old-1", state="running")
    silent = other_payload(session, "2-aaaa-old-2")
    waiting = other_payload(session, "3-aaaa-old-3", claimed=False)
    alone = [
        other_payload(session, "4-aaaa-new-1", state="running"),
        other_payload(session, "5-bbbb-old-1", state="running"),
        *(other_payload(session, f"6-aaaa-old-{state}", state=state) for state in ("succeeded", "failed", "cancelled")),
    ]
    (session / "payloads" / "7-aaaa-old-9").mkdir()

    def replace() -> tuple[str, ...]:
        return read_running(LocalShell().run(replace_script(str(session), "aaaa", "new")), "here")

    assert replace() == (running.name, silent.name)
    assert all((directory / "cancel").exists() for directory in (running, silent, waiting))
    assert not any((directory / "cancel").exists() for directory in alone)
    for directory in (running, silent):
        (directory / "status.json").write_text(json.dumps({"state": "cancelled"}))
    assert replace() == ()


def test_a_session_without_payloads_has_none_to_end(session: Path) -> None:
    assert read_running(LocalShell().run(replace_script(str(session), "aaaa", "new")), "here") == ()
    with pytest.raises(ReplyIncomplete, match="earlier payloads"):
        read_running(Reply(sections=(), complete=False, noise=""), "here")


def test_a_look_with_a_mark_keeps_its_file_young(session: Path, source: Path) -> None:
    start(session, source)
    mark = {"key": "group/it's", "interval_seconds": 30}
    script = poll_script(str(session), PAYLOAD, 0, 0, mark)
    driver = session / "payloads" / PAYLOAD / "driver.json"
    for _ in range(2):
        assert read_poll(LocalShell().run(script), str(session), "here").state == "waiting"
        assert json.loads(driver.read_text()) == mark
        age = time.time() - driver.stat().st_mtime
        assert age < 60
        os.utime(driver, (1, 1))
    poll(session)
    assert driver.stat().st_mtime == 1, "who only looks does not drive"
