"""One look while another process commits: every interleaving of its three reads with the commit's three steps."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.errors import RemoteError
from dagster_slurm_tests.sessions import HELD, Kill, Observer, Place, until

ONE = WorkerIntent("w", 1, HELD)
# Which of the six moments belong to the commit; the others are the look's reads, in the one order it has.
INTERLEAVINGS = list(itertools.combinations(range(6), 3))
# Those in which the look falls into the middle of the commit, between two of its steps.
SHORT_RUN = [(0, 1, 5), (0, 3, 4), (0, 3, 5), (0, 4, 5), (1, 3, 4), (2, 3, 4), (0, 1, 4), (1, 2, 3)]


class Gates:
    """Steps at which scripts wait until the test lets them go on, each once."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        directory.chmod(0o777)
        self._directory = directory

    def functions(self) -> str:
        return (
            f"gate() {{ [ -e {self._directory}/go-$1 ] || : >{self._directory}/at-$1; "
            f"until [ -e {self._directory}/go-$1 ]; do sleep 0.02; done; }}\n"
        )

    def reached(self, name: str) -> None:
        until((self._directory / f"at-{name}").exists, f"the script at {name}")

    def open(self, name: str) -> None:
        (self._directory / f"go-{name}").touch()


LOOK = """
cat() { case $1 in */allocation.json) gate ledger; command cat "$@"; gate traces ;; *) command cat "$@" ;; esac; }
timeout() { case "$*" in *squeue*) gate listing; command timeout "$@"; gate looked ;; *) command timeout "$@" ;; esac; }
"""
READS = ["ledger", "traces", "listing", "looked"]
COMMIT_GATES = ["before-ledger", "ledger-in-place", "after-sbatch", "after-result"]


@pytest.mark.parametrize(
    "moments",
    [pytest.param(m, marks=() if m in SHORT_RUN else pytest.mark.slow) for m in INTERLEAVINGS],
    ids=lambda moments: "".join("C" if i in moments else "R" for i in range(6)),
)
def test_look_between_the_steps_of_a_commit_leads_to_no_duplicate(
    place: Place, observer: Observer, kill: Kill, fresh_base: Path, moments: tuple[int, ...]
) -> None:
    place.create()
    observer.mark()
    gates = Gates(fresh_base / "gates")
    # The committing client dies after its commit, so that nothing but the commit itself tells of the job.
    steps = f"{'|'.join(COMMIT_GATES)}) gate $1 ;; effects-done) {kill.command()} ;;"
    commit = kill.dead_client() + gates.functions() + f"checkpoint() {{ case $1 in {steps} esac; }}\n"
    with ThreadPoolExecutor(2) as pool:
        committing = pool.submit(place.open(faults=commit).reconcile_workers, ONE)
        gates.reached(COMMIT_GATES[0])
        looking = pool.submit(place.open(faults=gates.functions() + LOOK).reconcile_workers, ONE)
        gates.reached(READS[0])
        commits, reads = iter(itertools.pairwise(COMMIT_GATES)), iter(itertools.pairwise(READS))
        for moment in range(6):
            here, there = next(commits if moment in moments else reads)
            gates.open(here)
            gates.reached(there)
        gates.open(COMMIT_GATES[-1])
        with pytest.raises(RemoteError):
            committing.result(timeout=60)
        gates.open(READS[-1])
        result = looking.result(timeout=60)
    assert len(observer.accepted()) == 1
    assert result.submitted == ()
    last = place.open().reconcile_workers(ONE)
    assert last.submitted == ()
    assert list(last.live) == list(observer.workers()) == observer.accepted() == observer.recorded("w")
    assert (*result.recovered, *last.recovered) == tuple(observer.accepted())
    observer.check()
