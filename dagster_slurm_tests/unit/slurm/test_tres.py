"""GPUs in trackable resources."""

from __future__ import annotations

import pytest

from dagster_slurm.slurm.tres import gpus_per_node_requested, parse_tres, total_gpus


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("cpu=1,mem=100M,node=1,billing=1,gres/gpu=2,gres/gpu:a100=2", 2),
        ("billing=1,cpu=1,gres/gpu:a100=2,gres/gpu=2,mem=100M,node=1", 2),
        ("cpu=8,mem=32G,node=1,gres/gpu:rtx_2080_ti=1", 1),
        ("cpu=8,gres/gpu:a100=2,gres/gpu:v100=1", 3),
        ("cpu=1,mem=100M,node=1,billing=1", None),
        ("cpu=2,mem=200M,node=2,billing=2,gres/gpu=4,gres/gpu:a100=4", 4),
        ("cpu=4,mem=8G,node=1,billing=4,gres/shard=4", None),
        ("gres/mps=50", None),
        ("gres/gpumem=8G", None),
        ("gres/gpu=0", 0),
        ("gres/gpu=many", None),
        ("gres/gpu:a100=2,gres/gpu:v100=x", None),
        ("N/A", None),
        (None, None),
    ],
)
def test_F_1_F_3_F_4_F_6_F_7_F_9_granted_gpus(text: str | None, gpus: int | None) -> None:
    assert total_gpus(parse_tres(text)) == gpus


def test_no_tres_is_no_count() -> None:
    assert total_gpus(None) is None


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gres:gpu:2", 2),
        ("gres/gpu:2", 2),
        ("gres/gpu=2", 2),
        ("gres:gpu:a100:2", 2),
        ("gres/gpu:a100=2", 2),
        ("gres:gpu", 1),
        ("gres:gpu:a100", 1),
        ("gpu:2", 2),
        ("gres:gpu:a100:2,gres:gpu:v100:1", 3),
        ("gres:gpu:0", 0),
        ("gres:gpu:2,gres:craynetwork:1", 2),
        ("gres:shard:4", None),
        ("gres:gpumem:2", None),
        ("N/A", None),
        (None, None),
    ],
)
def test_F_6_F_11_requested_gpus(text: str | None, gpus: int | None) -> None:
    assert gpus_per_node_requested(text) == gpus


def test_entries_keep_their_values_as_printed() -> None:
    assert dict(parse_tres("cpu=1,mem=100M,junk,=1,x=,gres/gpu:a100=2")) == {
        "cpu": "1",
        "mem": "100M",
        "gres/gpu:a100": "2",
    }
