"""Trackable resources (TRES): what a job asked for or holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

_COUNT: Final = re.compile(r"[0-9]{1,9}")
# gres:gpu:2 (22.05), gres/gpu:2 (newer), either with a type; without a number it means one.
_GPU_REQUEST: Final = re.compile(
    r"(?:gres[:/])?gpu(?:[:=](?![0-9]+$)[^:=()]+)?(?:[:=](?P<count>[0-9]{1,9}))?(?:\(.*\))?"
)


def parse_tres(text: str | None) -> Mapping[str, str]:
    """The entries of a TRES text such as ``cpu=1,mem=100M,gres/gpu:a100=2``, values as printed.

    Parts that are not ``name=value`` are left out; nothing, ``N/A`` and the like give no entries.
    """
    entries: dict[str, str] = {}
    for part in (text or "").split(","):
        name, equals, value = part.strip().partition("=")
        if equals and name and value:
            entries[name] = value
    return MappingProxyType(entries)


def total_gpus(tres: Mapping[str, str] | None) -> int | None:
    """Number of GPUs in the TRES of a whole job: a total over its nodes, not a number per node.

    The untyped total ``gres/gpu``, else the sum of typed entries. None when no entry counts GPUs: the site may not
    track them, so that is not zero. Shards and MPS shares are no GPUs.
    """
    if tres is None:
        return None
    if "gres/gpu" in tres:
        return _count(tres["gres/gpu"])
    typed = [_count(value) for name, value in tres.items() if name.startswith("gres/gpu:")]
    known = [count for count in typed if count is not None]
    return sum(known) if known and len(known) == len(typed) else None


@lru_cache(maxsize=1024)
def gpus_per_node_requested(tres_per_node: str | None) -> int | None:
    """GPUs per node of a request as squeue's ``tres-per-node`` prints it: ``gres:gpu:2``, ``gres/gpu:a100:2``.

    Types are added up. None when the text names no GPUs, as for requests made per job or per task.
    """
    counts: list[int] = []
    for part in (tres_per_node or "").split(","):
        match = _GPU_REQUEST.fullmatch(part.strip())
        if match is not None:
            counts.append(1 if match["count"] is None else int(match["count"]))
    return sum(counts) if counts else None


def _count(value: str) -> int | None:
    return int(value) if _COUNT.fullmatch(value) else None
