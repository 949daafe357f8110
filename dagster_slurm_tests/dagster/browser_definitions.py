"""What the browser is shown: an asset with a policy, checks and sensors, on the stand-in for the resource."""

# Dagster reads the annotation of a context as it is written, hence no postponed annotations here.

from pathlib import Path
from typing import Any

import dagster as dg

from dagster_slurm import (
    FakeSlurmCompute,
    PolicyContext,
    SlurmComputeResource,
    SlurmWorkerAllocationConfig,
    WorkerIntent,
    policy_satisfied_check,
    session_cleanup_sensor,
    session_healthy_check,
    worker_policy,
    worker_policy_sensor,
)

SHAPE = SlurmWorkerAllocationConfig(gpus_per_node=2, time_limit="01:00:00")


def one_for_ten(context: PolicyContext) -> WorkerIntent:
    """One worker for ten open items."""
    remaining = (context.work or {}).get("remaining", 0)
    return WorkerIntent(key=context.key, count=-(-remaining // 10), config=SHAPE)


@dg.asset(metadata=worker_policy(one_for_ten), kinds={"slurm", "ray"})
def scores(context: dg.AssetExecutionContext, compute: SlurmComputeResource) -> dg.MaterializeResult[Any]:
    """The score of every item."""
    payload = Path(__file__).parent / "payloads" / "plain.py"
    return compute.run(context=context, payload=payload).materialize_result()


defs = dg.Definitions(
    assets=[scores],
    asset_checks=[session_healthy_check(asset=scores), policy_satisfied_check(asset=scores)],
    sensors=[worker_policy_sensor(), session_cleanup_sensor()],
    jobs=[dg.define_asset_job("scores_job", selection=[scores])],
    resources={
        "compute": FakeSlurmCompute(
            work=[{"remaining": n} for n in range(40, -1, -4)], work_seconds=60, start_after_seconds=45
        )
    },
)
