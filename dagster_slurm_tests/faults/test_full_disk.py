"""No space left: nothing is submitted unless its record is in place, and nothing is lost."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.errors import SessionDirectoryUnsafe
from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.cluster.bringup import give_to_job_user
from dagster_slurm_tests.sessions import HELD, Observer, Place, make_place

pytestmark = pytest.mark.fault("F10")

TWO = WorkerIntent("w", 2, HELD)


@pytest.fixture
def small_disk(box: SlurmBox, fresh_base: Path) -> Iterator[Path]:
    """A filesystem of its own for one session, which can be filled."""
    directory = fresh_base / "disk"
    directory.mkdir(mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m,nr_inodes=400,mode=700", "tmpfs", str(directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"a filesystem cannot be mounted here: {mounted.stderr.strip()}")
    give_to_job_user(directory, box.definition)
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


@pytest.fixture
def place(box: SlurmBox, small_disk: Path) -> Iterator[Place]:
    """A session on the small disk."""
    made = make_place(box, small_disk)
    yield made
    box.run(["scancel", f"--name={made.job_name}"])


def fill(disk: Path, *, leaving: int = 0) -> Path:
    """Take all space, but for some bytes."""
    ballast = disk / "ballast"
    spare = disk / "spare"
    spare.write_bytes(bytes(leaving))
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    spare.unlink()
    return ballast


# Space for nothing; for the new ledger but not for the submission's files; for one submission's files but not two.
@pytest.mark.parametrize("pages", [0, 1, 2, 4])
def test_nothing_is_submitted_when_its_record_cannot_be_written(
    place: Place, observer: Observer, small_disk: Path, pages: int
) -> None:
    session = place.create()
    session.reconcile_workers(WorkerIntent("w", 1, HELD))
    content = observer.ledger_bytes()
    observer.mark()
    ballast = fill(small_disk, leaving=pages * 4096)
    with pytest.raises(SessionDirectoryUnsafe, match="could not be written") as caught:
        session.reconcile_workers(WorkerIntent("w", 5, HELD))
    # dash says no more than I/O error when its own printf fails.
    assert re.search("No space left|I/O error", str(caught.value))
    assert observer.accepted() == []
    assert observer.ledger_bytes() == content
    # Looking needs no space.
    assert session.inspect().certain
    ballast.unlink()
    assert list(session.reconcile_workers(TWO).submitted) == observer.accepted()
    assert len(observer.recorded("w")) == 2
    observer.check()


# Each new file needs an inode: the prepared ledger 1, each submission 4 and an open marker, the lock 2.
@pytest.mark.parametrize("inodes", [0, 4, 9, 10, 12])
def test_nothing_is_submitted_when_a_file_cannot_be_made(
    place: Place, observer: Observer, small_disk: Path, inodes: int
) -> None:
    session = place.create()
    content = observer.ledger_bytes()
    observer.mark()
    ballast = small_disk / "ballast"
    ballast.mkdir()
    for number in range(os.statvfs(small_disk).f_ffree - inodes):
        (ballast / str(number)).touch()
    with pytest.raises(SessionDirectoryUnsafe, match=r"No space left|[Cc]annot"):
        session.reconcile_workers(TWO)
    assert (observer.accepted(), observer.ledger_bytes()) == ([], content)
    assert not (place.directory / "lock").exists()
    for path in ballast.iterdir():
        path.unlink()
    assert sorted(session.reconcile_workers(TWO).submitted) == sorted(observer.accepted())
    assert len(observer.recorded("w")) == 2
    observer.check()


@pytest.mark.parametrize("step", ["ledger-in-place", "before-sbatch", "after-sbatch"])
def test_disk_that_fills_up_during_a_commit(place: Place, observer: Observer, small_disk: Path, step: str) -> None:
    place.create()
    observer.mark()
    ballast = small_disk / "ballast"
    action = f"{{ dd if=/dev/zero of={ballast} bs=4096 2>/dev/null; }}"
    faults = f'checkpoint() {{ [ "$1" != {step} ] || [ -e {ballast} ] || {action}; }}\n'
    session = place.open(faults=faults)
    with_full_disk = session.reconcile_workers(TWO)
    assert ballast.exists()
    submitted = observer.accepted()
    assert len(submitted) <= 2
    # Whatever was submitted stands in the ledger by its token.
    observer.check()
    assert set(with_full_disk.submitted) <= set(submitted)
    ballast.unlink()
    result = place.open().reconcile_workers(TWO)
    result = place.open().reconcile_workers(TWO) if result.held_back else result
    assert sorted(result.live) == sorted(observer.accepted()) == sorted(observer.recorded("w"))
    assert len(observer.accepted()) == 2
    observer.check()
