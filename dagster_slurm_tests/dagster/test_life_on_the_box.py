"""The life of a session with Dagster's real executors, on a real Slurm. Its head stays pending; nothing starts."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.cluster.bringup import give_to_job_user
from dagster_slurm_tests.dagster.box_resource import jobs_of, submitted_by
from dagster_slurm_tests.dagster.conftest import Launch
from dagster_slurm_tests.sessions import until

pytestmark = pytest.mark.integration
EXECUTORS = ("in_process", "multiprocess")


def sessions_below(base: Path) -> list[str]:
    return [path.name for path in (base / "sessions").iterdir()]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_Q_6_steps_at_once_share_one_session_that_ends_with_the_last(
    box: SlurmBox, fresh_base: Path, launch: Launch, executor: str
) -> None:
    run = launch("four_at_once", executor)
    assert run.wait() is dg.DagsterRunStatus.SUCCESS, run.log()
    assert sessions_below(fresh_base) == [run.run_id]
    assert len(submitted_by(box, run.run_id)) == 1
    assert jobs_of(box, run.run_id) == {}
    log = run.log()
    assert log.count("has ended; no job of it is left") == 1
    processes = {line.rpartition(" ")[2] for line in log.splitlines() if line.startswith("session ")}
    assert len(processes) == (1 if executor == "in_process" else 5)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_step_that_fails_in_front_of_others_ends_the_session(box: SlurmBox, launch: Launch, executor: str) -> None:
    run = launch("failing_in_the_middle", executor)
    assert run.wait() is dg.DagsterRunStatus.FAILURE
    assert len(submitted_by(box, run.run_id)) == 1
    assert jobs_of(box, run.run_id) == {}
    assert "has ended; no job of it is left" in run.log()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_retry_uses_the_same_session(box: SlurmBox, fresh_base: Path, launch: Launch, executor: str) -> None:
    run = launch("retrying", executor)
    assert run.wait() is dg.DagsterRunStatus.SUCCESS, run.log()
    assert len(submitted_by(box, run.run_id)) == 1
    assert run.log().count("has ended; no job of it is left") == 1
    assert jobs_of(box, run.run_id) == {}


@pytest.mark.parametrize("executor", EXECUTORS)
def test_Q_1_a_run_cancelled_while_its_head_is_pending_leaves_no_job(
    box: SlurmBox, fresh_base: Path, launch: Launch, executor: str
) -> None:
    run = launch("waiting", executor)
    until(lambda: any((fresh_base).glob("sessions/*/payloads/*/spec.json")), "the payload on the cluster", 90)
    assert list(jobs_of(box, run.run_id).values()) == ["PENDING"]
    run.cancel()
    assert run.wait() is dg.DagsterRunStatus.CANCELED, run.log()
    assert jobs_of(box, run.run_id) == {}
    assert list(fresh_base.glob("sessions/*/payloads/*/cancel")) != []


def test_an_interrupt_that_dagster_knows_nothing_of_ends_the_session_too(
    box: SlurmBox, fresh_base: Path, launch: Launch
) -> None:
    run = launch("waiting", "in_process")
    until(lambda: any(fresh_base.glob("sessions/*/payloads/*/spec.json")), "the payload on the cluster", 90)
    run.interrupt()
    run.wait()
    assert jobs_of(box, run.run_id) == {}


def test_Q_5_an_end_that_fails_is_in_the_run_s_log_with_the_surviving_jobs(
    box: SlurmBox, fresh_base: Path, launch: Launch
) -> None:
    broken = fresh_base / "bin"
    broken.mkdir()
    (broken / "scancel").write_text("#!/bin/sh\necho 'scancel: error: not today' >&2\nexit 1\n")
    (broken / "scancel").chmod(0o755)
    for path in (broken, broken / "scancel"):
        give_to_job_user(path, box.definition)
    run = launch("retrying", "in_process", slurm_bin=str(broken))
    assert run.wait() is dg.DagsterRunStatus.SUCCESS
    (job,) = jobs_of(box, run.run_id)
    assert f"These jobs may still run: {job}." in run.log()
    # What could not be cancelled is not started either: its batch script would find the mark.
    assert (fresh_base / "sessions" / run.run_id / "closing").exists()
