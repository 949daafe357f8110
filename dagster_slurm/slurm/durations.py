"""Durations as Slurm writes them: walltimes that it prints and time limits that it is given."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from dagster_slurm.errors import ConfigurationError

# Nine digits hold every duration Slurm can store; a longer run of digits is damage, not a number.
_PRINTED: Final = re.compile(
    r"(?:(?:(?P<days>[0-9]{1,9})-)?(?P<hours>[0-9]{1,9}):)?(?P<minutes>[0-9]{1,9}):(?P<seconds>[0-9]{2})"
)
_LIMIT_WITH_DAYS: Final = re.compile(
    r"(?P<days>[0-9]{1,9})-(?P<hours>[0-9]{1,9})(?::(?P<minutes>[0-9]{1,9}))?(?::(?P<seconds>[0-9]{1,9}))?"
)
_LIMIT_HOURS: Final = re.compile(r"(?P<hours>[0-9]{1,9}):(?P<minutes>[0-9]{1,9}):(?P<seconds>[0-9]{1,9})")
_LIMIT_MINUTES: Final = re.compile(r"(?P<minutes>[0-9]{1,9})(?::(?P<seconds>[0-9]{1,9}))?")
_NO_LIMIT: Final = frozenset({"-1", "UNLIMITED", "INFINITE"})
TIME_LIMIT_FORMS: Final = (
    '"minutes", "minutes:seconds", "hours:minutes:seconds", "days-hours", "days-hours:minutes", '
    '"days-hours:minutes:seconds", or "UNLIMITED"'
)


@lru_cache(maxsize=4096)
def parse_walltime(text: str | None) -> int | None:
    """Seconds of a duration that squeue or sacct printed: ``9:52``, ``3:00:00``, ``1-02:03:04``.

    None for words such as UNLIMITED, NOT_SET, Partition_Limit or N/A, for nothing, and for text of any other form.
    """
    match = _PRINTED.fullmatch((text or "").strip())
    if match is None:
        return None
    seconds = int(match["seconds"])
    minutes = int(match["minutes"])
    if seconds > 59 or (match["hours"] is not None and minutes > 59):
        return None
    return int(match["days"] or 0) * 86400 + int(match["hours"] or 0) * 3600 + minutes * 60 + seconds


def parse_time_limit(value: str | int | None, *, field: str = "time_limit") -> int | None:
    """Seconds of a time limit in the forms of ``sbatch --time``: a lone number is minutes, ``1:30`` is 90 seconds.

    The scheduler rounds up to whole minutes; this does not. None when no limit is asked for: None, ``UNLIMITED``,
    ``INFINITE``, ``-1``, and every spelling of zero, which is how Slurm reads them.

    Raises:
        ConfigurationError: the value has none of these forms; it names `field`.
    """
    if value is None:
        return None
    text = str(value).strip()
    if text.upper() in _NO_LIMIT:
        return None
    match = _LIMIT_WITH_DAYS.fullmatch(text) or _LIMIT_HOURS.fullmatch(text) or _LIMIT_MINUTES.fullmatch(text)
    if match is None or isinstance(value, bool):
        raise ConfigurationError(
            f"{value!r} is not a time limit in a form of sbatch.",
            field=field,
            remedy=f"Write {TIME_LIMIT_FORMS}.",
        )
    parts = {name: int(number) for name, number in match.groupdict().items() if number is not None}
    total = (
        parts.get("days", 0) * 86400
        + parts.get("hours", 0) * 3600
        + parts.get("minutes", 0) * 60
        + parts.get("seconds", 0)
    )
    return total or None


def render_time_limit(seconds: int | None) -> str:
    """A time limit as sbatch takes it, in its least ambiguous form: ``1-02:03:04``; None gives ``UNLIMITED``."""
    if seconds is None:
        return "UNLIMITED"
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    clock = f"{hours:02d}:{minutes:02d}:{seconds:02d}"
    return f"{days}-{clock}" if days else clock
