"""Reading settings, ledger, cluster file and drain file."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_slurm.agent.records import (
    Cluster,
    Leader,
    Settings,
    drain_seconds,
    is_claimed,
    leader,
    read_cluster,
    stands_by,
)


def test_settings_with_everything() -> None:
    content = {
        "role": "worker",
        "slurm_job_name": "ds-1",
        "intent": "gpu",
        "drain_window_seconds": 60,
        "rejoin_timeout_seconds": 30,
        "orphan_timeout_seconds": None,
        "head_only": True,
        "ray_start_args": ["--verbose"],
        "ray_resources": {"licence": 2},
        "python": "/opt/python",
        "something_newer": 1,
    }
    settings = Settings.from_json("t", content)
    assert settings == Settings("t", "ds-1", "gpu", 60, 30, None, True, ("--verbose",), {"licence": 2}, "/opt/python")


def test_settings_with_nothing_have_the_documented_defaults() -> None:
    settings = Settings.from_json("t", {})
    assert (settings.drain_window_seconds, settings.rejoin_timeout_seconds) == (120, 600)
    assert settings.orphan_timeout_seconds == 3600
    assert settings.intent is None
    assert not settings.head_only


@pytest.mark.parametrize(
    ("ledger", "expected"),
    [
        (None, None),
        ({}, None),
        ({"head": None}, None),
        ({"head": {"slurm_job_id": "12", "token": "t"}}, Leader("12", "t")),
        ({"head": {"slurm_job_id": 12}}, Leader("12", None)),
        ({"head": None, "worker_submissions": {"t": {"role": "head"}, "u": {"role": "worker"}}}, Leader(None, "t")),
        ({"head": None, "worker_submissions": {"t": {"role": "head"}, "u": {"role": "head"}}}, None),
        ({"head": {"slurm_job_id": "12"}, "worker_submissions": {"t": {"role": "head"}}}, Leader("12", None)),
        ({"head": None, "worker_submissions": []}, None),
    ],
)
def test_who_leads(ledger: dict[str, Any] | None, expected: Leader | None) -> None:
    assert leader(ledger) == expected


@pytest.mark.parametrize(
    ("ledger", "expected"),
    [
        (None, False),
        ({}, False),
        ({"election": None}, False),
        ({"election": {"slurm_job_id": 12}}, True),
        ({"election": {"slurm_job_id": "13"}}, False),
    ],
)
def test_who_is_claimed(ledger: dict[str, Any] | None, expected: bool) -> None:
    assert is_claimed(ledger, "12") is expected


@pytest.mark.parametrize(
    ("ledger", "expected"),
    [
        (None, False),
        ({}, False),
        ({"successor": {"slurm_job_id": "12"}}, True),
        ({"successor": {"slurm_job_id": "13"}}, False),
        ({"successor": None, "worker_submissions": {"t": {"role": "successor"}}}, True),
        ({"successor": None, "worker_submissions": {"t": {"role": "worker"}}}, False),
        ({"successor": None, "worker_submissions": {"u": {"role": "successor"}}}, False),
        ({"successor": None, "worker_submissions": []}, False),
    ],
)
def test_who_stands_by(ledger: dict[str, Any] | None, expected: bool) -> None:
    assert stands_by(ledger, "12", "t") is expected


@pytest.mark.parametrize(
    ("lead", "own"),
    [
        (Leader("12", "t"), True),
        (Leader("12", None), True),
        (Leader(None, "t"), True),
        (Leader("13", "t"), False),
        (Leader(None, "u"), False),
        (Leader(None, None), False),
    ],
)
def test_the_job_id_decides_and_the_token_only_without_one(lead: Leader, own: bool) -> None:
    assert lead.is_allocation("12", "t") is own


def test_a_cluster_file_and_the_entry_of_one_start() -> None:
    entries = [
        {
            "ray_node_id": "a",
            "state": "DEAD",
            "slurm_job_id": "2",
            "node": "n1",
            "instance": "9.1",
            "idle_seconds": None,
        },
        {
            "ray_node_id": "b",
            "state": "ALIVE",
            "slurm_job_id": "2",
            "node": "n1",
            "instance": "9.2",
            "idle_seconds": 3.0,
        },
    ]
    content = {"head_job_id": "1", "address": "10.0.0.1:6379", "token": "t", "nodes": [*entries, "damaged"]}
    cluster = read_cluster(content, 4.0)
    assert cluster is not None
    assert (cluster.head_job_id, cluster.token, cluster.age_seconds, cluster.ray_version) == ("1", "t", 4.0, None)
    assert len(cluster.nodes) == 2
    own = cluster.node("2", "n1", "9.2")
    assert own is not None
    assert (own.ray_node_id, own.state, own.idle_seconds) == ("b", "ALIVE", 3.0)
    assert cluster.node("2", "n1", "9.3") is None
    assert cluster.node("3", "n1", "9.2") is None


@pytest.mark.parametrize("content", [{}, {"head_job_id": "1", "address": None}, {"address": "10.0.0.1:1"}])
def test_a_cluster_file_without_an_address_is_none(content: dict[str, Any]) -> None:
    assert read_cluster(content, 0.0) is None


def test_a_cluster_without_nodes_is_not_the_same_as_no_cluster() -> None:
    cluster = read_cluster({"head_job_id": "1", "address": "10.0.0.1:1", "nodes": None}, 0.0)
    assert isinstance(cluster, Cluster)
    assert cluster.nodes == ()


@pytest.mark.parametrize(
    ("content", "seconds"),
    [
        ({"remaining_seconds": 90}, 90.0),
        ({"remaining_seconds": 0}, 0.0),
        ({"remaining_seconds": -5}, 0.0),
        ({"remaining_seconds": "90"}, 120.0),
        ({"remaining_seconds": True}, 120.0),
        ({}, 120.0),
        (None, 120.0),
    ],
)
def test_the_window_of_a_drain_file(content: dict[str, Any] | None, seconds: float) -> None:
    assert drain_seconds(content, 120.0) == seconds
