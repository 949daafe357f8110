"""The stand-in for users' tests: whole runs with ``dg.materialize`` in a moment, without a cluster."""

# Dagster reads the annotation of a context as it is written, hence no postponed annotations here.

import time
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_slurm import (
    FakeSlurmCompute,
    PayloadFailed,
    PolicyContext,
    SlurmComputeResource,
    SlurmWorkerAllocationConfig,
    WorkerIntent,
    session_cleanup_sensor,
    session_healthy_check,
    worker_policy,
    worker_policy_sensor,
)

SHAPE = SlurmWorkerAllocationConfig(gpus_per_node=2, time_limit="01:00:00")


def one_for_ten(context: PolicyContext) -> WorkerIntent:
    """One worker for ten items."""
    remaining = (context.work or {}).get("remaining", 0)
    soon = context.estimates([SHAPE])[0].starts_within(120)
    return WorkerIntent(key=context.key, count=-(-remaining // 10) if soon else 0, config=SHAPE)


@dg.asset(metadata=worker_policy(one_for_ten))
def scores(context: dg.AssetExecutionContext, compute: SlurmComputeResource) -> dg.MaterializeResult[Any]:
    """An asset as a user writes it."""
    payload = Path(__file__).parent / "payloads" / "plain.py"
    return compute.run(context=context, payload=payload).materialize_result()


def remaining(*numbers: int) -> list[dict[str, int]]:
    return [{"remaining": number} for number in numbers]


def materialize(compute: FakeSlurmCompute, *checks: dg.AssetChecksDefinition) -> dg.ExecuteInProcessResult:
    return dg.materialize([scores, *checks], resources={"compute": compute}, raise_on_error=False)


def test_an_hour_of_work_takes_a_moment() -> None:
    began = time.monotonic()
    compute = FakeSlurmCompute(work=remaining(*range(35, 0, -5), 0), work_seconds=600, start_after_seconds=60)
    result = materialize(compute)
    assert result.success
    assert time.monotonic() - began < 30
    (event,) = result.get_asset_materialization_events()
    found = {name: value.value for name, value in event.materialization.metadata.items()}
    assert found["slurm/most_workers_live"] == 4
    assert found["slurm/most_workers_ready"] == 4
    assert found["slurm/most_granted_gpus"] == 8
    assert found["slurm/duration_seconds"] >= 8 * 600
    assert found["slurm/gpu_hours_asked"] > found["slurm/gpu_hours_used"] > 0
    ticks = [e.asset_observation_data.asset_observation for e in result.get_asset_observation_events()]
    wanted = [tick.metadata["slurm/wanted"].value for tick in ticks if "slurm/wanted" in tick.metadata]
    assert [n for n, before in zip(wanted, [None, *wanted], strict=False) if n != before] == [0, 4, 3, 2, 1, 0]
    # Nothing is left over but the head, which the end of a real run would end.
    (session,) = compute.sessions.values()
    session.pass_time(60)
    assert [job.slurm_job_id for job in session.scheduler.jobs.values() if job.live] == ["1"]


def test_the_same_stand_in_serves_a_check() -> None:
    result = materialize(FakeSlurmCompute(work=remaining(5)), session_healthy_check(asset=scores))
    (evaluation,) = result.get_asset_check_evaluations()
    assert evaluation.passed, evaluation.description


def test_a_payload_that_fails_fails_its_step() -> None:
    result = materialize(FakeSlurmCompute(work=remaining(5), exit_code=3, output="about to fail\n"))
    assert not result.success
    (failure,) = result.get_step_failure_events()
    assert PayloadFailed.__name__ in str(failure.step_failure_data.error_display_string)
    assert "exited with status 3" in str(failure.step_failure_data.error_display_string)
    assert "about to fail" in str(failure.step_failure_data.error_display_string)


def test_a_session_is_driven_by_hand_too() -> None:
    @dg.op
    def by_hand(context: dg.OpExecutionContext, compute: SlurmComputeResource) -> int:
        session = compute.get_run_allocation_session(context)
        done = session.reconcile_workers(WorkerIntent(key="mine", count=3), observed=session.inspect())
        return len(done.submitted)

    @dg.job(resource_defs={"compute": dg.ResourceDefinition.hardcoded_resource(FakeSlurmCompute())})
    def job() -> None:
        by_hand()

    assert job.execute_in_process().output_for_node("by_hand") == 3


def test_sensors_work_on_it() -> None:
    compute = FakeSlurmCompute(work=remaining(25))
    with dg.DagsterInstance.ephemeral() as instance:
        dg.materialize([scores], resources={"compute": compute}, instance=instance)
        for sensor, said in (
            (worker_policy_sensor(), "No run in progress has a Slurm session."),
            (session_cleanup_sensor(), "has ended; no job of it is left"),
        ):
            context = dg.build_sensor_context(instance=instance, resources={"compute": compute})
            result = sensor(context)
            assert isinstance(result, dg.SensorResult)
            assert said in str(result.skip_reason)


def test_partitions_of_a_backfill_have_a_session_each_and_their_policies_are_told_which() -> None:
    asked: list[tuple[str, str | None]] = []

    def policy(context: PolicyContext) -> WorkerIntent:
        asked.append((context.run_id, context.partition_key))
        return WorkerIntent(key=context.key, count=1)

    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(["a", "b"]), metadata=worker_policy(policy))
    def parts(context: dg.AssetExecutionContext, compute: SlurmComputeResource) -> dg.MaterializeResult[Any]:
        payload = Path(__file__).parent / "payloads" / "plain.py"
        return compute.run(context=context, payload=payload).materialize_result()

    compute = FakeSlurmCompute(work=remaining(1))
    with dg.DagsterInstance.ephemeral() as instance:
        runs = {
            key: dg.materialize([parts], partition_key=key, instance=instance, resources={"compute": compute})
            for key in ("a", "b")
        }
    assert set(asked) == {(run.run_id, key) for key, run in runs.items()}
    assert compute.sessions.keys() == {run.run_id for run in runs.values()}
    for key, run in runs.items():
        observed = [e.asset_observation_data.asset_observation for e in run.get_asset_observation_events()]
        assert {observation.partition for observation in observed} == {key}
