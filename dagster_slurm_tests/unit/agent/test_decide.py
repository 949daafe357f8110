"""What a node does next, for every situation it can be in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dagster_slurm.agent.decide import (
    DRAIN_RETRY_SECONDS,
    FRESH_SECONDS,
    HEAD,
    SESSION_GONE_SECONDS,
    START_FAILURES_ALLOWED,
    START_TIMEOUT_SECONDS,
    TERM_DRAIN_SECONDS,
    WORKER,
    AskDrain,
    EndRay,
    Leave,
    Limits,
    Memory,
    RayRun,
    Seen,
    StartHead,
    StartWorker,
    Wait,
    earlier,
    forgive,
    next_action,
    retry_delay_seconds,
    window_after_signal,
)
from dagster_slurm.agent.records import Cluster, RayNode

NOW = 1000.0
LIMITS = Limits(rejoin_timeout_seconds=600, orphan_timeout_seconds=3600)
CLUSTER = Cluster(head_job_id="1", token="t1", address="10.0.0.1:6379", ray_version="2.60.0", nodes=(), age_seconds=1.0)
OWN = RayNode("ab", "ALIVE", "2", "n2", "9.1", None)


def running(role: str = WORKER, **changes: Any) -> RayRun:
    run = RayRun(role, "9.1", started_at=NOW - 10, address=CLUSTER.address, alive=True, joined_at=NOW - 5)
    return replace(run, **changes)


def memory(run: RayRun | None = None, **changes: Any) -> Memory:
    return replace(Memory(started_at=NOW - 20, run=run), **changes)


def seen(**changes: Any) -> Seen:
    return replace(Seen(now=NOW, leads=False, cluster=CLUSTER, ray_version="2.60.0"), **changes)


# -- the ordinary life -------------------------------------------------------------------------------


def test_a_worker_waits_for_its_head_then_starts_then_is_joined() -> None:
    assert isinstance(next_action(memory(), seen(cluster=None), LIMITS), Wait)
    assert next_action(memory(), seen(), LIMITS) == StartWorker("10.0.0.1:6379")
    assert next_action(memory(running(joined_at=None)), seen(), LIMITS) == Wait("starting")
    assert next_action(memory(running()), seen(own=OWN), LIMITS) == Wait("joined")


def test_O_13_the_head_by_the_ledger_starts_as_head() -> None:
    assert next_action(memory(), seen(leads=True, cluster=None), LIMITS) == StartHead()
    starting = running(HEAD, address=None, joined_at=None)
    assert next_action(memory(starting), seen(leads=True, cluster=None), LIMITS) == Wait("starting")
    assert next_action(memory(running(HEAD)), seen(leads=True), LIMITS) == Wait("joined")


def test_an_unreadable_ledger_starts_no_head_and_ends_nothing() -> None:
    assert isinstance(next_action(memory(), seen(leads=None, cluster=None), LIMITS), Wait)
    assert next_action(memory(running(HEAD)), seen(leads=None), LIMITS) == Wait("joined")


@pytest.mark.parametrize("role", [HEAD, WORKER])
def test_a_change_of_the_head_in_the_ledger_changes_the_role(role: str) -> None:
    action = next_action(memory(running(role)), seen(leads=role == WORKER), LIMITS)
    assert isinstance(action, EndRay)
    assert not action.failed


def test_a_worker_follows_a_moved_head() -> None:
    action = next_action(memory(running(address="10.0.0.9:1")), seen(), LIMITS)
    assert isinstance(action, EndRay)
    assert not action.failed


def test_a_joined_worker_stays_while_the_head_publishes_nothing() -> None:
    assert next_action(memory(running()), seen(cluster=None), LIMITS) == Wait("joined")
    stale = replace(CLUSTER, address="10.0.0.9:1", age_seconds=FRESH_SECONDS + 1)
    assert next_action(memory(running()), seen(cluster=stale), LIMITS) == Wait("joined")


def test_a_stale_address_is_not_joined() -> None:
    stale = replace(CLUSTER, age_seconds=FRESH_SECONDS + 1)
    assert isinstance(next_action(memory(), seen(cluster=stale), LIMITS), Wait)


# -- failures ----------------------------------------------------------------------------------------


def test_ray_that_ended_by_itself_counts_as_a_failure() -> None:
    action = next_action(memory(running(alive=False)), seen(), LIMITS)
    assert isinstance(action, EndRay)
    assert action.failed


def test_a_node_that_the_cluster_has_declared_dead_starts_anew() -> None:
    action = next_action(memory(running()), seen(own=replace(OWN, state="DEAD")), LIMITS)
    assert isinstance(action, EndRay)
    assert action.failed


@pytest.mark.parametrize(("role", "address"), [(HEAD, None), (WORKER, CLUSTER.address)])
def test_a_start_that_hangs_is_ended(role: str, address: str | None) -> None:
    run = running(role, joined_at=None, address=address, started_at=NOW - START_TIMEOUT_SECONDS - 1)
    action = next_action(memory(run), seen(leads=role == HEAD), LIMITS)
    assert isinstance(action, EndRay)
    assert action.failed


def test_a_join_that_cannot_be_judged_is_not_ended() -> None:
    run = running(joined_at=None, started_at=NOW - START_TIMEOUT_SECONDS - 1)
    assert next_action(memory(run), seen(cluster=None), LIMITS) == Wait("starting")


@pytest.mark.parametrize("leads", [True, False])
def test_failures_are_repeated_with_delays_and_bounded(leads: bool) -> None:
    later = memory(failures=1, retry_at=NOW + 1)
    assert isinstance(next_action(later, seen(leads=leads), LIMITS), Wait)
    assert isinstance(next_action(replace(later, retry_at=NOW), seen(leads=leads), LIMITS), StartHead | StartWorker)
    action = next_action(memory(failures=START_FAILURES_ALLOWED + 1), seen(leads=leads), LIMITS)
    assert isinstance(action, Leave)
    assert action.exit_status == 1


def test_failures_at_a_head_that_was_replaced_are_forgiven() -> None:
    failed = memory(failures=5, failed_address="10.0.0.9:1", retry_at=NOW + 20)
    assert forgive(failed, seen()) == memory()
    for kept in (replace(failed, failed_address=CLUSTER.address), replace(failed, failed_address=None)):
        assert forgive(kept, seen()) == kept
    assert forgive(failed, seen(cluster=None)) == failed


def test_a_successor_waits_without_ray_for_as_long_as_it_takes() -> None:
    patient = memory(headless_since=NOW - 9999)
    assert next_action(patient, seen(stands_by=True), LIMITS) == Wait("waiting", "stands by as the next head")
    action = next_action(memory(running()), seen(stands_by=True), LIMITS)
    assert isinstance(action, EndRay)
    assert not action.failed
    assert next_action(memory(), seen(stands_by=True, leads=True), LIMITS) == StartHead()


def test_delays_grow_up_to_a_limit() -> None:
    assert [retry_delay_seconds(count) for count in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]


def test_another_version_of_ray_ends_the_node_with_both_versions() -> None:
    action = next_action(memory(), seen(ray_version="2.59.0"), LIMITS)
    assert isinstance(action, Leave)
    assert action.exit_status == 1
    assert "2.59.0" in action.reason
    assert "2.60.0" in action.reason


# -- leaving -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [None, running(), running(HEAD)])
@pytest.mark.parametrize(
    "fact",
    [
        {"closing": True},
        {"session_gone_seconds": SESSION_GONE_SECONDS + 1},
        {"terminated": True, "closing": True},
        {"terminated": True, "with_head": True},
        {"terminated": True, "drain_deadline": NOW},
    ],
)
def test_some_facts_end_every_node_at_once(run: RayRun | None, fact: dict[str, Any]) -> None:
    action = next_action(memory(run), seen(**fact), LIMITS)
    assert isinstance(action, Leave)
    assert action.exit_status == 0
    assert not action.close_session


def test_a_session_directory_that_is_away_for_a_moment_changes_nothing() -> None:
    assert next_action(memory(running()), seen(session_gone_seconds=5.0), LIMITS) == Wait("joined")


def test_a_worker_leaves_after_its_rejoin_timeout() -> None:
    assert isinstance(next_action(memory(headless_since=NOW - 599), seen(cluster=None), LIMITS), Wait)
    action = next_action(memory(headless_since=NOW - 601), seen(cluster=None), LIMITS)
    assert isinstance(action, Leave)
    assert action.exit_status == 0


# -- dead-man switch ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "leads", "leaves"),
    [
        (None, False, True),
        (running(alive=False), False, True),
        (running(HEAD), True, True),
        (None, True, True),
        (running(), False, False),
    ],
)
def test_a_lease_that_ran_out_closes_the_session_from_heads_and_headless_nodes(
    run: RayRun | None, leads: bool, leaves: bool
) -> None:
    action = next_action(memory(run), seen(leads=leads, lease_age_seconds=3601.0), LIMITS)
    assert (isinstance(action, Leave) and action.close_session) is leaves


def test_an_unknown_age_or_a_switch_that_is_off_closes_nothing() -> None:
    assert isinstance(next_action(memory(running(HEAD)), seen(leads=True, lease_age_seconds=None), LIMITS), Wait)
    off = replace(LIMITS, orphan_timeout_seconds=None)
    assert isinstance(next_action(memory(running(HEAD)), seen(leads=True, lease_age_seconds=1e9), off), Wait)


# -- drain -------------------------------------------------------------------------------------------

DRAIN = {"drain_deadline": NOW + 100}


def test_a_drain_is_asked_for_with_the_time_that_is_left() -> None:
    assert next_action(memory(running()), seen(own=OWN, **DRAIN), LIMITS) == AskDrain(CLUSTER.address, 100)


def test_O_6_the_clusters_view_decides_and_the_request_is_repeated() -> None:
    asked = running(drain_asked_at=NOW - 1, has_raylet=True)
    assert isinstance(next_action(memory(asked), seen(own=OWN, **DRAIN), LIMITS), Wait)
    again = replace(asked, drain_asked_at=NOW - DRAIN_RETRY_SECONDS)
    assert next_action(memory(again), seen(own=OWN, **DRAIN), LIMITS) == AskDrain(CLUSTER.address, 100)
    draining = seen(own=replace(OWN, state="DRAINING"), **DRAIN)
    assert next_action(memory(again), draining, LIMITS) == Wait("draining")


def test_a_drain_is_asked_for_although_the_head_has_stopped_publishing() -> None:
    assert next_action(memory(running()), seen(cluster=None, **DRAIN), LIMITS) == AskDrain(CLUSTER.address, 100)


@pytest.mark.parametrize(
    ("run", "own"),
    [
        (None, None),
        (running(alive=False), OWN),
        (running(drain_asked_at=NOW - 1, has_raylet=False), replace(OWN, state="DRAINING")),
        (running(drain_asked_at=NOW - 1, has_raylet=True), replace(OWN, state="DEAD")),
    ],
)
def test_a_drained_node_leaves(run: RayRun | None, own: RayNode | None) -> None:
    action = next_action(memory(run), seen(own=own, **DRAIN), LIMITS)
    assert isinstance(action, Leave)
    assert action.exit_status == 0
    assert action.reason.startswith("drained")


def test_a_raylet_that_is_missing_before_the_request_is_no_drained_node() -> None:
    assert isinstance(next_action(memory(running(has_raylet=False)), seen(own=OWN, **DRAIN), LIMITS), AskDrain)


@pytest.mark.parametrize("run", [running(), running(HEAD)])
def test_the_deadline_is_the_end(run: RayRun) -> None:
    busy = seen(own=replace(OWN, state="DRAINING"), leads=run.role == HEAD, drain_deadline=NOW)
    action = next_action(memory(run), busy, LIMITS)
    assert isinstance(action, Leave)
    assert "deadline" in action.reason


def test_a_head_near_its_walltime_works_on() -> None:
    action = next_action(memory(running(HEAD)), seen(leads=True, **DRAIN), LIMITS)
    assert isinstance(action, Wait)
    assert action.state == "draining"


def test_a_head_that_was_replaced_and_released_ends_its_ray_then_leaves() -> None:
    assert isinstance(next_action(memory(running(HEAD)), seen(leads=False, **DRAIN), LIMITS), EndRay)
    assert isinstance(next_action(memory(), seen(leads=False, **DRAIN), LIMITS), Leave)


def test_a_drain_that_comes_before_the_start_starts_nothing() -> None:
    assert isinstance(next_action(memory(), seen(leads=True, **DRAIN), LIMITS), Leave)


def test_a_worker_that_slurm_ends_drains_first() -> None:
    told = seen(own=OWN, terminated=True, drain_reason="preempted", drain_deadline=NOW + TERM_DRAIN_SECONDS)
    assert next_action(memory(running()), told, LIMITS) == AskDrain(CLUSTER.address, TERM_DRAIN_SECONDS)
    draining = replace(told, own=replace(OWN, state="DRAINING"))
    assert next_action(memory(running(drain_asked_at=NOW)), draining, LIMITS) == Wait("draining", "preempted")


@pytest.mark.parametrize("run", [None, running(HEAD), running(joined_at=None), running(alive=False)])
def test_one_without_work_of_its_own_leaves_at_once_when_slurm_ends_it(run: RayRun | None) -> None:
    told = seen(terminated=True, drain_deadline=NOW + TERM_DRAIN_SECONDS)
    action = next_action(memory(run), told, LIMITS)
    assert isinstance(action, Leave)
    assert "SIGTERM" in action.reason


def test_a_deadline_never_moves_to_a_later_time() -> None:
    assert earlier(None, 5.0) == 5.0
    assert earlier(5.0, 9.0) == 5.0
    assert earlier(5.0, 3.0) == 3.0


@pytest.mark.parametrize(("window", "left"), [(120.0, 110.0), (12.0, 6.0), (0.0, 0.0)])
def test_the_window_after_the_warning_signal_leaves_time_for_the_end(window: float, left: float) -> None:
    assert window_after_signal(window) == left
