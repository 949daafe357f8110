"""The table of executed faults counts what it says."""

from __future__ import annotations

from collections import Counter

import pytest

from dagster_slurm_tests import counting


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_real", "_simulated", "_violations"):
        monkeypatch.setattr(counting, name, Counter())


def test_the_table_shows_executions_violations_and_the_bound(empty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert counting.table() == []
    monkeypatch.setattr(counting, "_bulk", set())
    counting.executed("F1", simulated=290, real=10)
    counting.executed("F2", real=3)
    counting._violations["F2"] += 1
    _, first, second = counting.table()
    assert first.split()[-4:] == ["10", "290", "0", "1.00%"]
    assert second.split()[-4:] == ["3", "0", "1", "seen"]


def test_rows_are_those_of_the_matrix() -> None:
    assert list(counting.ROWS) == [f"F{n}" for n in range(1, 25)]
    with pytest.raises(AssertionError):
        counting.executed("F25")
