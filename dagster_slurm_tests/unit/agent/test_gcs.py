"""What is published of Ray's state: the parts that need no cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_slurm.agent.gcs import (
    DEAD_NODES_PUBLISHED,
    describe_node,
    gang_requests,
    merge_demand,
    part_of_ray,
    published_nodes,
    read_address,
    status_of,
)

LABELS = {"dagster-slurm/job": "2", "dagster-slurm/node": "n1", "dagster-slurm/instance": "9.1", "ray.io/node-id": "ab"}


def described(state: str, word: str, idle: float | None) -> dict[str, Any]:
    return describe_node(
        node_id="ab",
        state=state,
        labels=LABELS,
        status=(word, idle, {"CPU": 1.0, "node:10.0.0.1": 1.0}),
        resources={"CPU": 2.0, "node:__internal_head__": 1.0},
    )


def test_a_node_is_described_by_its_labels() -> None:
    assert described("ALIVE", "IDLE", 3.5) == {
        "ray_node_id": "ab",
        "state": "ALIVE",
        "slurm_job_id": "2",
        "node": "n1",
        "intent": None,
        "instance": "9.1",
        "idle_seconds": 3.5,
        "resources": {"CPU": 2.0},
        "available": {"CPU": 1.0},
    }


@pytest.mark.parametrize(
    ("state", "word", "published"),
    [
        ("ALIVE", "RUNNING", "ALIVE"),
        ("ALIVE", "DRAINING", "DRAINING"),
        ("ALIVE", "UNSPECIFIED", "ALIVE"),
        ("DEAD", "DRAINING", "DEAD"),
    ],
)
def test_states(state: str, word: str, published: str) -> None:
    assert described(state, word, None)["state"] == published


def test_a_dead_node_has_nothing_free_and_no_idle_time() -> None:
    node = described("DEAD", "IDLE", 7.0)
    assert node["idle_seconds"] is None
    assert node["available"] == {}


def test_a_node_that_is_not_in_the_status_has_no_idle_time() -> None:
    assert status_of(None) == ("UNSPECIFIED", None, {})


@pytest.mark.parametrize(("word", "idle"), [("IDLE", 2.5), ("RUNNING", 0.0), ("DRAINING", 0.0)])
def test_idle_time_counts_only_while_idle(word: str, idle: float) -> None:
    messages = part_of_ray("ray.core.generated.autoscaler_pb2")
    entry = messages.NodeState(
        status=messages.NodeStatus.Value(word), idle_duration_ms=2500, available_resources={"CPU": 1.0}
    )
    assert status_of(entry) == (word, idle, {"CPU": 1.0})


def test_bundles_of_a_placement_group_in_both_forms() -> None:
    messages = part_of_ray("ray.core.generated.autoscaler_pb2")
    bundles = [
        messages.ResourceRequest(resources_bundle={"CPU": 1.0}),
        messages.ResourceRequest(resources_bundle={"GPU": 1.0}),
    ]
    assert list(gang_requests(messages.GangResourceRequest(requests=bundles))) == bundles
    nested = messages.GangResourceRequest(bundle_selectors=[messages.BundleSelector(resource_requests=bundles)])
    assert gang_requests(nested) == bundles


def test_equal_shapes_are_counted_together() -> None:
    entries = [({"CPU": 1.0}, 2), ({"GPU": 1.0, "CPU": 1.0}, 1), ({"CPU": 1.0}, 3), ({}, 7), ({"CPU": 0.0}, 1)]
    assert merge_demand(entries) == [
        {"shape": {"CPU": 1.0}, "count": 5},
        {"shape": {"CPU": 1.0, "GPU": 1.0}, "count": 1},
    ]


def test_O_1_the_last_dead_nodes_are_published_after_the_living() -> None:
    dead = [{"ray_node_id": str(number), "state": "DEAD"} for number in range(DEAD_NODES_PUBLISHED + 5)]
    living = {"ray_node_id": "x", "state": "ALIVE"}
    published = published_nodes([*dead, living])
    assert published[0] == living
    assert published[1:] == dead[5:]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1:6379", "10.0.0.1:6379"),
        ("10.0.0.1:6379\n", "10.0.0.1:6379"),
        ("10.0.0.1", None),
        ("", None),
        (None, None),
    ],
)
def test_an_address_file_counts_once_it_is_complete(text: str | None, address: str | None, tmp_path: Path) -> None:
    path = tmp_path / "ray_current_cluster"
    if text is not None:
        path.write_text(text)
    assert read_address(str(path)) == address
