"""Scripts over all sessions of a base: nothing is sealed, removed or kept alive by accident."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dagster_slurm.errors import ReplyIncomplete
from dagster_slurm.remote.frames import Reply
from dagster_slurm.remote.housekeeping import FoundSession, read_list
from dagster_slurm.remote.shell import LocalShell
from dagster_slurm.session.housekeeping import find_sessions, remove_session, seal_session


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "base").mkdir()
    return tmp_path / "base"


def make(base: Path, session_id: str, *marks: str) -> Path:
    directory = base / "sessions" / session_id
    directory.mkdir(parents=True)
    for name in ("ray.token", "lease", *marks):
        (directory / name).touch()
    return directory


def test_a_base_without_sessions_has_none(base: Path) -> None:
    assert find_sessions(LocalShell(), str(base)) == ()
    assert find_sessions(LocalShell(), str(base / "missing")) == ()


def test_sessions_are_found_and_not_kept_alive(base: Path) -> None:
    lease = make(base, "one") / "lease"
    make(base, "two", "closing")
    ended = make(base, "three", "closing", "ended") / "ended"
    (base / "sessions" / "a file").touch()
    (base / "sessions" / "not a session").mkdir()
    os.utime(lease, (1, 1))
    os.utime(ended, (ended.stat().st_mtime - 500,) * 2)
    one, three, two = sorted(find_sessions(LocalShell(), f"{base}/"), key=lambda found: found.session_id)
    assert one == FoundSession(session_id="one")
    assert two == FoundSession(session_id="two", closing=True)
    assert three.closing
    assert three.ended_seconds_ago is not None
    assert 500 <= three.ended_seconds_ago < 560
    assert lease.stat().st_mtime == 1


def test_a_base_in_the_home_directory_is_found(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(base.parent))
    make(base, "one")
    assert [found.session_id for found in find_sessions(LocalShell(), "~/base")] == ["one"]


def test_only_a_closing_session_is_sealed_and_only_a_sealed_one_removed(base: Path) -> None:
    directory = make(base, "one")
    for _ in range(2):
        seal_session(LocalShell(), str(directory))
        remove_session(LocalShell(), str(base), "one")
        assert (directory / "ray.token").exists()
    (directory / "closing").touch()
    remove_session(LocalShell(), str(base), "one")
    seal_session(LocalShell(), str(directory))
    assert not (directory / "ray.token").exists()
    assert (directory / "ended").exists()
    remove_session(LocalShell(), str(base), "one")
    assert list((base / "sessions").iterdir()) == []


def test_what_an_interrupted_removal_left_goes_with_the_next(base: Path) -> None:
    (base / "sessions" / ".removed.abc" / "open").mkdir(parents=True)
    remove_session(LocalShell(), str(base), "gone")
    assert list((base / "sessions").iterdir()) == []


def test_a_link_is_not_followed(base: Path, tmp_path: Path) -> None:
    elsewhere = make(tmp_path / "other", "precious", "closing", "ended")
    (base / "sessions").mkdir()
    (base / "sessions" / "one").symlink_to(elsewhere)
    remove_session(LocalShell(), str(base), "one")
    assert (elsewhere / "ended").exists()


def test_a_cut_list_is_an_error_and_not_an_empty_base() -> None:
    with pytest.raises(ReplyIncomplete):
        read_list(Reply(sections=(), complete=False, noise=""), "here")
