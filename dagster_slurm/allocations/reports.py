"""What the agents' and payloads' own reports say of an allocation; None where no fresh report says anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from dagster_slurm.allocations.conditions import Condition
from dagster_slurm.allocations.ledger import AllocationRecord
from dagster_slurm.allocations.observation import Observation, Report


def ray_nodes_of(record: AllocationRecord, cluster: Report | None) -> Mapping[str, str] | None:
    """Ray node id of each of its nodes that joined the current head."""
    entries = _ray_entries(record, cluster)
    return None if entries is None else {str(entry.get("node")): str(entry.get("ray_node_id")) for entry in entries}


def draining_of(
    record: AllocationRecord, condition: Condition, observation: Observation, cluster: Report | None
) -> bool | None:
    """Whether it takes no new work, as its agents or Ray say; None when it ended or nobody says."""
    if condition.live is False:
        return None
    reports = [report for report in observation.reports_of(record.slurm_job_id) if report.fresh]
    said = [r.content.get("draining") for r in reports]
    entries = _ray_entries(record, cluster) or []
    if any(value is True for value in said) or any(entry.get("state") == "DRAINING" for entry in entries):
        return True
    if record.drain_deadline is not None:
        # Released; whether its agent has begun to drain is not seen yet.
        return None
    if condition.pending:
        return False
    return False if said and all(value is False for value in said) else None


def idle_seconds_of(record: AllocationRecord, cluster: Report | None) -> float | None:
    """Idle time of its busiest node; None when one of them is not known."""
    idle = [entry.get("idle_seconds") for entry in _ray_entries(record, cluster) or []]
    known = [float(value) for value in idle if isinstance(value, int | float)]
    return min(known) if known and len(known) == len(idle) else None


def message_of(record: AllocationRecord, observation: Observation) -> str | None:
    """What its agents have to say to people, old reports included."""
    found = [report.content.get("message") for report in observation.reports_of(record.slurm_job_id)]
    texts = [text for text in found if isinstance(text, str) and text]
    return "; ".join(texts) or None


def demand_of(cluster: Report | None) -> tuple[Mapping[str, Any], ...] | None:
    """Resource shapes that Ray has pending work for."""
    demand = None if cluster is None or not cluster.fresh else cluster.content.get("demand")
    return tuple(item for item in demand if isinstance(item, dict)) if isinstance(demand, list) else None


def newest_work(observation: Observation) -> Mapping[str, Any] | None:
    """What the newest payload reported with ``report_work``."""
    # Payload ids begin with a counter of the login clock, so the greatest is the newest.
    return observation.work[max(observation.work)] if observation.work else None


@attrs.frozen(kw_only=True)
class DriverMark:
    """The step that follows a payload, as it last marked the session's directory.

    Attributes:
        key: Default key of the step's intents.
        payload_id: The payload.
        interval_seconds: From one call of the step's policy to the next.
        age_seconds: Since the step last looked, by the shared filesystem's clock.
        work: What that payload last said with ``report_work``; None when it said nothing.
    """

    key: str
    payload_id: str
    interval_seconds: float
    age_seconds: int
    work: Mapping[str, Any] | None = None

    @property
    def fresh(self) -> bool:
        """Whether the step drives: it asks its policy itself, and nobody else should."""
        return self.age_seconds <= 2 * self.interval_seconds


def driver_marks(observation: Observation) -> tuple[DriverMark, ...]:
    """The marks that can be read, the newest payload first."""
    found = []
    for payload_id in sorted(observation.drivers, reverse=True):
        report = observation.drivers[payload_id]
        key, interval = report.content.get("key"), report.content.get("interval_seconds")
        if isinstance(key, str) and isinstance(interval, int | float):
            found.append(
                DriverMark(
                    key=key,
                    payload_id=payload_id,
                    interval_seconds=float(interval),
                    age_seconds=report.age_seconds,
                    work=observation.work.get(payload_id),
                )
            )
    return tuple(found)


def _ray_entries(record: AllocationRecord, cluster: Report | None) -> list[Mapping[str, Any]] | None:
    """The allocation's live nodes in what the head's agent read from Ray."""
    if cluster is None or not cluster.fresh:
        return None
    nodes = cluster.content.get("nodes")
    if not isinstance(nodes, list):
        return None
    own = [n for n in nodes if isinstance(n, dict) and str(n.get("slurm_job_id")) == record.slurm_job_id]
    # A node that restarted is in Ray's table twice: its dead entry says nothing any more.
    return [entry for entry in own if entry.get("state") in ("ALIVE", "DRAINING")]
