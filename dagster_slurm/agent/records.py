"""What the agent reads: its own settings, who leads, what the head has published. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Settings:
    """``submissions/<token>/agent.json``. ``orphan_timeout_seconds`` None switches the dead-man switch off."""

    token: str
    slurm_job_name: str = ""
    intent: str | None = None
    drain_window_seconds: float = 120.0
    rejoin_timeout_seconds: float = 600.0
    orphan_timeout_seconds: float | None = 3600.0
    head_only: bool = False
    ray_start_args: tuple[str, ...] = ()
    ray_resources: Mapping[str, float] | None = None
    python: str | None = None
    container_command: tuple[str, ...] = ()
    network_interface: str | None = None

    @classmethod
    def from_json(cls, token: str, content: Mapping[str, Any]) -> Settings:
        """Missing keys get their defaults, unknown ones are left alone (a newer client may write more)."""
        orphan = content.get("orphan_timeout_seconds", 3600.0)
        return cls(
            token=token,
            slurm_job_name=str(content.get("slurm_job_name") or ""),
            intent=content.get("intent"),
            drain_window_seconds=float(content.get("drain_window_seconds", 120.0)),
            rejoin_timeout_seconds=float(content.get("rejoin_timeout_seconds", 600.0)),
            orphan_timeout_seconds=None if orphan is None else float(orphan),
            head_only=bool(content.get("head_only", False)),
            ray_start_args=tuple(str(argument) for argument in content.get("ray_start_args") or ()),
            ray_resources=dict(content.get("ray_resources") or {}),
            python=content.get("python"),
            container_command=tuple(str(word) for word in content.get("container_command") or ()),
            network_interface=content.get("network_interface"),
        )


@dataclass(frozen=True)
class Leader:
    """The allocation that leads. ``slurm_job_id`` is None while only its submission is recorded."""

    slurm_job_id: str | None
    token: str | None

    def is_allocation(self, slurm_job_id: str, token: str) -> bool:
        """Whether that allocation leads: the job id decides, the token where no id is recorded yet."""
        if self.slurm_job_id is not None:
            return self.slurm_job_id == slurm_job_id
        return self.token is not None and self.token == token


def leader(ledger: Mapping[str, Any] | None) -> Leader | None:
    """Who leads by the ledger; None when it names nobody or could not be read.

    A first head can start before the client has recorded its job id: then it is the one open submission with the role
    of a head.
    """
    if ledger is None:
        return None
    head = ledger.get("head")
    if isinstance(head, Mapping):
        return Leader(_text(head.get("slurm_job_id")), _text(head.get("token")))
    submissions = ledger.get("worker_submissions")
    if not isinstance(submissions, Mapping):
        return None
    tokens = [token for token, item in submissions.items() if isinstance(item, Mapping) and item.get("role") == "head"]
    return Leader(None, tokens[0]) if len(tokens) == 1 else None


def is_claimed(ledger: Mapping[str, Any] | None, slurm_job_id: str) -> bool:
    """Whether an election has claimed that allocation: it brings up Ray's head and is not the head yet."""
    election = None if ledger is None else ledger.get("election")
    return isinstance(election, Mapping) and _text(election.get("slurm_job_id")) == slurm_job_id


def stands_by(ledger: Mapping[str, Any] | None, slurm_job_id: str, token: str) -> bool:
    """Whether that allocation is the successor, by its id or, before that is recorded, by its submission."""
    if ledger is None:
        return False
    successor, submissions = ledger.get("successor"), ledger.get("worker_submissions")
    if isinstance(successor, Mapping) and _text(successor.get("slurm_job_id")) == slurm_job_id:
        return True
    own = submissions.get(token) if isinstance(submissions, Mapping) else None
    return isinstance(own, Mapping) and own.get("role") == "successor"


@dataclass(frozen=True)
class RayNode:
    """One entry of a cluster file. ``state`` is ALIVE, DRAINING or DEAD; None idle time means not known."""

    ray_node_id: str
    state: str
    slurm_job_id: str | None
    node: str | None
    instance: str | None
    idle_seconds: float | None


@dataclass(frozen=True)
class Cluster:
    """What a head's agent has published. ``age_seconds`` is by the shared filesystem's clock."""

    head_job_id: str
    token: str | None
    address: str
    ray_version: str | None
    nodes: tuple[RayNode, ...]
    age_seconds: float

    def node(self, slurm_job_id: str, node: str, instance: str) -> RayNode | None:
        """The entry of one start of Ray on one node; None when it has not joined (yet)."""
        return next(
            (
                entry
                for entry in self.nodes
                if (entry.slurm_job_id, entry.node, entry.instance) == (slurm_job_id, node, instance)
            ),
            None,
        )


def read_cluster(content: Mapping[str, Any], age_seconds: float) -> Cluster | None:
    """A cluster file; None when it has no address."""
    address, head_job_id = content.get("address"), content.get("head_job_id")
    if not isinstance(address, str) or not isinstance(head_job_id, str):
        return None
    entries = content.get("nodes")
    return Cluster(
        head_job_id=head_job_id,
        token=_text(content.get("token")),
        address=address,
        ray_version=_text(content.get("ray_version")),
        nodes=tuple(
            RayNode(
                ray_node_id=str(entry.get("ray_node_id")),
                state=str(entry.get("state")),
                slurm_job_id=_text(entry.get("slurm_job_id")),
                node=_text(entry.get("node")),
                instance=_text(entry.get("instance")),
                idle_seconds=entry.get("idle_seconds"),
            )
            for entry in (entries if isinstance(entries, list) else [])
            if isinstance(entry, Mapping)
        ),
        age_seconds=age_seconds,
    )


def drain_seconds(content: Mapping[str, Any] | None, default_seconds: float) -> float:
    """The window that a drain file grants, from now; the default when the file says nothing readable."""
    remaining = None if content is None else content.get("remaining_seconds")
    if isinstance(remaining, bool) or not isinstance(remaining, (int, float)):
        return default_seconds
    return max(0.0, float(remaining))


def _text(value: object) -> str | None:
    return None if value is None else str(value)
