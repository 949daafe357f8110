"""What all of Slurm's commands share: time bounds, exit statuses, separators and kinds of failure."""

from __future__ import annotations

import enum
import re
from typing import Final

COMMAND_SECONDS: Final = 12
"""Bound of one command. A command gives up on a silent controller by itself after about 10 seconds (measured)."""

BOUNDED: Final = ("timeout", "-k", "2", str(COMMAND_SECONDS))
FIELD_END: Final = "\x1f"
ROW_END: Final = "\x1e"

_TIMED_OUT: Final = frozenset({124, 137})
_NOT_RUN: Final = frozenset({125, 126, 127})
_USAGE: Final = re.compile(
    r"unrecognized option|invalid option|requires an argument|Invalid job format specification|Invalid field requested"
)
# Where these words stand the request may have reached the controller, or its reply may have been lost.
COMMUNICATION_WORDS: Final = (
    "timed out|unable to contact|connect failure|communication|zero bytes|standby|unexpected message"
    "|connection (refused|reset|closed|lost)|broken pipe|(send|receive) failure|temporarily un(available|able)"
    "|protocol authentication|munge|insane message|header lengths|no route to host|network is"
)
"""One pattern for `re` and for ``grep -E``, without regard to case."""
_COMMUNICATION: Final = re.compile(COMMUNICATION_WORDS, re.IGNORECASE)


class ReplyFault(enum.Enum):
    """Why a reply is no answer.

    NO_ANSWER: the scheduler or database was not reached, or not in time. USAGE: this version of the command refused
    its options, which is a matter of configuration. COMMAND_MISSING: the command is not on the PATH.
    DISABLED: the cluster has no accounting. DAMAGED: rows are cut or malformed. ERROR: any other failure.
    """

    NO_ANSWER = "no_answer"
    USAGE = "usage"
    COMMAND_MISSING = "command_missing"
    DISABLED = "disabled"
    DAMAGED = "damaged"
    ERROR = "error"


def fault_of(status: int, text: str) -> ReplyFault | None:
    """The kind of failure of a command that ended with `status` and printed `text`; None for status 0."""
    if status == 0:
        return None
    if status in _TIMED_OUT or ended_by_signal(status):
        return ReplyFault.NO_ANSWER
    if status in _NOT_RUN:
        return ReplyFault.COMMAND_MISSING
    if names_usage_error(text):
        return ReplyFault.USAGE
    if "accounting storage is disabled" in text:
        return ReplyFault.DISABLED
    if names_communication_failure(text):
        return ReplyFault.NO_ANSWER
    return ReplyFault.ERROR


def names_usage_error(text: str) -> bool:
    """Whether the text says that this version of the command does not know an option or a field."""
    return _USAGE.search(text) is not None


def ended_by_signal(status: int) -> bool:
    """Whether a shell's exit status stands for a signal: 128 + 1 to 64. Slurm's own statuses reach 255."""
    return 128 < status <= 192


def ran(status: int) -> bool:
    """Whether the command ended by itself: neither stopped by its bound or a signal, nor missing."""
    return status not in _TIMED_OUT and status not in _NOT_RUN and not ended_by_signal(status)


def not_started(status: int) -> bool:
    """Whether the command never ran: it is missing or cannot be executed."""
    return status in _NOT_RUN


def names_communication_failure(text: str) -> bool:
    """Whether the text says that a message to or from the scheduler may have been lost."""
    return _COMMUNICATION.search(text) is not None


def cluster_argument(cluster: str | None) -> str:
    """The option that names the cluster: a given one, else this machine's own."""
    return "--local" if cluster is None else f"--clusters={cluster}"


WORDS_FOR_NOTHING: Final = frozenset({"", "N/A", "(null)", "None", "NONE", "Unknown", "None assigned"})
"""What Slurm prints in place of a value."""


def number_or_none(text: str) -> int | None:
    """A printed whole number, or None for anything else."""
    stripped = text.strip()
    return int(stripped) if stripped.isascii() and stripped.isdigit() and len(stripped) <= 18 else None


def said(status: int, text: str) -> str:
    """What a command printed, or its exit status when it printed nothing; for messages."""
    return text.strip() or f"(nothing printed, exit status {status})"
