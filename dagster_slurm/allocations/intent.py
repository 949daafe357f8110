"""What a policy asks for: a named group of worker allocations and how many should exist."""

from __future__ import annotations

import math
from typing import Any

import attrs

from dagster_slurm.allocations.config import SlurmWorkerAllocationConfig
from dagster_slurm.errors import ConfigurationError

MAX_KEY_LENGTH = 200


def check_intent_key(key: object) -> str:
    """Return ``key`` when it can name an intent.

    Raises:
        ConfigurationError: it is not text, is empty or longer than 200 characters, or holds a control character.
    """
    if not isinstance(key, str) or not key.strip():
        raise ConfigurationError(f"an intent's key must be text, not {key!r}", field="WorkerIntent.key")
    if len(key) > MAX_KEY_LENGTH or not key.isprintable():
        raise ConfigurationError(
            f"an intent's key must be at most {MAX_KEY_LENGTH} printable characters on one line, not {key[:80]!r}",
            field="WorkerIntent.key",
        )
    return key


def _check_key(_: Any, __: attrs.Attribute[Any], value: object) -> None:
    check_intent_key(value)


def _check_count(_: Any, __: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigurationError(
            f"an intent's count must be a whole number of at least 0, not {value!r}", field="WorkerIntent.count"
        )


def check_seconds(value: object, field: str, *, zero: bool) -> None:
    """Check a number of seconds that may be None.

    Args:
        value: What was given.
        field: Where it was given, for the message.
        zero: Whether 0 is a value.

    Raises:
        ConfigurationError: it is no finite number, or below its bound.
    """
    if value is None:
        return
    least = 0 if zero else math.ulp(0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < least:
        raise ConfigurationError(
            f"{field.rpartition('.')[2]} must be a number of seconds {'of at least 0' if zero else 'above 0'}, "
            f"or None, not {value!r}",
            field=field,
        )


def _check_window(_: Any, attribute: attrs.Attribute[Any], value: object) -> None:
    # No time to drain is a wish; no time to be pending would cancel every submission.
    check_seconds(value, f"WorkerIntent.{attribute.name}", zero=attribute.name == "drain_timeout")


def _check_config(_: Any, __: attrs.Attribute[Any], value: object) -> None:
    if value is not None and not isinstance(value, SlurmWorkerAllocationConfig):
        raise ConfigurationError(
            f"an intent's config must be a SlurmWorkerAllocationConfig or None, not {type(value).__name__}",
            field="WorkerIntent.config",
        )


@attrs.frozen
class WorkerIntent:
    """A group of worker allocations and how many of them should be pending or running.

    Attributes:
        key: Name of the group within the session.
        count: Allocations that should exist; those being released do not count.
        config: Shape of allocations that are submitted for it. None means the session's worker shape.
            It says nothing about allocations that exist already.
        drain_timeout: Seconds that a released allocation may go on with its running work before it is
            cancelled (60 seconds of grace are added); 0 is allowed. None means the drain window of its shape.
        pending_timeout: Seconds that an allocation may stay pending before it is cancelled. None means for ever.
            Counted on the login node's clock from its submission, or from its last requeue.

    Raises:
        ConfigurationError: a value that cannot be used; ``field`` names it.
    """

    key: str = attrs.field(validator=_check_key)
    count: int = attrs.field(validator=_check_count)
    config: SlurmWorkerAllocationConfig | None = attrs.field(default=None, validator=_check_config)
    drain_timeout: float | None = attrs.field(default=None, validator=_check_window)
    pending_timeout: float | None = attrs.field(default=None, validator=_check_window)
