"""A policy on an asset: found by code, read by people."""

from __future__ import annotations

import pickle

import dagster as dg
import pytest

from dagster_slurm import ConfigurationError, PolicyContext, WorkerIntent, worker_policy
from dagster_slurm.metadata import POLICY_KEY, AttachedPolicy, describe, find_policy


def grow(context: PolicyContext) -> WorkerIntent:
    """One more worker each time.

    The rest is not shown.
    """
    return WorkerIntent(key=context.key, count=1)


class Callable:
    """Not shown."""

    def __call__(self, context: PolicyContext) -> None:
        """Leave it."""


@dg.asset(metadata=worker_policy(grow) | {"owner": "me"})
def with_policy() -> None: ...


def test_it_is_found_through_a_repository_as_a_sensor_does() -> None:
    repository = dg.Definitions(assets=[with_policy]).get_repository_def()
    metadata = repository.assets_defs_by_key[dg.AssetKey("with_policy")].metadata_by_key[dg.AssetKey("with_policy")]
    assert find_policy(metadata) is grow


def test_people_read_name_summary_and_place() -> None:
    text = str(worker_policy(grow)[POLICY_KEY])
    assert text.startswith("grow: One more worker each time. (")
    assert ".test_metadata:" in text
    value = dg.MetadataValue.text(worker_policy(grow)[POLICY_KEY])
    assert value.value == text


def test_what_is_no_function_is_described_by_its_class() -> None:
    assert describe(Callable()).startswith("Callable (")


def test_an_asset_without_one_has_none() -> None:
    assert find_policy({"slurm/policy": "only text"}) is None
    assert find_policy({}) is None


def test_it_survives_being_pickled() -> None:
    attached = AttachedPolicy(len)  # type: ignore[arg-type]
    again = pickle.loads(pickle.dumps(attached))
    assert again == attached
    assert again.policy is len


@pytest.mark.parametrize("wrong", [None, 3, "grow"], ids=repr)
def test_what_cannot_be_called_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="needs a function"):
        worker_policy(wrong)  # type: ignore[arg-type]
