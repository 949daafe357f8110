"""What start estimates are blind to, read from scontrol show partition."""

from __future__ import annotations

import pytest

from dagster_slurm.allocations.estimate import StartProbe
from dagster_slurm.slurm.partitions import Partition, parse_partitions, partitions_arguments
from dagster_slurm.slurm.replies import TestOnlyReply

PRINTED = (
    "PartitionName=cpu AllowGroups=ALL AllowAccounts=ALL Default=YES MaxNodes=UNLIMITED MaxTime=1-00:00:00 "
    "MinNodes=0 State=UP TotalCPUs=16\n"
    "PartitionName=long AllowGroups=ALL MaxTime=UNLIMITED State=DOWN TotalCPUs=16\n"
)
NOW = TestOnlyReply(0, None, True, "cpu")


def test_partitions_are_read_line_by_line() -> None:
    assert parse_partitions(0, "some banner\n" + PRINTED) == {
        "cpu": Partition("cpu", "UP", 86_400),
        "long": Partition("long", "DOWN", None),
    }


def test_a_failed_command_says_nothing() -> None:
    assert parse_partitions(1, "slurm_load_partitions error: Unable to contact slurm controller") is None


def test_the_cluster_is_named_when_it_is_given() -> None:
    assert "--clusters=alpha" in partitions_arguments("alpha")
    assert not any("cluster" in word for word in partitions_arguments())


@pytest.mark.parametrize(
    ("partition", "limit", "words"),
    [
        (Partition("cpu", "UP", 3600), 3600, ()),
        (Partition("cpu", "UP", 3600), None, ()),
        (Partition("cpu", None, None), 10**9, ()),
        (Partition("cpu", "UP", 3600), 3601, ("above the 3600 s of partition cpu",)),
        (Partition("cpu", "DOWN", 3600), 60, ("Partition cpu is DOWN",)),
        (Partition("cpu", "DRAIN", 60), 120, ("Partition cpu is DRAIN", "above the 60 s")),
    ],
)
def test_H_7_an_estimate_says_where_it_is_blind(
    partition: Partition, limit: int | None, words: tuple[str, ...]
) -> None:
    found = StartProbe(NOW, partition).caveats(limit)
    assert found is not None
    assert len(found) == len(words)
    assert all(word in sentence for word, sentence in zip(words, found, strict=True))


def test_caveats_are_unknown_without_the_partition() -> None:
    assert StartProbe(NOW).caveats(60) is None
