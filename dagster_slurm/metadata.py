"""A policy on an asset: one line of metadata, an object for the code that finds it, text for people."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, cast

import dagster as dg

from dagster_slurm.errors import ConfigurationError
from dagster_slurm.policy import Policy

POLICY_KEY = "slurm/policy"


class AttachedPolicy(str):
    """A policy as a metadata value. As text: its name, the first line of its docstring, and where it is defined."""

    policy: Policy

    def __new__(cls, policy: Policy) -> AttachedPolicy:
        made = super().__new__(cls, describe(policy))
        made.policy = policy
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.policy,))


def worker_policy(policy: Policy) -> dict[str, Any]:
    """Attach a policy to an asset: ``@dg.asset(metadata=worker_policy(my_policy))``.

    Args:
        policy: ``policy(context: PolicyContext)``; returns a ``WorkerIntent``, a list of them, or None.

    Returns:
        Metadata for the asset; merge it with your own with ``|``.

    Raises:
        ConfigurationError: ``policy`` cannot be called.
    """
    if not callable(policy):
        raise ConfigurationError(
            f"worker_policy needs a function, not {policy!r}",
            field="worker_policy",
            remedy="pass it without calling it.",
        )
    return {POLICY_KEY: AttachedPolicy(policy)}


def find_policy(metadata: Mapping[str, Any]) -> Policy | None:
    """The policy in an asset's metadata, None without one."""
    found = metadata.get(POLICY_KEY)
    return found.policy if isinstance(found, AttachedPolicy) else None


def attached_policies(assets_def: dg.AssetsDefinition, keys: Iterable[dg.AssetKey]) -> dict[dg.AssetKey, Policy]:
    """The policies of these assets, for those that have one."""
    found = {key: find_policy(assets_def.metadata_by_key.get(key) or {}) for key in keys}
    return {key: policy for key, policy in found.items() if policy is not None}


def describe(policy: Policy) -> str:
    """One line about a policy: name, first line of its docstring, where it is defined."""
    function = inspect.unwrap(cast("Any", policy))
    name = getattr(function, "__qualname__", type(function).__name__)
    module = getattr(function, "__module__", None) or type(function).__module__
    code = getattr(function, "__code__", None)
    summary = (inspect.getdoc(function) or "").partition("\n")[0] if code is not None else ""
    line = "" if code is None else f":{code.co_firstlineno}"
    return f"{name}{': ' + summary if summary else ''} ({module}{line})"
