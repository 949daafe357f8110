"""What the demo reads from Slurm's queue and accounting."""

from __future__ import annotations

import pytest

from example_project.demo.accounting import (
    accounting_table,
    count_by_state,
    parse_accounting,
    parse_queue,
    shortcomings,
)

ROWS = """\
9|dagster-slurm-r|cpu|CANCELLED by 1001|41|cpu-2|1
7|dagster-slurm-r|cpu|CANCELLED by 1001|93|cpu-1|1
12|dagster-slurm-r|cpu|CANCELLED by 1001|30|cpu-1|1
10|dagster-slurm-r|cpu|COMPLETED|35|cpu-1|1
13|dagster-slurm-r|cpu|CANCELLED by 1001|0|None assigned|0
"""


def test_the_first_job_is_the_head_and_the_others_are_workers() -> None:
    jobs = parse_accounting(ROWS)
    assert [(job.slurm_job_id, job.role, job.state) for job in jobs] == [
        (7, "head", "CANCELLED"),
        (9, "worker", "CANCELLED"),
        (10, "worker", "COMPLETED"),
        (12, "worker", "CANCELLED"),
        (13, "worker", "CANCELLED"),
    ]
    assert [job.ran for job in jobs] == [True, True, True, True, False]


def test_a_run_that_scaled_and_left_nothing_has_no_shortcomings() -> None:
    assert shortcomings(parse_accounting(ROWS), {}, 3) == []


@pytest.mark.parametrize(
    ("rows", "queue", "expected"),
    [
        ("", {}, "no head"),
        (ROWS, {12: "RUNNING"}, "12 RUNNING"),
        (ROWS.replace("COMPLETED", "RUNNING"), {}, "10 RUNNING"),
        (ROWS.replace("|30|cpu-1|1", "|0|None assigned|0"), {}, "shows 2 worker"),
        (ROWS.replace("|93|cpu-1|1", "|0||0"), {}, "no head allocation that ran"),
    ],
)
def test_each_shortcoming_is_named(rows: str, queue: dict[int, str], expected: str) -> None:
    assert any(expected in sentence for sentence in shortcomings(parse_accounting(rows), queue, 3))


def test_the_queue_in_one_line() -> None:
    assert count_by_state(parse_queue("")) == "no allocation"
    assert count_by_state(parse_queue("7|RUNNING\n")) == "head RUNNING, workers none"
    queue = parse_queue("10|PENDING\n9|RUNNING\n7|RUNNING\n8|RUNNING\n")
    assert count_by_state(queue) == "head RUNNING, workers 1 PENDING 2 RUNNING"


def test_the_table_has_a_line_for_each_allocation() -> None:
    lines = accounting_table(parse_accounting(ROWS)).splitlines()
    assert len(lines) == 6
    assert lines[1].split() == ["7", "head", "CANCELLED", "93", "s", "1", "cpu", "cpu-1"]
