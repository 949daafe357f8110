"""Host lists: the compact way in which Slurm writes node names."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

NODES_LIMIT: Final = 65_536
"""More nodes than this in one list is damage: a Slurm cluster is smaller."""

_LIST: Final = re.compile(r"(?:[A-Za-z0-9_.-]|\[[0-9,-]+\])+(?:,(?:[A-Za-z0-9_.-]|\[[0-9,-]+\])+)*")
_BRACKETS: Final = re.compile(r"\[([0-9,-]+)\]")
_RANGE: Final = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
# Printed where a list would stand.
_WORDS: Final = frozenset({"", "(null)", "n/a", "none", "none assigned", "unknown"})


@lru_cache(maxsize=1024)
def expand_hostlist(text: str | None) -> tuple[str, ...]:
    """The node names of a host list, sorted, each once, padding kept: ``h[09-10],x`` gives h09, h10, x.

    Empty for nothing, for the words that Slurm prints instead of a list (``None assigned``, ``(null)``, ``N/A``)
    and for text that is not a host list: empty means that no node name is known.
    """
    stripped = (text or "").strip()
    if stripped.lower() in _WORDS or _LIST.fullmatch(stripped) is None:
        return ()
    evened = _BRACKETS.sub(_even_widths, stripped)
    if _upper_bound(evened) > NODES_LIMIT:
        return ()
    # Late, because whoever imports this package need not wait for it.
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    try:
        # Without a group resolver no configuration file is read and no command runs.
        return tuple(NodeSet(evened, resolver=RESOLVER_NOGROUP))
    except NodeSetException:
        return ()


def _even_widths(brackets: re.Match[str]) -> str:
    """Split ranges such as ``09-100``, which Slurm writes and ClusterShell refuses, where the width grows."""
    return "[" + ",".join(_split_range(part) for part in brackets[1].split(",")) + "]"


def _split_range(part: str) -> str:
    match = _RANGE.fullmatch(part)
    if match is None or len(match[1]) >= len(match[2]) or not match[1].startswith("0"):
        return part
    largest = 10 ** len(match[1]) - 1
    return f"{match[1]}-{largest},{largest + 1}-{match[2]}"


def _upper_bound(text: str) -> int:
    """At most how many names the list can hold; the product over the ranges of all its brackets."""
    total = 0
    for entry in re.split(r",(?![^\[]*\])", text):
        product = 1
        for brackets in _BRACKETS.finditer(entry):
            size = 0
            for part in brackets[1].split(","):
                match = _RANGE.fullmatch(part)
                size += max(0, int(match[2]) - int(match[1])) + 1 if match else 1
            product *= size
        total += product
    return total
