"""The two sensors on a real Slurm, beside a step that drives, and after its process was killed."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from dagster_slurm import session_cleanup_sensor, worker_policy_sensor
from dagster_slurm_tests.cluster import SlurmBox
from dagster_slurm_tests.dagster import jobs
from dagster_slurm_tests.dagster.box_resource import jobs_of, resource_on, submitted_by
from dagster_slurm_tests.dagster.conftest import Launch
from dagster_slurm_tests.sessions import until

pytestmark = pytest.mark.integration


class Daemon:
    """Evaluates a sensor as Dagster's daemon does, one tick after the other."""

    def __init__(self, sensor: dg.SensorDefinition, instance: dg.DagsterInstance, compute: object) -> None:
        self._sensor = sensor
        self._instance = instance
        self._compute = compute
        self._cursor: str | None = None

    def tick(self) -> str:
        with dg.build_sensor_context(
            instance=self._instance,
            cursor=self._cursor,
            definitions=jobs.definitions,
            resources={"compute": self._compute},
        ) as context:
            result = self._sensor(context)
        assert isinstance(result, dg.SensorResult)
        assert result.skip_reason is not None
        self._cursor = result.cursor
        return result.skip_reason.skip_message or ""


def test_sensors_take_over_from_a_killed_run_and_clean_up_after_it(
    box: SlurmBox, fresh_base: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_HELD_WORKERS", "1")
    run = launch("waiting_asset_job", "in_process")
    monkeypatch.delenv("TEST_HELD_WORKERS")
    until(lambda: run.run is not None and len(jobs_of(box, run.run_id)) == 2, "the head and the step's worker", 90)
    assert run.run is not None
    assert run.run.tags["dagster_slurm/session"] == run.run_id
    compute = resource_on(box, fresh_base)
    policies = Daemon(worker_policy_sensor(), run.instance, compute)

    # The step drives: its policy wants one worker, and the sensor's would want two.
    assert "The step of waiting_asset asks its policy itself; only observed." in policies.tick()
    assert len(jobs_of(box, run.run_id)) == 2

    run.kill()
    until(lambda: "wants 2 worker allocations of 'waiting_asset'" in policies.tick(), "the mark grows old", 60)
    assert len(jobs_of(box, run.run_id)) == 3
    policies.tick()
    assert len(submitted_by(box, run.run_id)) == 3

    cleanup = Daemon(session_cleanup_sensor(), run.instance, compute)
    assert cleanup.tick() == "1 session(s); nothing to end, nothing to remove."
    assert len(jobs_of(box, run.run_id)) == 3
    # What Dagster's run monitoring does with a run whose worker is gone.
    lost = run.run
    assert lost is not None
    run.instance.report_run_failed(lost)
    until(lambda: "has ended; no job of it is left" in cleanup.tick(), "the end of the session", 60)
    assert jobs_of(box, run.run_id) == {}
    directory = fresh_base / "sessions" / run.run_id
    assert (directory / "ended").exists()
    assert not (directory / "ray.token").exists()
    assert "has ended; no job of it is left" in run.log()
    assert cleanup.tick() == "1 session(s); nothing to end, nothing to remove."

    Daemon(session_cleanup_sensor(keep_seconds=0), run.instance, compute).tick()
    assert not directory.exists()
