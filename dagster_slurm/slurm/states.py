"""Job states: one spelling for each, and what a state means for a session."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final


class StateClass(enum.Enum):
    """What a job in some state is to its session.

    PENDING: waits for resources, or is held. RUNNING: owns nodes. ENDED: gives its nodes back or is gone.
    UNFAMILIAR: a word this library does not know; callers count it as live, because an unknown is never an end.
    """

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"
    UNFAMILIAR = "unfamiliar"


ENDED: Final = "ENDED"
"""Our own word for a job that left the queue and whose final state nobody knows."""

# The compact codes of squeue's manual page, with the flags that later versions added.
_LONG_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "BF": "BOOT_FAIL",
        "CA": "CANCELLED",
        "CD": "COMPLETED",
        "CF": "CONFIGURING",
        "CG": "COMPLETING",
        "DL": "DEADLINE",
        "EX": "EXPEDITING",
        "F": "FAILED",
        "LF": "LAUNCH_FAILED",
        "NF": "NODE_FAIL",
        "OOM": "OUT_OF_MEMORY",
        "PD": "PENDING",
        "PO": "POWER_UP_NODE",
        "PR": "PREEMPTED",
        "R": "RUNNING",
        "RCF": "RECONFIG_FAIL",
        "RD": "RESV_DEL_HOLD",
        "RF": "REQUEUE_FED",
        "RH": "REQUEUE_HOLD",
        "RQ": "REQUEUED",
        "RS": "RESIZING",
        "RV": "REVOKED",
        "S": "SUSPENDED",
        "SE": "SPECIAL_EXIT",
        "SI": "SIGNALING",
        "SO": "STAGE_OUT",
        "ST": "STOPPED",
        "TO": "TIMEOUT",
        "UD": "UPDATE_DB",
    }
)

_PENDING: Final = frozenset(
    {
        "PENDING",
        "REQUEUED",
        "REQUEUE_HOLD",
        "REQUEUE_FED",
        "RESV_DEL_HOLD",
        "SPECIAL_EXIT",
    }
)
_RUNNING: Final = frozenset(
    {
        "RUNNING",
        "CONFIGURING",
        "SUSPENDED",
        "STOPPED",
        "RESIZING",
        "SIGNALING",
        "STAGE_OUT",
    },
)
_ENDED: Final = frozenset(
    {
        ENDED,
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "COMPLETING",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
_KNOWN_WORDS: Final = frozenset(_LONG_WORDS.values()) | {ENDED}


@lru_cache(maxsize=1024)
def canonical_state(raw: str | None) -> str | None:
    """One spelling of a job state: the long word, in capitals.

    Takes the long word or the compact code of squeue, scontrol or sacct. What sacct appends is dropped
    (``CANCELLED by 1001``), and a word that a narrow column cut (``OUT_OF_ME+``) is completed when only one
    word fits. A word that is not known is kept. None when there is no word.
    """
    words = (raw or "").split()
    if not words:
        return None
    cut = words[0].endswith("+")
    word = words[0].rstrip("+").upper()
    if not word or word == "(NULL)":
        return None
    word = _LONG_WORDS.get(word, word)
    if cut and word not in _KNOWN_WORDS:
        fitting = [known for known in _KNOWN_WORDS if known.startswith(word)]
        if len(fitting) == 1:
            return fitting[0]
    return word


def state_class(word: str) -> StateClass:
    """What the state means for a session; `word` is spelled as `canonical_state` spells it."""
    if word in _PENDING:
        return StateClass.PENDING
    if word in _RUNNING:
        return StateClass.RUNNING
    if word in _ENDED:
        return StateClass.ENDED
    return StateClass.UNFAMILIAR
