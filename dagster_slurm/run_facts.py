"""What Dagster's event log says of a run in progress: its assets, and which of their steps run."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Mapping

import attrs
import dagster as dg

from dagster_slurm.metadata import find_policy
from dagster_slurm.policy import Policy

_TAG = "dagster_slurm/session"
_LONGEST_TAG_PART = 63


class StepState(enum.Enum):
    """Where a step is."""

    AHEAD = "ahead"
    RUNNING = "running"
    ENDED = "ended"


_STATES = {
    dg.DagsterEventType.STEP_START: StepState.RUNNING,
    dg.DagsterEventType.STEP_RESTARTED: StepState.RUNNING,
    dg.DagsterEventType.STEP_UP_FOR_RETRY: StepState.AHEAD,
    dg.DagsterEventType.STEP_SUCCESS: StepState.ENDED,
    dg.DagsterEventType.STEP_FAILURE: StepState.ENDED,
    dg.DagsterEventType.STEP_SKIPPED: StepState.ENDED,
}


@attrs.frozen(kw_only=True)
class StepAsset:
    """The asset that stands for a step: the first with a policy, else the first.

    Attributes:
        asset_key: Its key.
        partition_key: The partition that is materialized; None without one.
        state: Where its step is.
        policy: The policy on it; None without one.
    """

    asset_key: dg.AssetKey
    partition_key: str | None
    state: StepState
    policy: Policy | None

    @property
    def intent_key(self) -> str:
        """Default key of its intents."""
        return self.asset_key.to_user_string()


def session_tag(session_name: str | None) -> str:
    """Key of the run's tag that says that it has a session of that name."""
    if session_name is None:
        return _TAG
    tag = f"{_TAG}.{session_name}"
    if len(tag.partition("/")[2]) > _LONGEST_TAG_PART:
        digest = hashlib.sha256(session_name.encode()).hexdigest()[:8]
        tag = f"{tag[: len(_TAG) + 40]}.{digest}"
    return tag


def find_policies(assets_defs: Mapping[dg.AssetKey, dg.AssetsDefinition]) -> dict[dg.AssetKey, Policy]:
    """The policies on the assets of a repository."""
    found = {key: find_policy(made.metadata_by_key.get(key) or {}) for key, made in assets_defs.items()}
    return {key: policy for key, policy in found.items() if policy is not None}


def step_assets(
    instance: dg.DagsterInstance, run_id: str, policies: Mapping[dg.AssetKey, Policy]
) -> tuple[StepAsset, ...]:
    """One asset for each step of a run that has assets."""
    entries = instance.all_logs(run_id, of_type={dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED, *_STATES})
    events = [entry.dagster_event for entry in entries if entry.dagster_event is not None]
    states = step_states(events)
    planned: dict[str, list[tuple[dg.AssetKey, str | None]]] = {}
    for event in events:
        if event.event_type is dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED and event.step_key is not None:
            data = event.asset_materialization_planned_data
            planned.setdefault(event.step_key, []).append((data.asset_key, data.partition))
    return tuple(_standing_for(assets, states.get(step, StepState.AHEAD), policies) for step, assets in planned.items())


def _standing_for(
    assets: Iterable[tuple[dg.AssetKey, str | None]], state: StepState, policies: Mapping[dg.AssetKey, Policy]
) -> StepAsset:
    # The same choice as the step's own loop makes.
    ordered = sorted(assets, key=lambda pair: pair[0].to_user_string())
    key, partition = next((pair for pair in ordered if pair[0] in policies), ordered[0])
    return StepAsset(asset_key=key, partition_key=partition, state=state, policy=policies.get(key))


def step_states(events: Iterable[dg.DagsterEvent]) -> dict[str, StepState]:
    """Where each step is that has begun or was skipped; the last event of a step tells."""
    return {
        event.step_key: _STATES[event.event_type]
        for event in events
        if event.step_key is not None and event.event_type in _STATES
    }
