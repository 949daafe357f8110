"""Pictures and sums of what the allocations did over time."""

from __future__ import annotations

import base64
import random
import re
import xml.etree.ElementTree as ElementTree

import attrs
import pytest

from dagster_slurm.allocations.snapshot import AllocationSnapshot, SessionSnapshot
from dagster_slurm.timeline import (
    DRAINING,
    LARGE_LIMIT,
    MOST_ROWS,
    PENDING,
    READY,
    RUNNING,
    SMALL_LIMIT,
    Timeline,
    kind_of,
    large_picture,
    small_picture,
    span,
)
from dagster_slurm.usage import Usage

HEAD = AllocationSnapshot(slurm_job_id="1", role="head", state="RUNNING", committed=True, ready=True, nodes=("n1",))
HEAD = attrs.evolve(HEAD, requested_gpus_per_node=0, requested_nodes=1, granted_gpus=0)


def worker(number: int, kind: str | None = READY) -> AllocationSnapshot:
    return AllocationSnapshot(
        slurm_job_id=str(number),
        role="worker",
        state="PENDING" if kind == PENDING else "COMPLETED" if kind is None else "RUNNING",
        committed=kind is not None,
        ready=kind == READY,
        draining=kind == DRAINING,
        intent="a",
        nodes=() if kind in (None, PENDING) else ("n2", "n3"),
        requested_nodes=2,
        requested_gpus_per_node=4,
        granted_gpus=None if kind in (None, PENDING) else 8,
    )


def seen(*workers: AllocationSnapshot, certain: bool = True) -> SessionSnapshot:
    return SessionSnapshot(
        session_id="run",
        observed_at=0,
        certain=certain,
        head=HEAD,
        successor=None,
        allocations=(HEAD, *workers),
    )


def svg_of(markdown: str) -> ElementTree.Element:
    found = re.search(r"base64,([A-Za-z0-9+/=]+)\)", markdown)
    assert found is not None
    return ElementTree.fromstring(base64.b64decode(found[1]))


def texts(markdown: str) -> list[str]:
    return [text for text in svg_of(markdown).itertext() if text]


def growing() -> Timeline:
    timeline = Timeline()
    timeline.add(0, seen(), 2)
    timeline.add(30, seen(worker(2, PENDING), worker(3, PENDING)), 2)
    timeline.add(60, seen(worker(2, RUNNING), worker(3, PENDING)), 2)
    timeline.add(90, seen(worker(2, READY), worker(3, RUNNING)), 2)
    timeline.add(300, seen(worker(2, DRAINING), worker(3, READY)), 1)
    timeline.add(330, seen(worker(2, None), worker(3, READY)), 1)
    return timeline


@pytest.mark.parametrize("kind", [PENDING, RUNNING, READY, DRAINING, None])
def test_every_kind_is_told_apart(kind: str | None) -> None:
    assert kind_of(worker(2, kind)) == kind
    assert kind_of(attrs.evolve(HEAD, drain_deadline=5)) == DRAINING


def test_an_allocation_is_kept_from_its_first_tick_to_its_end() -> None:
    rows = growing().rows
    assert list(rows) == ["1", "2", "3"]
    assert rows["2"].changes == [(30, PENDING), (60, RUNNING), (90, READY), (300, DRAINING), (330, None)]
    assert rows["3"].at(29) is None
    assert rows["3"].at(31) == PENDING


def test_an_allocation_that_is_not_listed_any_more_has_ended_and_an_unknown_one_goes_on() -> None:
    timeline = growing()
    timeline.add(360, seen(worker(3, READY), certain=False), None)
    timeline.add(390, None, None)
    assert timeline.rows["3"].changes[-1] == (300, READY)
    assert timeline.end == 390
    timeline.add(420, seen(), None)
    assert timeline.rows["3"].changes[-1] == (420, None)
    assert timeline.live.changes[-1] == (420, 0)


def test_the_small_picture_is_shown_at_once_and_says_what_it_shows() -> None:
    text = small_picture(growing())
    assert len(text) <= SMALL_LIMIT
    assert text.endswith(
        "5.5 min. yellow pending, blue running, green ready, purple draining. Below: red wanted, grey live; top 2."
    )
    assert len(svg_of(text)) == 6


def test_the_large_picture_names_allocations_and_times() -> None:
    text = large_picture(growing())
    found = texts(text)
    assert {"1 head", "2 worker", "3 worker", "pending", "draining", "wanted workers", "live workers"} <= set(found)
    assert {"0", "1 min", "5 min", "0 workers", "2 workers"} <= set(found)
    assert len(text) < LARGE_LIMIT


def busy(allocations: int, changes: int) -> Timeline:
    chance, timeline = random.Random(allocations), Timeline()
    for second in range(changes):
        kinds = [chance.choice([PENDING, RUNNING, READY, DRAINING, None]) for _ in range(allocations)]
        known = [worker(n + 2, kind) for n, kind in enumerate(kinds)]
        timeline.add(60 * second, seen(*known), chance.randrange(200))
    return timeline


@pytest.mark.parametrize(("allocations", "changes"), [(0, 1), (1, 1), (5, 50), (30, 300), (350, 5), (3, 5000)])
def test_any_timeline_fits(allocations: int, changes: int) -> None:
    timeline = busy(allocations, changes)
    small, large = small_picture(timeline), large_picture(timeline)
    assert len(small) <= SMALL_LIMIT
    assert len(large) <= LARGE_LIMIT
    assert len(svg_of(large)) > 5


def test_a_long_run_keeps_the_latest_and_says_how_many_are_not_shown() -> None:
    timeline = Timeline()
    for number in range(500):
        timeline.add(60 * number, seen(worker(number + 2)), 1)
    assert len(timeline.rows) == MOST_ROWS
    assert next(iter(timeline.rows)) == "1", "what lives is kept"
    large = large_picture(timeline)
    shown = [text for text in texts(large) if text.endswith((" worker", " head"))]
    assert "501 worker" in shown
    assert f"{501 - len(shown)} earlier allocations not shown" in texts(large)
    assert "more not shown" in small_picture(timeline)


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0 s"), (59, "59 s"), (90, "1.5 min"), (7200, "2 h"), (200_000, "2.31 d")]
)
def test_times_have_units(seconds: float, said: str) -> None:
    assert span(seconds) == said


# -- usage ---------------------------------------------------------------------------------------------


def test_hours_are_asked_while_pending_and_used_while_running() -> None:
    usage = Usage()
    usage.add(0, seen(worker(2, PENDING)))
    usage.add(1800, seen(worker(2, READY)))
    usage.add(5400, seen())
    usage.add(9000, None)
    assert usage.totals() == {"gpu_hours_asked": 12.0, "gpu_hours_used": 8.0, "node_hours_used": 0.5 + 3.0 + 1.0}


def test_what_is_not_known_is_no_sum() -> None:
    usage = Usage()
    assert usage.totals() == {}
    usage.add(0, seen(attrs.evolve(worker(2, READY), granted_gpus=None)))
    usage.add(1800, seen(worker(2, READY), certain=False))
    usage.add(3600, None)
    assert usage.totals() == {"gpu_hours_asked": 8.0, "node_hours_used": 3.0}
