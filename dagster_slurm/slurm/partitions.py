"""scontrol show partition: what start estimates are blind to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import attrs

from dagster_slurm.slurm.commands import cluster_argument
from dagster_slurm.slurm.durations import parse_walltime

_WORD: Final = re.compile(r"(?:^|\s)(\w+)=(\S*)")


@attrs.frozen
class Partition:
    """One partition. `state` is Slurm's word (UP, DOWN, DRAIN, INACTIVE); None: not printed.

    `max_time_seconds`: longest walltime; None when there is no limit.
    """

    name: str
    state: str | None
    max_time_seconds: int | None


def partitions_arguments(cluster: str | None = None) -> tuple[str, ...]:
    """The command that describes all partitions, one on each line."""
    named = () if cluster is None else (cluster_argument(cluster),)
    return ("timeout", "-k", "1", "4", "scontrol", *named, "-o", "show", "partition")


def parse_partitions(status: int, text: str) -> Mapping[str, Partition] | None:
    """Partitions by name; None when the command failed. Lines that are no partition are skipped."""
    if status != 0:
        return None
    found = {}
    for line in text.splitlines():
        words = dict(_WORD.findall(line))
        name = words.get("PartitionName")
        if name:
            found[name] = Partition(name, words.get("State"), parse_walltime(words.get("MaxTime")))
    return found
