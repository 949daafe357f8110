"""Jobs for the box in processes of their own: their resource comes from the environment (``environment_of``)."""

import os
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_slurm import PolicyContext, SlurmComputeResource, SlurmHeadOptions, WorkerIntent, worker_policy
from dagster_slurm_tests.dagster.box_resource import SMALL
from dagster_slurm_tests.sessions import HELD

PAYLOADS = Path(__file__).parent / "payloads"


def _resource(**changed: Any) -> SlurmComputeResource:
    return SlurmComputeResource(
        **{
            "host": dg.EnvVar("TEST_HOST"),
            "port": dg.EnvVar.int("TEST_PORT"),
            "user": dg.EnvVar("TEST_USER"),
            "key_file": dg.EnvVar("TEST_KEY_FILE"),
            "known_hosts": dg.EnvVar("TEST_KNOWN_HOSTS"),
            "remote_base": dg.EnvVar("TEST_REMOTE_BASE"),
            "remote_setup": dg.EnvVar("TEST_REMOTE_SETUP"),
            "slurm_bin": os.environ.get("TEST_SLURM_BIN"),
            "ray_python": dg.EnvVar("TEST_RAY_PYTHON"),
            "queue": SMALL,
            **changed,
        }
    )


#: Its head stays pending, so that no process is started on the cluster.
held = _resource(head=SlurmHeadOptions(extra_options=["--hold"]))
compute = _resource()

_held = {"compute": held}
_running = {"compute": compute}


@dg.op(ins={"start": dg.In(dg.Nothing)})
def use(context: dg.OpExecutionContext, compute: SlurmComputeResource) -> None:
    session = compute.get_run_allocation_session(context)
    context.log.info(f"session {session.session_id} in process {os.getpid()}")


@dg.op(ins={"start": dg.In(dg.Nothing)})
def use_and_fail(context: dg.OpExecutionContext, compute: SlurmComputeResource) -> None:
    compute.get_run_allocation_session(context)
    raise RuntimeError("on purpose")


@dg.op(retry_policy=dg.RetryPolicy(max_retries=1))
def use_and_fail_once(context: dg.OpExecutionContext, compute: SlurmComputeResource) -> None:
    compute.get_run_allocation_session(context)
    if context.retry_number == 0:
        raise RuntimeError("on purpose")


@dg.op(ins={"start": dg.In(dg.Nothing)})
def wait_for_a_head(context: dg.OpExecutionContext, compute: SlurmComputeResource) -> None:
    compute.run(context=context, payload=PAYLOADS / "sleep.py")


@dg.job(resource_defs=_held)
def four_at_once() -> None:
    use.alias("last")(start=[use.alias(f"use_{number}")() for number in range(4)])


@dg.job(resource_defs=_held)
def failing_in_the_middle() -> None:
    use.alias("never")(start=use_and_fail(start=use.alias("first")()))


@dg.job(resource_defs=_held)
def retrying() -> None:
    use_and_fail_once()


@dg.job(resource_defs=_held)
def waiting() -> None:
    use.alias("never")(start=wait_for_a_head())


@dg.op
def run_plain(context: dg.OpExecutionContext, compute: SlurmComputeResource) -> None:
    compute.run(context=context, payload=PAYLOADS / "plain.py")


@dg.op(ins={"start": dg.In(dg.Nothing)})
def run_failing(context: dg.OpExecutionContext, compute: SlurmComputeResource) -> None:
    compute.run(context=context, payload=PAYLOADS / "failing.py")


@dg.op
def run_sleep(context: dg.OpExecutionContext, compute: SlurmComputeResource) -> None:
    compute.run(context=context, payload=PAYLOADS / "sleep.py")


@dg.job(resource_defs=_running)
def failing_payload() -> None:
    use.alias("never")(start=run_failing(start=run_plain()))


@dg.job(resource_defs=_running)
def sleeping_payload() -> None:
    run_sleep()


def held_workers(context: PolicyContext) -> WorkerIntent:
    """One worker that stays pending, and two where the test itself asks."""
    return WorkerIntent(key=context.key, count=int(os.environ.get("TEST_HELD_WORKERS", "2")), config=HELD)


@dg.asset(metadata=worker_policy(held_workers))
def waiting_asset(context: dg.AssetExecutionContext, compute: SlurmComputeResource) -> dg.MaterializeResult[Any]:
    return compute.run(context=context, payload=PAYLOADS / "sleep.py", interval_seconds=5).materialize_result()


definitions = dg.Definitions(
    assets=[waiting_asset],
    jobs=[dg.define_asset_job("waiting_asset_job", selection=[waiting_asset])],
    resources={"compute": held},
)


def waiting_asset_job() -> dg.JobDefinition:
    return definitions.resolve_job_def("waiting_asset_job")
