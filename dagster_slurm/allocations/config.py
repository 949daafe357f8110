"""Worker shapes: what a user states, and the effective shape after inheritance."""

from __future__ import annotations

import datetime
import enum
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, TypeVar

import attrs

from dagster_slurm.errors import ConfigurationError
from dagster_slurm.slurm.arguments import (
    SIGNAL_WINDOW_LIMIT_SECONDS,
    gpu_count,
    memory_size,
    plain_text,
    whole_number,
)
from dagster_slurm.slurm.durations import (
    TIME_LIMIT_FORMS,
    parse_time_limit,
    render_time_limit,
)
from dagster_slurm.slurm.extra_options import check_extra_options

DEFAULT_DRAIN_WINDOW_SECONDS: Final = 120
_MEMORY_FORMS: Final = ("mem", "mem_per_cpu", "mem_per_gpu")
# What belongs to one allocation and would be wrong on the next one.
_NEVER_INHERITED: Final = frozenset({"nodelist", "head_only"})


class Inherit(enum.Enum):
    """Type of `INHERIT`."""

    INHERIT = "inherit"

    def __repr__(self) -> str:
        return "INHERIT"


INHERIT: Final = Inherit.INHERIT
"""A field that was left out: the base shape's value is taken. None instead clears it."""

_T = TypeVar("_T")
Inheritable: TypeAlias = _T | Literal[Inherit.INHERIT] | None


def _resources(value: Any) -> Any:
    """A mapping as sorted pairs, so that a shape can be hashed; ``dict(pairs)`` gives it back."""
    if isinstance(value, Mapping):
        return tuple(sorted(value.items(), key=lambda pair: str(pair[0])))
    return value


def _items(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@attrs.frozen(kw_only=True)
class SlurmWorkerAllocationConfig:
    """The shape of a worker allocation as a user states it.

    A field that is left out is inherited from the base shape, an explicit None clears it. `nodelist` and `head_only`
    are never inherited. Stated extra options replace the inherited ones, and a memory form replaces another one.

    Raises:
        ConfigurationError: a value has not the form that sbatch takes; ``field`` names it.
    """

    partition: Inheritable[str] = INHERIT
    account: Inheritable[str] = INHERIT
    qos: Inheritable[str] = INHERIT
    reservation: Inheritable[str] = INHERIT
    constraint: Inheritable[str] = INHERIT
    nodes: Inheritable[int] = INHERIT
    """Number of nodes of the one job; None means 1."""
    gpus_per_node: Inheritable[int | str] = INHERIT
    """A number, or with a type ``"a100:2"``. 0 is stated to Slurm, None says nothing about GPUs."""
    cpus_per_task: Inheritable[int] = INHERIT
    """CPUs per node, because each node runs one task."""
    mem: Inheritable[str] = INHERIT
    """Memory per node, ``"8G"``; a lone number is megabytes."""
    mem_per_cpu: Inheritable[str] = INHERIT
    mem_per_gpu: Inheritable[str] = INHERIT
    time_limit: Inheritable[str | datetime.timedelta] = INHERIT
    """Walltime: text as ``sbatch --time`` takes it, where a lone number is minutes, or a timedelta. A number that
    is not text is refused, because it could be minutes or seconds. None leaves it to the partition."""
    nodelist: Inheritable[str] = INHERIT
    exclude: Inheritable[str] = INHERIT
    extra_options: Inheritable[tuple[str, ...]] = attrs.field(default=INHERIT, converter=_items)
    """Further sbatch options, each with its value as one item: ``("--licenses=matlab:1",)``."""
    head_only: Inheritable[bool] = INHERIT
    """The allocation may lead the session but offers no resources for work."""
    drain_window_seconds: Inheritable[int] = INHERIT
    """How long before its walltime the worker stops taking work; None means 120. 0: it is not warned."""
    ray_start_args: Inheritable[tuple[str, ...]] = attrs.field(default=INHERIT, converter=_items)
    ray_resources: Inheritable[Mapping[str, float] | tuple[tuple[str, float], ...]] = attrs.field(
        default=INHERIT, converter=_resources
    )
    """Custom Ray resources per node; kept as sorted pairs."""

    def __attrs_post_init__(self) -> None:
        stated = {name: value for name, value in attrs.asdict(self, recurse=False).items() if value is not INHERIT}
        _checked(stated)


@attrs.frozen(kw_only=True)
class EffectiveShape:
    """A worker's shape with nothing left to inherit. None: not mentioned to Slurm, its own default holds.

    `time_limit` is canonical sbatch text (``1-02:03:04`` or ``UNLIMITED``), so equal shapes have equal digests.

    Raises:
        ConfigurationError: as `SlurmWorkerAllocationConfig`, and for more than one memory form.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    nodes: int = 1
    gpus_per_node: int | str | None = None
    cpus_per_task: int | None = None
    mem: str | None = None
    mem_per_cpu: str | None = None
    mem_per_gpu: str | None = None
    time_limit: str | None = None
    nodelist: str | None = None
    exclude: str | None = None
    extra_options: tuple[str, ...] = attrs.field(default=(), converter=_items)
    head_only: bool = False
    drain_window_seconds: int = DEFAULT_DRAIN_WINDOW_SECONDS
    ray_start_args: tuple[str, ...] = attrs.field(default=(), converter=_items)
    ray_resources: tuple[tuple[str, float], ...] = attrs.field(default=(), converter=_resources)

    def __attrs_post_init__(self) -> None:
        for name, value in _checked(attrs.asdict(self, recurse=False)).items():
            object.__setattr__(self, name, value)  # the canonical spelling, before anyone sees the shape

    @property
    def time_limit_seconds(self) -> int | None:
        """The walltime that is asked for; None when none is stated or it is unlimited."""
        return parse_time_limit(self.time_limit)

    @property
    def signal_window_seconds(self) -> int:
        """How long before the walltime the batch process is warned: at most half of a stated walltime, so that a
        short allocation does some work."""
        limit = self.time_limit_seconds
        return self.drain_window_seconds if limit is None else min(self.drain_window_seconds, limit // 2)

    @property
    def digest(self) -> str:
        """16 hex digits that are equal for equal shapes, in every process and version with these fields."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """The stated fields as plain JSON values; fields at their default are left out."""
        found: dict[str, Any] = {}
        for field in attrs.fields(EffectiveShape):
            value = getattr(self, field.name)
            if value != field.default:
                found[field.name] = _to_json(field.name, value)
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EffectiveShape:
        """Read what `to_json` wrote.

        Raises:
            ConfigurationError: a key is unknown or a value has not its form.
        """
        if not isinstance(data, Mapping):
            raise ConfigurationError(f"{data!r} is not a worker shape.")
        unknown = sorted(set(data) - {field.name for field in attrs.fields(cls)})
        if unknown:
            raise ConfigurationError(f"A worker shape has unknown fields: {', '.join(map(repr, unknown))}.")
        return cls(**data)


def inherit(config: SlurmWorkerAllocationConfig | None, base: EffectiveShape | None) -> EffectiveShape:
    """The effective shape of `config` on top of `base`; None stands for a config or base that states nothing.

    Raises:
        ConfigurationError: the result is no valid shape.
    """
    own = {} if config is None else attrs.asdict(config, recurse=False)
    values: dict[str, Any] = {}
    if base is not None:
        values = {k: v for k, v in attrs.asdict(base, recurse=False).items() if k not in _NEVER_INHERITED}
    if any(own.get(form, INHERIT) not in (INHERIT, None) for form in _MEMORY_FORMS):
        values = {name: value for name, value in values.items() if name not in _MEMORY_FORMS}
    values |= {name: value for name, value in own.items() if value is not INHERIT}
    # A cleared field is one that nobody stated: its default applies.
    stated: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    return EffectiveShape(**stated)


def _to_json(name: str, value: Any) -> Any:
    if name == "ray_resources":
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _checked(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values in canonical spelling. Raises ConfigurationError, which names the field."""
    stated = [form for form in _MEMORY_FORMS if values.get(form) is not None]
    if len(stated) > 1:
        raise ConfigurationError(
            f"{' and '.join(stated)} are stated together; Slurm takes one form of memory.",
            field=_name(stated[1]),
        )
    return {name: None if value is None else _checked_value(name, value) for name, value in values.items()}


def _checked_value(name: str, value: Any) -> Any:
    field = _name(name)
    if name in ("nodes", "cpus_per_task"):
        return whole_number(value, field, least=1)
    if name == "drain_window_seconds":
        return whole_number(value, field, least=0, most=SIGNAL_WINDOW_LIMIT_SECONDS)
    if name == "gpus_per_node":
        return gpu_count(value, field)
    if name in _MEMORY_FORMS:
        return memory_size(value, field)
    if name == "time_limit":
        return _time_limit(value, field)
    if name in ("extra_options", "ray_start_args"):
        return _texts(name, value, field)
    if name == "ray_resources":
        return _resource_pairs(value, field)
    if name == "head_only":
        if not isinstance(value, bool):
            raise ConfigurationError(f"{value!r} is neither True nor False.", field=field)
        return value
    return plain_text(value, field).strip()


def _time_limit(value: Any, field: str) -> str:
    if isinstance(value, datetime.timedelta):
        seconds = math.ceil(value.total_seconds())
        if seconds <= 0:
            raise ConfigurationError(f"{value!r} is no time to run.", field=field)
        return render_time_limit(seconds)
    if not isinstance(value, str):
        raise ConfigurationError(
            f"{value!r} could be minutes or seconds.",
            field=field,
            remedy=f"Pass a datetime.timedelta, or text: {TIME_LIMIT_FORMS}.",
        )
    return render_time_limit(parse_time_limit(value, field=field))


def _texts(name: str, value: Any, field: str) -> tuple[str, ...]:
    if not isinstance(value, tuple):
        raise ConfigurationError(f"{value!r} is not a tuple of texts.", field=field)
    texts = tuple(plain_text(item, field) for item in value)
    if name == "extra_options":
        check_extra_options(texts, field)
    return texts


def _resource_pairs(value: Any, field: str) -> tuple[tuple[str, float], ...]:
    try:
        pairs = [(plain_text(key, field), number) for key, number in value]
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{value!r} is not a mapping of names to numbers.", field=field) from error
    for key, number in pairs:
        numeric = isinstance(number, int | float) and not isinstance(number, bool)
        if not numeric or not math.isfinite(number) or number < 0:
            raise ConfigurationError(f"{key!r}: {number!r} is not a number of at least 0.", field=field)
    # One spelling for 2 and 2.0, which are equal and must have equal digests.
    return tuple(sorted((key, float(number)) for key, number in pairs))


def _name(field: str) -> str:
    return f"SlurmWorkerAllocationConfig.{field}"
