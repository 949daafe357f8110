"""Single values of Slurm's options: their forms, and what must never reach a command line."""

from __future__ import annotations

import re
from typing import Final

from dagster_slurm.errors import ConfigurationError

COMMENT_LIMIT_BYTES: Final = 1024
"""A comment of 1,024 characters is accepted by slurmctld 22.05, one of 1,200 is refused (measured)."""

SIGNAL_WINDOW_LIMIT_SECONDS: Final = 65_535
"""The largest time of ``sbatch --signal`` (sbatch's manual page)."""

# C0 and C1 controls, and the two line separators of Unicode: any of them can break a line, a column or a terminal.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_MEMORY: Final = re.compile(r"([0-9]{1,12})(?:([KMGT])B?)?", re.IGNORECASE)
_GPU_COUNT: Final = re.compile(r"(?:[A-Za-z0-9_.-]+:)?[0-9]{1,6}(?:,[A-Za-z0-9_.-]+:[0-9]{1,6})*")
_NUMBER: Final = re.compile(r"[0-9]{1,6}")


def plain_text(value: object, field: str) -> str:
    """The value, if it is text of at least one character on one line without control characters.

    Raises:
        ConfigurationError: it is not; names `field`.
    """
    if not isinstance(value, str):
        raise ConfigurationError(f"{value!r} is not text.", field=field)
    if not value.strip():
        raise ConfigurationError(
            "The text is empty.",
            field=field,
            remedy="Leave it out, or write None to clear it.",
        )
    if _CONTROL.search(value):
        raise ConfigurationError(f"{value!r} holds a line break or another control character.", field=field)
    return value


def job_name(value: object, field: str) -> str:
    """A job name that Slurm gives back as it got it and whose name filters match it as one name.

    squeue's and scancel's filters split at commas; accounting writes another character for a double quote (measured).

    Raises:
        ConfigurationError: it is no such name; names `field`.
    """
    text = plain_text(value, field)
    if "," in text or '"' in text or text != text.strip():
        raise ConfigurationError(
            f"{value!r} holds a comma, a double quote or outer blanks, which Slurm does not keep or match.", field=field
        )
    return text


def whole_number(value: object, field: str, *, least: int, most: int = 999_999) -> int:
    """A whole number from `least` to `most`.

    Raises:
        ConfigurationError: it is none; names `field`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigurationError(f"{value!r} is not a whole number from {least} to {most}.", field=field)
    return value


def memory_size(value: object, field: str) -> str:
    """A size as sbatch takes it: a number with K, M, G or T, megabytes without; 0 asks for all of a node.

    Raises:
        ConfigurationError: it has another form; names `field`.
    """
    match = _MEMORY.fullmatch(plain_text(value, field).strip())
    if match is None:
        raise ConfigurationError(
            f"{value!r} is not a memory size.", field=field, remedy='Write a number and a unit, such as "8G" or "500M".'
        )
    return match[1] + (match[2] or "").upper()


def gpu_count(value: object, field: str) -> int | str:
    """GPUs per node: a number, ``"2"``, or with types ``"a100:2"``, ``"a100:2,v100:1"``. A lone number becomes an int.

    Raises:
        ConfigurationError: it has another form; names `field`.
    """
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = int(value)
    if isinstance(value, int):
        return whole_number(value, field, least=0)
    text = plain_text(value, field).strip()
    if _GPU_COUNT.fullmatch(text) is None:
        raise ConfigurationError(
            f"{value!r} is not a number of GPUs.",
            field=field,
            remedy='Write 2, or with a type "a100:2".',
        )
    return text


def file_pattern(path: object, field: str) -> str:
    """A path as sbatch's ``--output`` takes it, so that the file has exactly this name: a percent sign is doubled.

    Raises:
        ConfigurationError: a backslash switches that off in Slurm and is refused; or it is no plain text.
    """
    text = plain_text(path, field)
    if "\\" in text:
        raise ConfigurationError(
            f"{path!r} holds a backslash, which Slurm does not take literally.",
            field=field,
        )
    return text.replace("%", "%%")
