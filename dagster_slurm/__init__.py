"""Elastic Ray worker allocations on Slurm, driven by policies in Dagster.

Names are loaded when they are first used: a program on the cluster imports ``dagster_slurm.ray`` with Python and ray
alone, and a policy's test needs neither Dagster nor a cluster.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagster_slurm.allocations.config import SlurmWorkerAllocationConfig as SlurmWorkerAllocationConfig
    from dagster_slurm.allocations.estimate import StartEstimate as StartEstimate
    from dagster_slurm.allocations.explanation import WorkerPlan as WorkerPlan
    from dagster_slurm.allocations.intent import WorkerIntent as WorkerIntent
    from dagster_slurm.allocations.removal import RemovalResult as RemovalResult
    from dagster_slurm.allocations.result import EndResult as EndResult
    from dagster_slurm.allocations.result import ReconcileResult as ReconcileResult
    from dagster_slurm.allocations.roles import AssignmentResult as AssignmentResult
    from dagster_slurm.allocations.snapshot import AllocationSnapshot as AllocationSnapshot
    from dagster_slurm.allocations.snapshot import SessionSnapshot as SessionSnapshot
    from dagster_slurm.allocations.succession import HeadResult as HeadResult
    from dagster_slurm.allocations.table import snapshot_table as snapshot_table
    from dagster_slurm.checks import policy_satisfied_check as policy_satisfied_check
    from dagster_slurm.checks import session_healthy_check as session_healthy_check
    from dagster_slurm.checks import snapshot_check as snapshot_check
    from dagster_slurm.cleanup_sensor import session_cleanup_sensor as session_cleanup_sensor
    from dagster_slurm.errors import ConfigurationError as ConfigurationError
    from dagster_slurm.errors import DagsterSlurmError as DagsterSlurmError
    from dagster_slurm.errors import PayloadEndedWithHead as PayloadEndedWithHead
    from dagster_slurm.errors import PayloadFailed as PayloadFailed
    from dagster_slurm.fake_compute import FakeSlurmCompute as FakeSlurmCompute
    from dagster_slurm.metadata import worker_policy as worker_policy
    from dagster_slurm.policy import PolicyContext as PolicyContext
    from dagster_slurm.policy import release_all as release_all
    from dagster_slurm.policy_sensor import worker_policy_sensor as worker_policy_sensor
    from dagster_slurm.remote.housekeeping import FoundSession as FoundSession
    from dagster_slurm.resource_options import SlurmHeadOptions as SlurmHeadOptions
    from dagster_slurm.resource_options import SlurmLimits as SlurmLimits
    from dagster_slurm.resource_options import SlurmQueueOptions as SlurmQueueOptions
    from dagster_slurm.resource_options import SlurmWorkerOptions as SlurmWorkerOptions
    from dagster_slurm.resources import SlurmComputeResource as SlurmComputeResource
    from dagster_slurm.run_result import SlurmRunResult as SlurmRunResult
    from dagster_slurm.session.estimators import SbatchTestOnlyEstimator as SbatchTestOnlyEstimator
    from dagster_slurm.session.session import AllocationSession as AllocationSession

_HOMES = {
    "AllocationSession": "session.session",
    "AllocationSnapshot": "allocations.snapshot",
    "AssignmentResult": "allocations.roles",
    "ConfigurationError": "errors",
    "DagsterSlurmError": "errors",
    "EndResult": "allocations.result",
    "FakeSlurmCompute": "fake_compute",
    "FoundSession": "remote.housekeeping",
    "HeadResult": "allocations.succession",
    "PayloadEndedWithHead": "errors",
    "PayloadFailed": "errors",
    "PolicyContext": "policy",
    "ReconcileResult": "allocations.result",
    "RemovalResult": "allocations.removal",
    "SbatchTestOnlyEstimator": "session.estimators",
    "SessionSnapshot": "allocations.snapshot",
    "SlurmComputeResource": "resources",
    "SlurmHeadOptions": "resource_options",
    "SlurmLimits": "resource_options",
    "SlurmQueueOptions": "resource_options",
    "SlurmRunResult": "run_result",
    "SlurmWorkerAllocationConfig": "allocations.config",
    "SlurmWorkerOptions": "resource_options",
    "StartEstimate": "allocations.estimate",
    "policy_satisfied_check": "checks",
    "release_all": "policy",
    "session_cleanup_sensor": "cleanup_sensor",
    "session_healthy_check": "checks",
    "snapshot_check": "checks",
    "snapshot_table": "allocations.table",
    "WorkerIntent": "allocations.intent",
    "WorkerPlan": "allocations.explanation",
    "worker_policy": "metadata",
    "worker_policy_sensor": "policy_sensor",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
