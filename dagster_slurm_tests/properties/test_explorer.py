"""Lock, commit and token protocol, every interleaving: nothing that must hold fails, and the explorer can fail.

How many states were gone through is printed (pytest -rP).
"""

from __future__ import annotations

import itertools

import attrs
import pytest

from dagster_slurm.allocations import bookkeeping
from dagster_slurm.testing.commit import SimulatedCommit
from dagster_slurm_tests.properties.explorer import Explorer, Result, Setting
from dagster_slurm_tests.properties.test_planted_bugs import (
    ActsFirst,
    WithoutFence,
    WithoutLookAtItsLock,
    WithoutTheRename,
)

SAFE_ORDER = ("ledger", "traces", "listing")


@pytest.fixture(autouse=True)
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A submission that was sent may be dropped as soon as one listing lacks it: its fate file alone must do."""
    monkeypatch.setattr(bookkeeping, "SETTLE_SECONDS", 0)


def explore(setting: Setting) -> Result:
    result = Explorer(setting).run()
    print(result)
    return result


def proved(setting: Setting) -> None:
    result = explore(setting)
    assert result.violation is None, "\n".join((result.violation or "", *result.way))
    assert result.complete


@pytest.mark.parametrize(
    "setting",
    [
        Setting(counts=(1, 1), starts=False, asks_by_id=False),
        Setting(counts=(2, 2, 2), takeovers=0, mishaps=0, lost_replies=0, starts=False),
    ],
    ids=["two processes, one job, every mishap", "three processes, two jobs, a crash"],
)
def test_no_interleaving_breaks_the_protocol(setting: Setting) -> None:
    proved(setting)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "setting",
    [
        Setting(counts=(1, 1)),
        Setting(counts=(2, 2), starts=False),
        Setting(counts=(2, 2), starts=False, asks_by_id=False),
        Setting(counts=(2, 2, 2), takeovers=1, deaths=0, lost_replies=0, mishaps=0, starts=False),
        Setting(counts=(1, 1, 1), takeovers=0, deaths=0, lost_replies=0, mishaps=1, starts=False),
        Setting(counts=(2, 2, 2), takeovers=0, mishaps=0, starts=False),
    ],
    ids=[
        "two processes, one job, which starts at any moment",
        "two processes, two jobs, every mishap",
        "two processes, two jobs, every mishap, the order of reads alone",
        "three processes, two jobs, a takeover from the living",
        "three processes, one job, its answer lost or late",
        "three processes, two jobs, a crash and a lost reply",
    ],
)
def test_no_interleaving_breaks_the_protocol_full_set(setting: Setting) -> None:
    proved(setting)


@pytest.mark.parametrize("order", [o for o in itertools.permutations(SAFE_ORDER) if o != SAFE_ORDER])
def test_any_other_order_of_reads_is_found_out(order: tuple[str, ...]) -> None:
    result = explore(Setting(counts=(1, 1), reads=order, asks_by_id=False))
    assert result.violation == "2 allocations could work", result


class TakesAnyLock(SimulatedCommit):
    """Takes a lock over without a look whose it is now."""

    def do_take_over(self, _: None) -> str | None:
        return self._own_lock()


#: What may happen besides is left out, so that a counter-example is found soon.
QUIET = Setting(counts=(1, 1), lost_replies=0, mishaps=0, starts=False)


@pytest.mark.parametrize(
    ("planted", "setting", "found"),
    [
        (WithoutFence, QUIET, "a ledger was replaced that the new one was not decided on"),
        (WithoutLookAtItsLock, QUIET, "an effect began without its lock"),
        (WithoutTheRename, QUIET, "2 allocations could work"),
        (ActsFirst, QUIET, "a job could work that the ledger does not know"),
        (
            TakesAnyLock,
            attrs.evolve(QUIET, counts=(1, 1, 1)),
            "a ledger was replaced that the new one was not decided on",
        ),
    ],
)
def test_a_planted_bug_is_found(planted: type[SimulatedCommit], setting: Setting, found: str) -> None:
    result = explore(attrs.evolve(setting, commit_type=planted))
    assert result.violation == found, result
    assert result.way
