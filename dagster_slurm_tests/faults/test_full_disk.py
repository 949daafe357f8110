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
from dagster_slurm_tests.sessions import HELD, Observer, Place, at_step, make_place

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


def fill_inodes(disk: Path, *, leaving: int) -> Path:
    """Take all files, but for some."""
    ballast = disk / "ballast"
    ballast.mkdir()
    for number in range(os.statvfs(disk).f_ffree - leaving):
        (ballast / str(number)).touch()
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


# Each new file needs an inode: the prepared ledger 1, what sbatch says 2, each of two submissions 3, the lock 2, the
# open markers 2.
@pytest.mark.parametrize(
    "inodes", [0, 4, 9, 11, 12, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3, 5, 6, 7, 8, 10))]
)
def test_nothing_is_submitted_when_a_file_cannot_be_made(
    place: Place, observer: Observer, small_disk: Path, inodes: int
) -> None:
    session = place.create()
    content = observer.ledger_bytes()
    observer.mark()
    ballast = fill_inodes(small_disk, leaving=inodes)
    with pytest.raises(SessionDirectoryUnsafe, match=r"No space left|[Cc]annot"):
        session.reconcile_workers(TWO)
    assert (observer.accepted(), observer.ledger_bytes()) == ([], content)
    assert not (place.directory / "lock").exists()
    for path in ballast.iterdir():
        path.unlink()
    assert sorted(session.reconcile_workers(TWO).submitted) == sorted(observer.accepted())
    assert len(observer.recorded("w")) == 2
    observer.check()


# The ledger is in place; then each submission needs its marker and its result.
@pytest.mark.parametrize("inodes", [13, 14, *(pytest.param(n, marks=pytest.mark.slow) for n in (15, 16, 17, 18))])
def test_files_that_run_out_while_submitting(place: Place, observer: Observer, small_disk: Path, inodes: int) -> None:
    session = place.create()
    observer.mark()
    ballast = fill_inodes(small_disk, leaving=inodes)
    short = session.reconcile_workers(TWO)
    submitted = observer.accepted()
    assert len(submitted) <= 2
    assert set(short.submitted) <= set(submitted)
    observer.check()
    for path in ballast.iterdir():
        path.unlink()
    for _ in range(2):
        result = place.open().reconcile_workers(TWO)
    assert sorted(result.live) == sorted(observer.workers()) == sorted(observer.recorded("w"))
    assert len(observer.accepted()) == 2
    observer.check()


FILLED_AT = [
    *(("ledger-in-place", 1), ("before-sbatch", 1), ("after-sbatch", 1)),
    *(
        pytest.param(step, occurrence, marks=pytest.mark.slow)
        for step, occurrence in (
            *((step, 2) for step in ("before-sent", "before-sbatch", "after-sbatch", "after-result")),
            *((step, 1) for step in ("prepared", "locked", "checked", "before-ledger")),
            *((step, 1) for step in ("before-sent", "after-result", "effects-done")),
        )
    ),
]


@pytest.mark.parametrize(("step", "occurrence"), FILLED_AT)
def test_disk_that_fills_up_during_a_commit(
    place: Place, observer: Observer, small_disk: Path, step: str, occurrence: int
) -> None:
    place.create()
    observer.mark()
    ballast = small_disk / "ballast"
    action = f"{{ dd if=/dev/zero of={ballast} bs=4096 2>/dev/null; }}"
    faults = at_step(step, occurrence, f"[ -e {ballast} ] || {action}")
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
