"""What people see of a finished search."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ElementTree

import pytest
from figures import INLINE_LIMIT, allocation_table, full_picture, png_markdown, score_table, small_picture
from hypothesis import given
from hypothesis import strategies as st
from trials import Outcome, grid


def outcomes(costs: int, gammas: int, scores: list[float]) -> list[Outcome]:
    tasks = grid(costs, gammas, folds=5, repeats=2, samples=None)
    return [
        Outcome(task, score=scores[n % len(scores)], spread=0.01, cpu_seconds=0.5, slurm_job_id=str(n % 3), node="n1")
        for n, task in enumerate(tasks)
    ]


def drawing(markdown: str) -> ElementTree.Element:
    encoded = re.search(r"base64,([^)]*)\)", markdown)
    assert encoded is not None
    return ElementTree.fromstring(base64.b64decode(encoded[1]))


@given(st.lists(st.floats(0.0, 1.0), min_size=48, max_size=48))
def test_the_small_picture_shows_without_a_click_whatever_the_scores(scores: list[float]) -> None:
    assert len(small_picture(outcomes(8, 6, scores))) <= INLINE_LIMIT


def test_the_default_search_gets_a_picture_of_every_cell_with_a_ring_around_the_best() -> None:
    scores = [0.95] * 48
    scores[9] = 0.99  # second row, fourth column
    markdown = small_picture(outcomes(8, 6, scores))
    root = drawing(markdown)
    runs = re.findall(r"h(\d+)", "".join(path.get("d", "") for path in root.findall("{*}path")))
    assert sum(map(int, runs)) == 48
    ring = root.find("{*}circle")
    assert ring is not None
    assert (ring.get("cx"), ring.get("cy")) == ("3.5", "1")
    assert "C from 0.1 to 100" in markdown


def test_a_grid_too_large_for_a_small_picture_keeps_its_caption() -> None:
    markdown = small_picture(outcomes(40, 40, [0.9, 0.99, 0.98, 0.97]))
    assert "data:" not in markdown
    assert "gamma from 0.01 to 0.8" in markdown


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (8, 6)])
def test_the_full_picture_is_a_png_of_moderate_size(size: tuple[int, int]) -> None:
    content = full_picture(outcomes(*size, scores=[0.9, 0.95, 0.99]))
    assert content.startswith(b"\x89PNG\r\n")
    assert len(png_markdown(content)) < 60_000


def test_the_score_table_has_the_best_tasks_first() -> None:
    table = score_table(outcomes(8, 6, [0.1, 0.9, 0.5]), rows=5)
    assert [record["score"] for record in table["records"]] == [0.9] * 5
    assert [column["name"] for column in table["schema"]] == list(table["records"][0])


def test_the_allocation_table_counts_every_task_once() -> None:
    table = allocation_table(outcomes(2, 4, [0.9]))
    assert [(record["job"], record["tasks"]) for record in table["records"]] == [("0", 3), ("1", 3), ("2", 2)]


def test_tables_hold_only_what_a_cell_can_show() -> None:
    found = [score_table(outcomes(2, 2, [0.9])), allocation_table(outcomes(2, 2, [0.9]))]
    cells = [cell for table in found for record in table["records"] for cell in record.values()]
    assert cells
    assert {type(cell) for cell in cells} <= {str, int, float, bool, type(None)}
