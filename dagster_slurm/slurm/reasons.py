"""Why a job is pending: Slurm's many words, sorted into what a policy can do about them."""

from __future__ import annotations

import enum
import re
from functools import lru_cache
from typing import Final


class ReasonCategory(enum.Enum):
    """What a pending reason means for whoever waits.

    RESOURCES: it is next, and waits for nodes. PRIORITY: others go first. HELD: somebody has to release it.
    DEPENDENCY: it waits for another job or a start time. LIMIT: a quota of user, account or QOS is used up for now.
    DOWN: its nodes or its partition do not serve now. RESERVATION: it waits for, or is kept away by, a reservation.
    NEVER: as it was asked for it will never start. OTHER: a word that is in none of these.
    """

    RESOURCES = "resources"
    PRIORITY = "priority"
    HELD = "held"
    DEPENDENCY = "dependency"
    LIMIT = "limit"
    DOWN = "down"
    RESERVATION = "reservation"
    NEVER = "never-as-asked"
    OTHER = "other"


# The first pattern that matches decides; the words are those of squeue's manual page and slurm_protocol_defs.c.
_PATTERNS: Final[tuple[tuple[ReasonCategory, re.Pattern[str]], ...]] = tuple(
    (category, re.compile(pattern, re.IGNORECASE))
    for category, pattern in (
        (ReasonCategory.HELD, r"^JobHeld|held state|^Job.*Hold|launch failed requeued held"),
        (
            ReasonCategory.NEVER,
            r"^DependencyNeverSatisfied|^BadConstraints|^Invalid|^AccountNotAllowed|^QOSNotAllowed|^PartitionTimeLimit"
            r"|^PartitionNodeLimit|^ReservationDeleted|^Reservation .* (?:was deleted|invalid)|^MaxMemPerLimit"
            r"|PerJob|^QOSTimeLimit|^AssociationTimeLimit|^AssocMaxWallDuration|^DeadLine",
        ),
        (ReasonCategory.DOWN, r"^Nodes required for job are DOWN"),
        (ReasonCategory.RESERVATION, r"reserv"),
        (ReasonCategory.DEPENDENCY, r"^Dependency|^BeginTime|^JobArrayTaskLimit|^Licenses|^Prolog|^RemoteLicense"),
        (ReasonCategory.PRIORITY, r"^Priority"),
        (ReasonCategory.DOWN, r"^(?:Partition|Node)(?:Down|Inactive)|^ReqNodeNotAvail|^Reboot|^FrontEndDown"),
        (ReasonCategory.LIMIT, r"^(?:QOS|Assoc|Association)|Grp|Max|Limit"),
        (ReasonCategory.RESOURCES, r"^Resources|^Cleaning|^NodeConfiguring|^WaitingForScheduling|^None$"),
    )
)


@lru_cache(maxsize=1024)
def reason_category(reason: str | None) -> ReasonCategory | None:
    """The category of a pending reason; None when there is no reason.

    Args:
        reason: The whole text that Slurm prints, commas and node lists included.
    """
    if reason is None or not reason.strip():
        return None
    return next((category for category, pattern in _PATTERNS if pattern.search(reason)), ReasonCategory.OTHER)
