"""How often each fault of the matrix was executed, on a real Slurm and in the simulation, and how often it went wrong.

A test says which faults it executes: ``@pytest.mark.fault("F2")``. It counts as one execution, of a real Slurm when it
uses the box. A test that makes many in its body says so with ``executed``. At its end pytest prints the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

#: The rows of the matrix and what each fault is.
ROWS = {
    "F1": "client killed at a step",
    "F2": "remote script killed at a step",
    "F3": "connection cut",
    "F4": "sbatch accepted, answer lost",
    "F5": "controller stopped during sbatch, client killed",
    "F6": "controller dead or hanging",
    "F7": "accounting down, absent or late",
    "F8": "ended jobs vanish between calls",
    "F9": "wrong clocks",
    "F10": "disk full, read-only",
    "F11": "ledger cut, emptied, edited, newer",
    "F12": "several processes at once",
    "F13": "lock holder killed, stopped, its host gone",
    "F14": "lock without owner, foreign, reply of a rename lost",
    "F15": "node fails or is set down",
    "F16": "requeue",
    "F17": "preemption",
    "F18": "noise in replies",
    "F19": "hostile names",
    "F20": "Slurm variables in the environment",
    "F21": "head dies, election, promotion",
    "F22": "carriers of the token erased",
    "F23": "everything mixed",
    "F24": "soak",
}

_real: Counter[str] = Counter()
_simulated: Counter[str] = Counter()
_violations: Counter[str] = Counter()
_bulk: set[str] = set()


def executed(row: str, *, simulated: int = 0, real: int = 0) -> None:
    """Count executions of a fault that one test makes itself, in place of the one that the test counts as."""
    assert row in ROWS
    _simulated[row] += simulated
    _real[row] += real
    _bulk.add(row)


def note_report(item: pytest.Item, report: pytest.TestReport) -> None:
    """Count one test that ended."""
    if report.when != "call" or report.skipped:
        return
    for row in _rows(item):
        if not _bulk:
            (_real if item.get_closest_marker("integration") else _simulated)[row] += 1
        if report.failed:
            _violations[row] += 1
    _bulk.clear()


def _rows(item: pytest.Item) -> Iterator[str]:
    # A test's own mark replaces that of its module.
    marker = item.get_closest_marker("fault")
    for row in marker.args if marker is not None else ():
        assert row in ROWS, f"{item.nodeid}: no such row of the fault matrix"
        yield row


def bound(executions: int, violations: int) -> str:
    """95 % upper bound of the rate of violations when none was seen: 3/n, at most all."""
    return "seen" if violations else f"{min(1.0, 3 / executions):.2%}"


def table() -> list[str]:
    """The counts so far, one line for each fault that was executed; empty when none was."""
    lines = []
    for row, what in ROWS.items():
        real, simulated, violations = _real[row], _simulated[row], _violations[row]
        if real + simulated:
            upper = bound(real + simulated, violations)
            lines.append(f"{row:<4} {what:<52} {real:>6} {simulated:>9} {violations:>10} {upper:>10}")
    head = f"{'':<4} {'fault':<52} {'real':>6} {'simulated':>9} {'violations':>10} {'95 % bound':>10}"
    return [head, *lines] if lines else []
