"""What the Dagster layer needs to know about the step that it works for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs
import dagster as dg
from dagster._core.events import EngineEventData

from dagster_slurm.metadata import attached_policies
from dagster_slurm.policy import Policy

StepContext: TypeAlias = "dg.AssetExecutionContext | dg.AssetCheckExecutionContext | dg.OpExecutionContext"


@attrs.frozen(kw_only=True)
class Step:
    """The step.

    Attributes:
        name: The op's name, with the mapping key of a dynamic step.
        asset_key: The asset whose policy and events these are: the first with a policy, else the first; None in an op.
        partition_key: The one partition that is materialized; None without one, or with several.
        policy: The policy on the asset; None without one.
    """

    name: str
    asset_key: dg.AssetKey | None
    partition_key: str | None
    policy: Policy | None

    @property
    def intent_key(self) -> str:
        """Default key of its intents."""
        return self.name if self.asset_key is None else self.asset_key.to_user_string()


def op_context(context: StepContext) -> dg.OpExecutionContext:
    """The context below an asset's or check's: it has everything, without deprecations."""
    return context if isinstance(context, dg.OpExecutionContext) else context.op_execution_context


def step_of(context: dg.OpExecutionContext) -> Step:
    """Read the step from its context."""
    mapping_key = context.get_mapping_key()
    name = str(context.op_handle) + (f"[{mapping_key}]" if mapping_key else "")
    asset_key: dg.AssetKey | None = None
    policy: Policy | None = None
    if context.has_assets_def:
        keys = sorted(context.selected_asset_keys, key=dg.AssetKey.to_user_string)
        policies = attached_policies(context.assets_def, keys)
        asset_key = next(iter(policies), keys[0] if keys else None)
        policy = None if asset_key is None else policies.get(asset_key)
    return Step(name=name, asset_key=asset_key, partition_key=_partition(context), policy=policy)


def _partition(context: dg.OpExecutionContext) -> str | None:
    # A run over a range of partitions has several keys, and no single one to name.
    if not context.has_partition_key or context.has_partition_key_range:
        return None
    return context.partition_key


class StepEvents:
    """Records of a step in its run's event log: observations of the asset, or plain events in an op."""

    def __init__(self, context: dg.OpExecutionContext, step: Step) -> None:
        self._context = context
        self._step = step

    def record(self, sentence: str, metadata: Mapping[str, dg.MetadataValue[Any]]) -> None:
        """See ``recording.Events``."""
        if self._step.asset_key is not None:
            observation = dg.AssetObservation(
                asset_key=self._step.asset_key,
                partition=self._step.partition_key,
                description=sentence,
                metadata=metadata,
            )
            self._context.log_event(observation)
        else:
            report_run_event(self._context.instance, self._context.run, sentence, metadata, self._step.name)


def report_run_event(
    instance: dg.DagsterInstance,
    run: dg.DagsterRun,
    sentence: str,
    metadata: Mapping[str, dg.MetadataValue[Any]],
    step_key: str | None = None,
) -> None:
    """Add an event with metadata to a run's log. Dagster has no public way to do that; this is the one call site."""
    instance.report_engine_event(
        sentence,
        dagster_run=run,
        engine_event_data=EngineEventData(metadata=metadata),
        step_key=step_key,
    )
