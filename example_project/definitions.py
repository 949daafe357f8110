"""The whole of what a user writes: a resource, a policy, an asset, and what looks after them.

Where the cluster is comes from environment variables; ``make demo`` sets them for a Slurm of its own.
"""

import os
import shlex
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_slurm import (
    SlurmComputeResource,
    SlurmQueueOptions,
    policy_satisfied_check,
    session_cleanup_sensor,
    session_healthy_check,
    worker_policy,
    worker_policy_sensor,
)
from example_project.policy import batch_policy

PAYLOAD = Path(__file__).parent / "payload"


@dg.asset(metadata=worker_policy(batch_policy), kinds={"slurm", "ray"})
def digits_search(context: dg.AssetExecutionContext, compute: SlurmComputeResource) -> dg.MaterializeResult[Any]:
    """The best support vector machine for handwritten digits, searched on as many Slurm allocations as pay off."""
    arguments = shlex.split(os.environ.get("DIGITS_SEARCH_ARGUMENTS", ""))
    result = compute.run(
        context=context,
        payload=PAYLOAD,
        argv=["{python}", "files/search.py", *arguments],
        interval_seconds=5,
    )
    return result.materialize_result()


RUNNING = dg.DefaultSensorStatus.RUNNING

defs = dg.Definitions(
    assets=[digits_search],
    asset_checks=[session_healthy_check(asset=digits_search), policy_satisfied_check(asset=digits_search)],
    # They look after the runs whose processes are gone, and after what such a run left behind.
    sensors=[worker_policy_sensor(default_status=RUNNING), session_cleanup_sensor(default_status=RUNNING)],
    jobs=[dg.define_asset_job("digits_job", selection=[digits_search])],
    resources={
        "compute": SlurmComputeResource(
            host=dg.EnvVar("SLURM_HOST"),
            port=dg.EnvVar.int("SLURM_PORT"),
            user=dg.EnvVar("SLURM_USER"),
            key_file=dg.EnvVar("SLURM_KEY_FILE"),
            known_hosts=dg.EnvVar("SLURM_KNOWN_HOSTS"),
            remote_base=dg.EnvVar("SLURM_REMOTE_BASE"),
            remote_setup=dg.EnvVar("SLURM_REMOTE_SETUP"),
            ray_python=dg.EnvVar("SLURM_RAY_PYTHON"),
            # Partition, account and the like go here too, for the head and all workers.
            queue=SlurmQueueOptions(mem="1G", time_limit="00:30:00"),
        )
    },
)
