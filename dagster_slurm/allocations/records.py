"""What the ledger holds of one allocation, and of one submission whose job is not known yet: values, and their JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import attrs

Role = str
HEAD: Role = "head"
SUCCESSOR: Role = "successor"
WORKER: Role = "worker"

_T = TypeVar("_T")


def extra_keys() -> Any:
    """A field for the keys of a stored object that this version does not know."""
    return attrs.field(factory=dict, repr=False)


@attrs.frozen(kw_only=True)
class AllocationRecord:
    """One allocation of the session.

    Attributes:
        slurm_job_id: What ``sbatch`` returned.
        token: The submission's token.
        shape: Digest of the shape it was submitted with.
        intent: Key of the intent that counts it; None when it belongs to none.
        submitted_at: Login node's clock when ``reconcile_workers`` submitted it; None for other allocations.
        drain_deadline: Login node's clock at which it is cancelled; set once when it is released, never moved.
        absent_since: Login node's clock of the first good listing without it while accounting still called it live.
        final_state: Its last state, once known.
        ended_at: Login node's clock when ``final_state`` was recorded.
        extra: Keys of the stored record that this version does not know.
    """

    slurm_job_id: str
    token: str
    shape: str
    intent: str | None = None
    submitted_at: int | None = None
    drain_deadline: int | None = None
    absent_since: int | None = None
    final_state: str | None = None
    ended_at: int | None = None
    extra: Mapping[str, Any] = extra_keys()


@attrs.frozen(kw_only=True)
class OpenSubmission:
    """A submission whose job id is not recorded yet. It counts as live until it is known to be nothing.

    Attributes:
        token: Its token.
        role: "head", "successor" or "worker".
        intent: Key of the intent that asked for it, None for none.
        shape: Digest of its shape.
        prepared_at: Login node's clock of the observation that it was planned on.
        dated: Whether its record gets a ``submitted_at``: only what an intent asked for can expire.
        extra: Keys that this version does not know.
    """

    token: str
    role: Role
    intent: str | None
    shape: str
    prepared_at: int
    dated: bool
    extra: Mapping[str, Any] = extra_keys()


def flat_json(item: AllocationRecord | OpenSubmission) -> dict[str, Any]:
    """A record or submission as one flat JSON object, unknown keys included."""
    known = attrs.asdict(item, recurse=False)
    return {**known.pop("extra"), **known}


def read_flat(cls: type[_T], document: Any) -> _T:
    """What ``flat_json`` wrote.

    Raises:
        TypeError, ValueError, KeyError: it is damaged. Nothing is guessed.
    """
    if not isinstance(document, dict):
        raise TypeError(f"{cls.__name__} is not an object: {document!r}")
    known = {}
    for name, types in _SCHEMAS[cls]:
        # A key that is not there is damage: a default would make "released" or "ended" unsaid.
        value = known[name] = document[name]
        # Exactly these types: True is no number here.
        if type(value) not in types or value == "":
            raise TypeError(f"{cls.__name__}.{name} is {value!r}")
    if known.get("role", HEAD) not in (HEAD, SUCCESSOR, WORKER):
        raise ValueError(f"{cls.__name__}.role is {known['role']!r}")
    extra = {key: value for key, value in document.items() if key not in known}
    return cls(**known, extra=extra)  # type: ignore[call-arg]


def _schema(cls: type[Any]) -> tuple[tuple[str, tuple[type, ...]], ...]:
    """Name and allowed types of each stored field."""
    names = [field.name for field in attrs.fields(cls) if field.name != "extra"]
    types = {name: bool if name == "dated" else int if name in _INTEGERS else str for name in names}
    return tuple((name, (types[name],) if name in _REQUIRED else (types[name], type(None))) for name in names)


_INTEGERS = {"submitted_at", "drain_deadline", "absent_since", "ended_at", "prepared_at"}
_REQUIRED = {"slurm_job_id", "token", "shape", "role", "prepared_at", "dated"}
_SCHEMAS: dict[type[Any], tuple[tuple[str, tuple[type, ...]], ...]] = {
    cls: _schema(cls) for cls in (AllocationRecord, OpenSubmission)
}
