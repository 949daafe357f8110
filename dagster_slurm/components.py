"""A component: an asset that runs a payload on elastic workers, written in YAML."""

# Dagster reads the annotation of a context as it is written, hence no postponed annotations here.

import importlib
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from dagster_slurm.checks import policy_satisfied_check, session_healthy_check
from dagster_slurm.errors import ConfigurationError
from dagster_slurm.metadata import worker_policy
from dagster_slurm.policy import Policy

_COMPONENT = "ElasticRayAsset"


class ElasticRayAsset(dg.Component, dg.Model, dg.Resolvable):
    """An asset whose payload runs on a Slurm head allocation, with as many worker allocations as its policy asks for.

    The resource, a ``SlurmComputeResource``, is defined elsewhere in the project.
    """

    key: str = Field(description="Key of the asset, its parts separated by slashes.")
    payload: str = Field(description="Python file or directory to run, relative to the component's own directory.")
    argv: list[str] = Field(
        default=[], description="Command, run beside the directory files; required when the payload is a directory."
    )
    env: dict[str, str] = Field(default={}, description="Environment variables of the payload.")
    policy: str | None = Field(
        default=None, description="Function that decides on the workers, as package.module.function; without it none."
    )
    interval_seconds: float = Field(default=30.0, description="From one call of the policy to the next; at least 5.")
    resource_key: str = Field(default="compute", description="Key of the SlurmComputeResource.")
    checks: bool = Field(default=True, description="Whether session and policy are checked after each materialization.")
    description: str | None = Field(default=None, description="Description of the asset.")
    group_name: str | None = Field(default=None, description="Group of the asset.")
    kinds: list[str] = Field(default=["slurm", "ray"], description="Kinds that the asset is shown with.")

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """See dg.Component.

        Raises:
            ConfigurationError: the policy or the payload is not there; ``field`` names the attribute.
        """
        policy = None if self.policy is None else _import(self.policy)
        payload = context.path / self.payload
        if not payload.exists():
            raise ConfigurationError(f"There is no payload {payload}.", field=f"{_COMPONENT}.payload")
        asset = self._asset(payload, policy)
        checks = [session_healthy_check(asset=asset, resource_key=self.resource_key)] if self.checks else []
        if self.checks and policy is not None:
            checks.append(policy_satisfied_check(asset=asset, resource_key=self.resource_key))
        return dg.Definitions(assets=[asset], asset_checks=checks)

    def _asset(self, payload: Path, policy: Policy | None) -> dg.AssetsDefinition:
        @dg.asset(
            key=dg.AssetKey.from_user_string(self.key),
            description=self.description,
            group_name=self.group_name,
            kinds=set(self.kinds),
            metadata=None if policy is None else worker_policy(policy),
            required_resource_keys={self.resource_key},
        )
        def asset(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
            compute = getattr(context.resources, self.resource_key)
            result = compute.run(
                context=context,
                payload=payload,
                argv=self.argv,
                env=self.env,
                interval_seconds=self.interval_seconds,
            )
            found: dg.MaterializeResult[Any] = result.materialize_result()
            return found

        return asset


def _import(path: str) -> Policy:
    module, _, name = path.rpartition(".")
    try:
        policy = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"The policy {path} cannot be imported: {error}",
            field=f"{_COMPONENT}.policy",
            remedy="give the path of a function, such as my_project.policies.one_for_ten.",
        ) from error
    found: Policy = policy
    return found
