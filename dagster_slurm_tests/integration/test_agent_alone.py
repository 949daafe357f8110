"""The agent as a process while there is no Ray to run: everything it has to do without a head."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_slurm_tests.integration.hand_made import HandMadeSession, wait_for

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[HandMadeSession]:
    session = HandMadeSession(tmp_path / "session")
    session.write_ledger("1")
    try:
        yield session
    finally:
        session.end()


def left_by_itself(session: HandMadeSession, job: str) -> str:
    """Why the agent left; it has to leave with status 0 and nothing running."""
    assert session.agents[job].wait(timeout=60) == 0
    assert session.processes_left() == []
    assert session.state(job) == "leaving"
    return str(session.report(job)["message"])


def test_a_worker_without_a_head_leaves_after_its_rejoin_timeout(session: HandMadeSession) -> None:
    session.start("2", rejoin_timeout_seconds=1)
    assert "no head" in left_by_itself(session, "2")


@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGUSR1, "Ray was not running on this node")]
)
def test_signals_end_a_waiting_worker(session: HandMadeSession, number: int, reason: str) -> None:
    agent = session.start("2")
    wait_for("the report", lambda: session.state("2") == "waiting")
    agent.send_signal(number)
    assert reason in left_by_itself(session, "2")


def test_a_network_interface_that_is_not_there_ends_the_agent_with_its_name(session: HandMadeSession) -> None:
    agent = session.start("2", network_interface="nope0")
    assert agent.wait(timeout=60) == 1
    assert "no IPv4 address on the interface nope0; it has: lo" in session.report("2")["message"]


def test_the_container_command_comes_before_the_agent_and_signals_reach_it(session: HandMadeSession) -> None:
    agent = session.start("2", container_command=["env", "INSIDE=yes"])
    wait_for("the report", lambda: session.state("2") == "waiting")
    assert b"INSIDE=yes" in Path(f"/proc/{agent.pid}/environ").read_bytes()
    agent.send_signal(signal.SIGTERM)
    assert "SIGTERM" in left_by_itself(session, "2")


def test_closing_ends_a_waiting_worker(session: HandMadeSession) -> None:
    session.start("2")
    wait_for("the report", lambda: session.state("2") == "waiting")
    (session.directory / "closing").touch()
    assert "closing" in left_by_itself(session, "2")


def test_a_released_worker_that_waits_leaves_at_once(session: HandMadeSession) -> None:
    session.start("2")
    wait_for("the report", lambda: session.state("2") == "waiting")
    session.write("submissions/t2/drain", {"deadline": 0, "remaining_seconds": 600})
    assert "Ray was not running" in left_by_itself(session, "2")


def test_a_lease_that_ran_out_closes_the_session(session: HandMadeSession) -> None:
    lease = session.directory / "lease"
    old = lease.stat().st_mtime - 100
    os.utime(lease, (old, old))
    session.start("2", orphan_timeout_seconds=60)
    assert "nobody has used the session" in left_by_itself(session, "2")
    assert (session.directory / "closing").exists()


def test_a_fresh_lease_keeps_a_waiting_worker(session: HandMadeSession) -> None:
    session.start("2", orphan_timeout_seconds=60)
    wait_for("three reports", lambda: session.report("2").get("beat", 0) >= 3)
    assert session.state("2") == "waiting"
    assert not (session.directory / "closing").exists()


def test_a_head_that_stopped_publishing_is_not_joined(session: HandMadeSession) -> None:
    session.write("cluster/1.json", {"schema_version": 1, "head_job_id": "1", "address": "127.0.0.1:1", "nodes": []})
    path = session.directory / "cluster" / "1.json"
    old = path.stat().st_mtime - 100
    os.utime(path, (old, old))
    session.start("2")
    wait_for("three reports", lambda: session.report("2").get("beat", 0) >= 3)
    assert session.state("2") == "waiting"
    assert "starting Ray" not in session.log("2")


def test_a_head_with_another_ray_is_refused_with_both_versions(session: HandMadeSession) -> None:
    session.write(
        "cluster/1.json",
        {"schema_version": 1, "head_job_id": "1", "address": "127.0.0.1:1", "ray_version": "1.0.0", "nodes": []},
    )
    assert session.start("2").wait(timeout=60) == 1
    assert session.state("2") == "failed"
    assert "the head has Ray 1.0.0" in session.report("2")["message"]


def test_a_python_without_ray_is_named(session: HandMadeSession, tmp_path: Path) -> None:
    # A Python that sees no installed packages: the agent itself needs none.
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o700)
    assert session.start("2", python_command=str(bare)).wait(timeout=60) == 1
    assert session.state("2") == "failed"
    assert "cannot import ray" in session.report("2")["message"]


def test_damaged_settings_are_named_in_the_log(session: HandMadeSession) -> None:
    session.write_settings("t2", {})
    (session.directory / "submissions" / "t2" / "agent.json").write_text('{"role": ')
    session.start("2", write_settings=False)
    assert session.agents["2"].wait(timeout=60) == 1
    assert "agent.json is missing or damaged" in session.log("2")


def test_a_ledger_that_is_being_replaced_changes_nothing(session: HandMadeSession) -> None:
    session.start("2")
    wait_for("the report", lambda: session.state("2") == "waiting")
    (session.directory / "allocation.json").write_text(json.dumps({"head": None})[:5])
    beat = session.report("2")["beat"]
    wait_for("two more reports", lambda: session.report("2")["beat"] >= beat + 2)
    assert session.state("2") == "waiting"
