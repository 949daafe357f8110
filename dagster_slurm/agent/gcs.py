"""Everything that is asked of Ray's GCS. None of it is a public API of Ray: only this module knows it.

Runs in processes of its own (``publish`` beside the head, ``drain-node`` for one request): Ray's client ends its
process when the GCS stays silent, which must not end the agent.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from .files import write_document

LABEL_PREFIX = "dagster-slurm/"
JOB_LABEL = LABEL_PREFIX + "job"
NODE_LABEL = LABEL_PREFIX + "node"
INTENT_LABEL = LABEL_PREFIX + "intent"
INSTANCE_LABEL = LABEL_PREFIX + "instance"

PUBLISH_SECONDS = 2.0
POLL_SECONDS = 0.5
REQUEST_TIMEOUT_SECONDS = 5.0

#: Dead entries beyond this many, oldest first, are not published.
DEAD_NODES_PUBLISHED = 100

ADDRESS = re.compile(r"^\S+:\d+$")


def part_of_ray(name: str) -> Any:
    """A module of Ray, imported only where it is needed."""
    return importlib.import_module(name)


class Gcs:
    """A connection to a GCS.

    Raises:
        Exception: what Ray raises when the GCS does not answer; its class is not part of Ray's public API. The process
            ends with it and is started again by the agent.
    """

    def __init__(self, address: str) -> None:
        self._client = part_of_ray("ray._raylet").GcsClient(address)

    def nodes(self) -> list[dict[str, Any]]:
        """Every node the GCS knows, dead ones included."""
        node_state = part_of_ray("ray.core.generated.gcs_pb2").GcsNodeInfo.GcsNodeState
        states = {bytes(entry.node_id): entry for entry in self._status().node_states}
        return [
            describe_node(
                node_id=node_id.hex(),
                state=node_state.Name(info.state),
                labels=dict(info.labels),
                status=status_of(states.get(node_id.binary())),
                resources=dict(info.resources_total),
            )
            for node_id, info in self._client.get_all_node_info(timeout=REQUEST_TIMEOUT_SECONDS).items()
        ]

    def demand(self) -> list[dict[str, Any]]:
        """Resource shapes that tasks, actors and placement groups wait for, with their number."""
        status = self._status()
        single = [
            (dict(entry.request.resources_bundle), int(entry.count)) for entry in status.pending_resource_requests
        ]
        gangs = [
            (dict(request.resources_bundle), 1)
            for gang in status.pending_gang_resource_requests
            for request in gang_requests(gang)
        ]
        return merge_demand([*single, *gangs])

    def request_drain(self, node_id: str, reason: str, remaining_seconds: float) -> tuple[bool, str]:
        """Ask for a drain of one node (hex id). The reason PREEMPTION cannot be refused by a busy node."""
        reasons = part_of_ray("ray.core.generated.autoscaler_pb2").DrainNodeReason
        accepted, text = self._client.drain_node(
            node_id,
            reasons.Value("DRAIN_NODE_REASON_PREEMPTION"),
            reason,
            int((time.time() + max(0.0, remaining_seconds)) * 1000),
        )
        return bool(accepted), str(text)

    def _status(self) -> Any:
        reply = part_of_ray("ray.core.generated.autoscaler_pb2").GetClusterStatusReply()
        reply.ParseFromString(self._client.get_cluster_status(timeout_s=REQUEST_TIMEOUT_SECONDS))
        return reply.cluster_resource_state


def status_of(entry: Any) -> tuple[str, float | None, dict[str, float]]:
    """Status word, idle seconds and available resources of a node's resource state; UNSPECIFIED without one."""
    if entry is None:
        return "UNSPECIFIED", None, {}
    word = str(part_of_ray("ray.core.generated.autoscaler_pb2").NodeStatus.Name(entry.status))
    idle = entry.idle_duration_ms / 1000.0 if word == "IDLE" else 0.0
    return word, idle, dict(entry.available_resources)


def gang_requests(gang: Any) -> list[Any]:
    """Bundles of one placement group; newer versions keep them one level deeper, by strategy."""
    selectors = list(getattr(gang, "bundle_selectors", ()))
    if selectors:
        return [request for selector in selectors[:1] for request in selector.resource_requests]
    return list(gang.requests)


def describe_node(
    *,
    node_id: str,
    state: str,
    labels: Mapping[str, str],
    status: tuple[str, float | None, dict[str, float]],
    resources: Mapping[str, float],
) -> dict[str, Any]:
    """One node as it is published."""
    word, idle_seconds, available = status
    alive = state == "ALIVE"
    return {
        "ray_node_id": node_id,
        "state": "DRAINING" if alive and word == "DRAINING" else state,
        "slurm_job_id": labels.get(JOB_LABEL),
        "node": labels.get(NODE_LABEL),
        "intent": labels.get(INTENT_LABEL),
        "instance": labels.get(INSTANCE_LABEL),
        "idle_seconds": idle_seconds if alive else None,
        "resources": public_resources(resources),
        "available": public_resources(available) if alive else {},
    }


def public_resources(resources: Mapping[str, float]) -> dict[str, float]:
    """Without Ray's own marker resources such as ``node:10.0.0.1``."""
    return {name: value for name, value in sorted(resources.items()) if not name.startswith("node:")}


def merge_demand(entries: Iterable[tuple[Mapping[str, float], int]]) -> list[dict[str, Any]]:
    """Equal shapes together, biggest number first; requests without resources are no demand for capacity."""
    counts: dict[tuple[tuple[str, float], ...], int] = {}
    for shape, count in entries:
        key = tuple(sorted((name, value) for name, value in shape.items() if value))
        if key:
            counts[key] = counts.get(key, 0) + count
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [{"shape": dict(shape), "count": count} for shape, count in ordered]


def published_nodes(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Living nodes, then the last dead ones."""
    living = [node for node in nodes if node["state"] != "DEAD"]
    dead = [node for node in nodes if node["state"] == "DEAD"]
    return living + dead[-DEAD_NODES_PUBLISHED:]


def read_address(path: str) -> str | None:
    """The address that ``ray start`` wrote below its temp dir; None until it is complete."""
    try:
        with open(path, encoding="utf-8") as stream:
            text = stream.read().strip()
    except OSError:
        return None
    return text if ADDRESS.match(text) else None


def publish(address_file: str, output: str, head_job_id: str, token: str) -> None:
    """Rewrite the cluster file every two seconds, and at once when a node joins, drains or leaves. Never returns.

    Ends with Ray's exception when the GCS does not answer, so that the file gets old instead of wrong.
    """
    ray_version = part_of_ray("ray").__version__
    while (address := read_address(address_file)) is None:
        time.sleep(0.1)
    gcs = Gcs(address)
    beat, last_states, written = 0, None, 0.0
    while True:
        nodes = published_nodes(gcs.nodes())
        states = [(node["ray_node_id"], node["state"]) for node in nodes]
        if states != last_states or time.monotonic() - written >= PUBLISH_SECONDS:
            beat, last_states, written = beat + 1, states, time.monotonic()
            write_document(
                output,
                {
                    "schema_version": 1,
                    "head_job_id": head_job_id,
                    "token": token,
                    "address": address,
                    "ray_version": ray_version,
                    "python_version": ".".join(str(part) for part in sys.version_info[:3]),
                    "beat": beat,
                    "nodes": nodes,
                    "demand": gcs.demand(),
                },
            )
        time.sleep(POLL_SECONDS)


def drain_node(address: str, instance: str, reason: str, remaining_seconds: float) -> int:
    """Ask for the drain of the node with this instance label; prints the reply, returns an exit status.

    The id comes from the GCS and not from a file, so a head that has stopped publishing does not prevent a drain.
    """
    gcs = Gcs(address)
    found = [node for node in gcs.nodes() if node["instance"] == instance and node["state"] != "DEAD"]
    if not found:
        print(json.dumps({"instance": instance, "found": False}))
        return 3
    accepted, text = gcs.request_drain(found[0]["ray_node_id"], reason, remaining_seconds)
    print(json.dumps({"ray_node_id": found[0]["ray_node_id"], "accepted": accepted, "text": text}))
    return 0 if accepted else 4
