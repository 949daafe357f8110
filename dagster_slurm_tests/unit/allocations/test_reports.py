"""What agents and payloads report of an allocation, and what stays unknown without them."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_slurm.allocations.observation import Observation, Report
from dagster_slurm.allocations.reports import DriverMark
from dagster_slurm.allocations.snapshot import AllocationSnapshot, SessionSnapshot
from dagster_slurm_tests.builders import (
    NOW,
    job,
    ledger,
    look,
    node_report,
    ray_nodes,
    record,
    silent,
    snapshot,
)


def worker(observation: Observation) -> AllocationSnapshot:
    """The one worker of an observation."""
    (found,) = snapshot(observation).workers()
    return found


# -- Ray -------------------------------------------------------------------------------------------


def joined(*numbers: int, **changes: Any) -> Observation:
    """A running worker on n7, and the head's report of these nodes."""
    values: dict[str, Any] = {"cluster": {"1": ray_nodes(*numbers)}, **changes}
    return look(ledger(record(7)), job(7), **values)


def test_ready_once_every_node_joined_the_current_head() -> None:
    assert worker(joined(1)).ready is False
    assert worker(joined(1)).ray_nodes == {}
    assert worker(joined(1, 7)).ready is True
    assert worker(joined(1, 7)).ray_nodes == {"n7": "ray7"}
    two = look(ledger(record(7)), job(7, nodes=("n7", "n8")), cluster={"1": ray_nodes(7)})
    assert worker(two).ready is False, "one of its two nodes"


@pytest.mark.parametrize(
    "reports",
    [
        {},
        {"1": ray_nodes(1, 7, age_seconds=16)},
        {"99": ray_nodes(1, 7)},
        {"1": Report(content={"nodes": None}, age_seconds=0)},
    ],
)
def test_what_the_current_head_does_not_tell_now_is_unknown(reports: dict[str, Report]) -> None:
    found = worker(joined(cluster=reports))
    assert (found.ready, found.ray_nodes, found.idle_seconds) == (None, None, None)


def test_ready_is_unknown_when_the_scheduler_or_its_node_list_is() -> None:
    assert worker(silent(ledger(record(7)), cluster={"1": ray_nodes(7)})).ready is None
    assert worker(look(ledger(record(7)), job(7, nodes=()), cluster={"1": ray_nodes(7)})).ready is None


@pytest.mark.parametrize("state", ["CONFIGURING", "SUSPENDED"])
def test_C_7_only_a_running_allocation_is_ready(state: str) -> None:
    found = look(ledger(record(7)), job(7, state, nodes=("n7",)), cluster={"1": ray_nodes(7)})
    assert worker(found).ready is False


def test_O_1_a_dead_entry_of_a_node_that_restarted_says_nothing() -> None:
    dead = {"ray_node_id": "old", "state": "DEAD", "slurm_job_id": "7", "node": "n7", "idle_seconds": None}
    alive = {"ray_node_id": "new", "state": "ALIVE", "slurm_job_id": "7", "node": "n7", "idle_seconds": 4}
    for nodes in ([dead, alive], [alive, dead], [alive, "damaged"]):
        found = worker(joined(cluster={"1": Report(content={"nodes": nodes}, age_seconds=1)}))
        assert (found.ready, found.ray_nodes, found.idle_seconds) == (True, {"n7": "new"}, 4.0)
    only_dead = worker(joined(cluster={"1": Report(content={"nodes": [dead]}, age_seconds=1)}))
    assert (only_dead.ready, only_dead.ray_nodes, only_dead.idle_seconds) == (False, {}, None)


def test_idle_time_is_that_of_its_busiest_node_and_unknown_when_one_is() -> None:
    def entry(node: str, idle: float | None) -> dict[str, Any]:
        return {"ray_node_id": node, "state": "ALIVE", "slurm_job_id": "7", "node": node, "idle_seconds": idle}

    def idle(*values: float | None) -> float | None:
        nodes = [entry(f"n{n}", value) for n, value in enumerate(values)]
        return worker(joined(cluster={"1": Report(content={"nodes": nodes}, age_seconds=1)})).idle_seconds

    assert idle(9.0, 3.5) == 3.5
    assert idle(9.0, None) is None
    assert idle() is None


def test_rays_demand_and_what_cannot_be_known_of_it() -> None:
    demand = [{"shape": {"CPU": 1.0}, "count": 3}, "damaged"]
    assert snapshot(joined(cluster={"1": ray_nodes(demand=demand)})).ray_demand == (
        {"shape": {"CPU": 1.0}, "count": 3},
    )
    assert snapshot(joined(cluster={"1": ray_nodes(demand=[])})).ray_demand == ()
    assert snapshot(joined(cluster={"1": ray_nodes(demand=None)})).ray_demand is None
    assert snapshot(joined(cluster={"1": ray_nodes(demand=[], age_seconds=99)})).ray_demand is None
    assert snapshot(joined(cluster={})).ray_demand is None


def test_what_could_not_be_observed_is_said() -> None:
    assert snapshot(joined()).not_observed == ()
    assert "has not reported yet" in snapshot(joined(cluster={})).not_observed[0]
    assert "last reported 99 s ago" in snapshot(joined(cluster={"1": ray_nodes(age_seconds=99)})).not_observed[0]
    assert snapshot(look(ledger(), head_job=job(1, "PENDING"))).not_observed == ()
    assert snapshot(silent(ledger(), error=None)).not_observed == ("The scheduler did not answer: no reply",)


# -- drains, messages, work ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "entry", "deadline", "draining"),
    [
        ([True], "ALIVE", None, True),
        ([True], "ALIVE", NOW + 5, True),
        ([], "DRAINING", None, True),
        ([False], "ALIVE", None, False),
        ([False], "ALIVE", NOW + 5, None),
        ([False, True], "ALIVE", None, True),
        ([False, None], "ALIVE", None, None),
        ([], "ALIVE", None, None),
        ([], "ALIVE", NOW + 5, None),
    ],
)
def test_O_6_draining_is_what_the_cluster_says(
    said: list[bool | None], entry: str, deadline: int | None, draining: bool | None
) -> None:
    reports = {("7", f"n{n}"): node_report(draining=value) for n, value in enumerate(said)}
    cluster = ray_nodes(7)
    cluster.content["nodes"][0]["state"] = entry
    observation = look(ledger(record(7, drain_deadline=deadline)), job(7), nodes=reports, cluster={"1": cluster})
    assert worker(observation).draining is draining
    assert worker(observation).drain_deadline == deadline


def test_old_and_foreign_reports_do_not_count() -> None:
    reports = {("7", "n7"): node_report(16, draining=True), ("8", "n8"): node_report(draining=True)}
    assert worker(look(ledger(record(7)), job(7), nodes=reports)).draining is None


def test_what_agents_say_is_passed_on() -> None:
    reports = {
        ("7", "a"): node_report(message="Ray 2.1 differs"),
        ("7", "b"): node_report(message=""),
        ("7", "c"): node_report(message=5),
        ("7", "d"): node_report(message="no space"),
        ("8", "e"): node_report(message="another"),
    }
    assert worker(look(ledger(record(7)), job(7), nodes=reports)).message == "Ray 2.1 differs; no space"
    assert worker(look(ledger(record(7)), job(7))).message is None


def test_the_newest_payload_says_what_remains() -> None:
    work = {"100-b": {"remaining": 1}, "200-a": {"remaining": 2}}
    assert snapshot(look(ledger(), work=work)).work == {"remaining": 2}
    assert snapshot(look(ledger())).work is None


# -- the steps that drive ----------------------------------------------------------------------------


def mark(key: Any, age_seconds: int = 0, interval_seconds: Any = 30) -> Report:
    return Report(content={"key": key, "interval_seconds": interval_seconds}, age_seconds=age_seconds)


def test_a_step_drives_until_it_has_not_looked_for_two_intervals() -> None:
    found = snapshot(
        look(
            ledger(),
            drivers={"100-a": mark("one", 61), "200-b": mark("two", 60), "150-c": mark("two", 500)},
            work={"200-b": {"remaining": 3}},
        )
    )
    two = DriverMark(key="two", payload_id="200-b", interval_seconds=30.0, age_seconds=60, work={"remaining": 3})
    assert found.driver("two") == two
    assert two.fresh
    one = found.driver("one")
    assert one is not None
    assert not one.fresh
    assert one.work is None
    assert found.driver("three") is None
    assert SessionSnapshot.from_json(found.to_json()) == found


@pytest.mark.parametrize("damaged", [Report(content={}, age_seconds=0), mark(3), mark("one", interval_seconds="soon")])
def test_a_mark_that_makes_no_sense_is_none(damaged: Report) -> None:
    assert snapshot(look(ledger(), drivers={"100-a": damaged})).drivers == ()
