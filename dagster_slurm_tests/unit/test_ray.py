"""``dagster_slurm.ray``: what programs on the cluster use."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import dagster_slurm.ray as cluster_side
from dagster_slurm.ray import (
    node_is_draining,
    report_work,
    run_with_ray_reserve_topup,
    wait_for_stable_ray_resources,
)


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def polls(*answers: Mapping[str, float]) -> Callable[[], Mapping[str, float]]:
    """The answers one after the other, the last one for ever."""
    left = list(answers)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def test_it_imports_nothing_but_the_standard_library() -> None:
    program = (
        "import sys, dagster_slurm.ray; print([m for m in ('ray', 'attrs', 'dagster', 'paramiko') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "[]"


def test_a_report_replaces_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work.json"
    monkeypatch.setenv("DAGSTER_SLURM_WORK_FILE", str(work))
    assert report_work(remaining=7, best=0.5) is True
    assert report_work(3) is True
    assert json.loads(work.read_text()) == {"remaining": 3}
    assert list(tmp_path.iterdir()) == [work]


def test_outside_of_a_payload_a_report_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_SLURM_WORK_FILE", raising=False)
    assert report_work(remaining=1) is False


@pytest.mark.parametrize(
    ("remaining", "error"),
    [(-1, ValueError), (float("nan"), ValueError), (float("inf"), ValueError), ("7", TypeError), (True, TypeError)],
)
def test_a_report_that_means_nothing_is_refused(remaining: float, error: type[Exception]) -> None:
    with pytest.raises(error, match="remaining"):
        report_work(remaining=remaining)


def test_facts_that_json_cannot_hold_are_refused_and_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_SLURM_WORK_FILE", str(tmp_path / "work.json"))
    with pytest.raises(TypeError):
        report_work(remaining=1, best=object())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"draining": true}', True),
        ('{"draining": false}', False),
        ("{}", None),
        ("{", None),
        ("[1]", None),
        (None, None),
    ],
)
def test_a_program_learns_that_its_node_drains(
    content: str | None, expected: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "node.json"
    if content is not None:
        report.write_text(content)
    monkeypatch.setenv("DAGSTER_SLURM_NODE_FILE", str(report))
    assert node_is_draining() is expected
    monkeypatch.delenv("DAGSTER_SLURM_NODE_FILE")
    assert node_is_draining() is None


def test_waiting_needs_polls_in_a_row() -> None:
    clock = Clock()
    provider = polls({"CPU": 4}, {"CPU": 1}, {"CPU": 4}, {"CPU": 5, "GPU": 1})
    found = wait_for_stable_ray_resources(
        {"CPU": 4}, resource_provider=provider, clock=clock, sleep=clock.sleep, poll_interval_seconds=3
    )
    assert found == {"CPU": 5, "GPU": 1}
    assert clock.pauses == [3, 3, 3]


def test_one_poll_is_enough_when_asked() -> None:
    clock = Clock()
    found = wait_for_stable_ray_resources(
        {"GPU": 0.5}, stable_polls=1, resource_provider=polls({"GPU": 0.49999}), clock=clock, sleep=clock.sleep
    )
    assert found == {"GPU": 0.49999}
    assert clock.pauses == []


def test_a_timeout_names_what_was_missing() -> None:
    clock = Clock()
    with pytest.raises(TimeoutError, match=r"lacked \{'GPU': 1"):
        wait_for_stable_ray_resources(
            {"CPU": 1, "GPU": 1},
            timeout_seconds=2.5,
            resource_provider=polls({"CPU": 8}),
            clock=clock,
            sleep=clock.sleep,
        )
    assert clock.now == 102.5
    assert clock.pauses == [1.0, 1.0, 0.5]


def test_a_timeout_of_zero_polls_once() -> None:
    clock = Clock()
    with pytest.raises(TimeoutError):
        wait_for_stable_ray_resources(
            {"CPU": 1}, timeout_seconds=0, resource_provider=polls({}), clock=clock, sleep=clock.sleep
        )
    assert clock.pauses == []


@pytest.mark.parametrize(
    ("minimum", "options"),
    [({"CPU": -1}, {}), ({"CPU": float("nan")}, {}), ({}, {"stable_polls": 0}), ({}, {"poll_interval_seconds": -1})],
)
def test_impossible_waits_are_refused(minimum: dict[str, float], options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least"):
        wait_for_stable_ray_resources(minimum, resource_provider=polls({}), **options)
    with pytest.raises(ValueError, match="at least"):
        run_with_ray_reserve_topup(lambda: 1, lambda _: 2, minimum, resource_provider=polls({}), **options)


def test_the_reserve_runs_beside_the_primary() -> None:
    reserve_started = threading.Event()

    def primary() -> str:
        assert reserve_started.wait(timeout=30)
        return "first"

    def reserve(snapshot: dict[str, float]) -> float:
        reserve_started.set()
        return snapshot["CPU"]

    both = run_with_ray_reserve_topup(
        primary, reserve, {"CPU": 2}, resource_provider=polls({}, {"CPU": 2}), poll_interval_seconds=0
    )
    assert both == ("first", 2)


def test_without_capacity_the_second_result_is_none() -> None:
    asked = threading.Event()

    def nothing_free() -> Mapping[str, float]:
        asked.set()
        return {}

    both = run_with_ray_reserve_topup(
        lambda: asked.wait(timeout=30), lambda _: "never", {"CPU": 1}, resource_provider=nothing_free
    )
    assert both == (True, None)


def test_capacity_that_does_not_come_in_time_gives_none() -> None:
    both = run_with_ray_reserve_topup(
        lambda: "first", lambda _: "never", {"CPU": 1}, resource_provider=polls({}), timeout_seconds=0
    )
    assert both == ("first", None)


def test_a_failing_primary_stops_the_waiting_and_its_error_is_raised() -> None:
    def primary() -> None:
        raise RuntimeError("primary")

    with pytest.raises(RuntimeError, match="primary"):
        run_with_ray_reserve_topup(primary, lambda _: None, {"CPU": 1}, resource_provider=polls({}))


def test_a_failing_reserve_is_raised_after_the_primary_has_ended() -> None:
    failing = threading.Event()
    ended = []

    def primary() -> None:
        assert failing.wait(timeout=30)
        ended.append("primary")

    def reserve(_: dict[str, float]) -> None:
        failing.set()
        raise TimeoutError("reserve")

    # A TimeoutError of the reserve itself is not taken for capacity that never came.
    with pytest.raises(TimeoutError, match="reserve"):
        run_with_ray_reserve_topup(primary, reserve, {}, resource_provider=polls({}), poll_interval_seconds=0)
    assert ended == ["primary"]


def test_the_default_provider_is_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 2.0})
    assert cluster_side.wait_for_stable_ray_resources({"CPU": 2}, stable_polls=1) == {"CPU": 2.0}
