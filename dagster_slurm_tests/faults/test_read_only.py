"""A session directory that cannot be written any more: from the start, or from any step of a commit on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.errors import DagsterSlurmError, SessionDirectoryUnsafe
from dagster_slurm_tests.faults.test_full_disk import place, small_disk
from dagster_slurm_tests.sessions import HELD, Observer, Place, at_step

__all__ = ["place", "small_disk"]

pytestmark = pytest.mark.fault("F10")

TWO = WorkerIntent("w", 2, HELD)
PLACES = ". open submissions commits"


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


def test_read_only_filesystem_is_named_and_stops_submissions(
    place: Place, observer: Observer, small_disk: Path
) -> None:
    session = place.create()
    content = observer.ledger_bytes()
    observer.mark()
    remount(small_disk, "ro")
    try:
        with pytest.raises(SessionDirectoryUnsafe, match="Read-only file system"):
            session.reconcile_workers(TWO)
        assert session.inspect().certain, "looking writes nothing"
    finally:
        remount(small_disk, "rw")
    assert (observer.accepted(), observer.ledger_bytes()) == ([], content)
    assert len(session.reconcile_workers(TWO).submitted) == 2
    observer.check()


STEPS = ["prepared", "locked", "checked", "before-ledger", "ledger-in-place", "before-sbatch", "after-sbatch"]


@pytest.mark.parametrize(
    ("step", "occurrence"),
    [
        *((step, 1) for step in (*STEPS, "effects-done")),
        *(
            pytest.param(step, occurrence, marks=pytest.mark.slow)
            for step in ("before-sent", "before-sbatch", "after-sbatch", "after-result")
            for occurrence in ((1, 2) if step in ("before-sent", "after-result") else (2,))
        ),
    ],
)
def test_nothing_is_lost_when_writing_fails_from_a_step_on(
    place: Place, observer: Observer, step: str, occurrence: int
) -> None:
    place.create()
    observer.mark()
    shut = f"chmod 500 {PLACES} submissions/*"
    said = ""
    try:
        place.open(faults=at_step(step, occurrence, shut), lock_wait_seconds=1).reconcile_workers(TWO)
    except DagsterSlurmError as error:
        said = str(error)
    shut_ones = [
        p for p in (place.directory, *place.directory.rglob("*")) if p.is_dir() and not p.stat().st_mode & 0o200
    ]
    assert place.directory in shut_ones
    for directory in shut_ones:
        directory.chmod(0o700)
    if step in ("prepared", "locked", "checked", "before-ledger"):
        assert str(place.directory) in said, "it says where"
        assert observer.accepted() == [], "its record could not be made"
    observer.check()
    for _ in range(2):
        place.open().reconcile_workers(TWO)
    observer.check()
    assert len(observer.recorded("w")) + len(observer.open_tokens()) == 2
    assert sorted(observer.workers()) == sorted(observer.accepted())
