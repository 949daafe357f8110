"""What a policy sees: one observation of every allocation, nothing guessed. ``None`` means not observed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from dagster_slurm.allocations.bookkeeping import Books, bring_up_to_date
from dagster_slurm.allocations.conditions import Condition
from dagster_slurm.allocations.config import EffectiveShape
from dagster_slurm.allocations.election import head_need
from dagster_slurm.allocations.ledger import HEAD, WORKER, AllocationRecord, Ledger
from dagster_slurm.allocations.observation import Observation, Report
from dagster_slurm.allocations.reports import (
    DriverMark,
    demand_of,
    draining_of,
    driver_marks,
    idle_seconds_of,
    message_of,
    newest_work,
    ray_nodes_of,
)
from dagster_slurm.slurm.reasons import ReasonCategory, reason_category
from dagster_slurm.slurm.replies import ListedJob
from dagster_slurm.slurm.tres import gpus_per_node_requested, parse_tres, total_gpus


@attrs.frozen(kw_only=True)
class AllocationSnapshot:
    """One allocation as it was observed.

    Attributes:
        slurm_job_id: Slurm's job id; None while a submission's outcome is not known yet.
        role: "head", "successor", "worker" or "predecessor".
        state: Slurm's word, or the final state, or "ENDED"; None when it could not be observed.
        reason: Why it is pending, Slurm's own text.
        reason_category: What kind of reason that is; None when it is not pending or gave no reason.
        committed: True when pending or running, False when ended, None when unknown.
        time_left_seconds: The scheduler's remaining walltime while it runs; None without a limit.
        time_limit_seconds: The job's time limit as the scheduler has it now.
        expected_start_at: Scheduler's expected start of a pending allocation, epoch seconds, when it has one.
        partition: Its partition.
        requested_nodes: Nodes asked for.
        requested_gpus_per_node: GPUs asked for on each node.
        tres: Trackable resources: the request while pending, the grant once it runs.
        granted_gpus: GPUs of the whole allocation from the grant, while it runs; None where the site tracks none.
        nodes: Slurm's node names.
        ray_nodes: Ray node id of each node that joined the current head; None when not known.
        ready: Whether every node joined the current head.
        draining: Whether it takes no new work.
        idle_seconds: How long all its Ray nodes have had nothing to do; None when not known.
        intent: Key of the intent that counts it.
        drain_deadline: Login node's clock at which it is cancelled; None when it is not released.
        submitted_at: Login node's clock when ``reconcile_workers`` submitted it; None for other allocations.
        message: What its agent says of itself, when it has something to say.
    """

    slurm_job_id: str | None
    role: str
    state: str | None = None
    reason: str | None = None
    reason_category: ReasonCategory | None = None
    committed: bool | None = None
    time_left_seconds: int | None = None
    time_limit_seconds: int | None = None
    expected_start_at: int | None = None
    partition: str | None = None
    requested_nodes: int | None = None
    requested_gpus_per_node: int | None = None
    tres: str | None = None
    granted_gpus: int | None = None
    nodes: tuple[str, ...] = ()
    ray_nodes: Mapping[str, str] | None = None
    ready: bool | None = None
    draining: bool | None = None
    idle_seconds: float | None = None
    intent: str | None = None
    drain_deadline: int | None = None
    submitted_at: int | None = None
    message: str | None = None


@attrs.frozen(kw_only=True)
class SessionSnapshot:
    """One observation of a whole session.

    Attributes:
        session_id: The session.
        observed_at: Login node's clock at the query, epoch seconds.
        certain: Whether the scheduler answered. When it did not, every state is None.
        head: The current head. Its state can be None, the head itself never is.
        successor: The published next head, or None.
        allocations: Every allocation, the head first.
        unresolved: Submissions whose outcome is not known yet; they count as live.
        unrecorded: Ids of live jobs of this session's name that no record explains. No count counts or cancels them.
        not_observed: Sentences about what could not be observed, and why.
        ray_demand: Resource shapes that Ray has pending work for, as the head's agent reads them; None when not known.
        closing: Whether the session is ending.
        work: What the newest payload reported with ``report_work``; None when nothing was reported.
        head_needs: What ``ensure_head`` has to see to: "ended", "silent" (it runs, and neither its agent nor Ray has
            said anything for minutes), "ending" (its walltime is nearly over) or "claimed" (an election is under way).
            None when there is nothing, or nobody knows.
        drivers: The payloads that steps follow, or followed, the newest first.
    """

    session_id: str
    observed_at: int
    certain: bool
    head: AllocationSnapshot
    successor: AllocationSnapshot | None
    allocations: tuple[AllocationSnapshot, ...]
    unresolved: int = 0
    unrecorded: tuple[str, ...] = ()
    not_observed: tuple[str, ...] = ()
    ray_demand: tuple[Mapping[str, Any], ...] | None = None
    closing: bool = False
    work: Mapping[str, Any] | None = None
    head_needs: str | None = None
    drivers: tuple[DriverMark, ...] = ()

    def driver(self, key: str) -> DriverMark | None:
        """The newest payload of a step, by the default key of its intents; None without one."""
        return next((mark for mark in self.drivers if mark.key == key), None)

    def workers(self, key: str | None = None) -> tuple[AllocationSnapshot, ...]:
        """Worker allocations: all of them, or those of one intent.

        An elected head keeps counting toward its intent, so ``workers(key)`` contains it; it is the same set that
        ``reconcile_workers`` counts from.
        """
        if key is None:
            return tuple(a for a in self.allocations if a.role == WORKER)
        return tuple(a for a in self.allocations if a.intent == key)

    def to_json(self) -> dict[str, Any]:
        """The snapshot as plain JSON values; ``from_json`` gives an equal one back."""
        document = attrs.asdict(self, recurse=False)
        document["allocations"] = [_allocation_to_json(a) for a in self.allocations]
        document["head"] = _allocation_to_json(self.head)
        document["successor"] = None if self.successor is None else _allocation_to_json(self.successor)
        document["unrecorded"], document["not_observed"] = list(self.unrecorded), list(self.not_observed)
        document["drivers"] = [attrs.asdict(mark, recurse=False) for mark in self.drivers]
        document["ray_demand"] = None if self.ray_demand is None else [dict(item) for item in self.ray_demand]
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SessionSnapshot:
        """Read what ``to_json`` wrote.

        Raises:
            KeyError, TypeError: a field is missing or not known.
        """
        demand, successor = document["ray_demand"], document["successor"]
        read = {
            "allocations": tuple(_allocation_from_json(item) for item in document["allocations"]),
            "head": _allocation_from_json(document["head"]),
            "successor": None if successor is None else _allocation_from_json(successor),
            "unrecorded": tuple(document["unrecorded"]),
            "not_observed": tuple(document["not_observed"]),
            "ray_demand": None if demand is None else tuple(demand),
            "drivers": tuple(DriverMark(**item) for item in document.get("drivers", ())),
        }
        return cls(**{**document, **read})


def _allocation_to_json(allocation: AllocationSnapshot) -> dict[str, Any]:
    category = allocation.reason_category
    return {
        **attrs.asdict(allocation, recurse=False),
        "nodes": list(allocation.nodes),
        "ray_nodes": None if allocation.ray_nodes is None else dict(allocation.ray_nodes),
        "reason_category": None if category is None else category.value,
    }


def _allocation_from_json(document: Mapping[str, Any]) -> AllocationSnapshot:
    category = document["reason_category"]
    read = {
        "nodes": tuple(document["nodes"]),
        "reason_category": None if category is None else ReasonCategory(category),
    }
    return AllocationSnapshot(**{**document, **read})


def build_snapshot(ledger: Ledger, observation: Observation) -> SessionSnapshot:
    """Make the snapshot of one observation."""
    books = bring_up_to_date(ledger, observation)
    current, conditions = books.ledger, books.conditions
    cluster = None if current.head is None else observation.cluster.get(current.head.slurm_job_id)
    described = {
        record.slurm_job_id: _describe(record, current, conditions[record.slurm_job_id], observation, cluster)
        for record in current.records()
    }
    # A head without a job id: its submission's outcome is not known yet, or it was refused.
    unborn = AllocationSnapshot(slurm_job_id=None, role=HEAD)
    head = unborn if current.head is None else described[current.head.slurm_job_id]
    rest = tuple(a for a in described.values() if a.slurm_job_id != head.slurm_job_id)
    return SessionSnapshot(
        session_id=current.session_id,
        observed_at=observation.login_clock,
        certain=observation.listing.answered,
        head=head,
        successor=None if current.successor is None else described[current.successor.slurm_job_id],
        allocations=(head, *rest),
        unresolved=len(current.worker_submissions),
        unrecorded=_unrecorded(observation, set(described)),
        not_observed=_not_observed(observation, cluster, head),
        ray_demand=demand_of(cluster),
        closing=observation.closing,
        work=newest_work(observation),
        head_needs=_head_needs(books, observation),
        drivers=driver_marks(observation),
    )


def _head_needs(books: Books, observation: Observation) -> str | None:
    if observation.closing:
        return None
    return "claimed" if books.ledger.election is not None else head_need(books, observation)


def _unrecorded(observation: Observation, known: set[str]) -> tuple[str, ...]:
    strangers = [job for job in observation.listing.jobs if job.slurm_job_id not in known]
    return tuple(job.slurm_job_id for job in strangers if Condition(state=job.state).live is not False)


def _role(record: AllocationRecord, ledger: Ledger) -> str:
    if record is ledger.head:
        return HEAD
    if record is ledger.successor:
        return "successor"
    return "predecessor" if record in ledger.predecessors else WORKER


def _describe(
    record: AllocationRecord,
    ledger: Ledger,
    condition: Condition,
    observation: Observation,
    cluster: Report | None,
) -> AllocationSnapshot:
    job, running = condition.job, condition.running
    live_row = job if condition.live else None
    shape = ledger.shapes.get(record.shape)
    tres = None if live_row is None else live_row.tres
    asked = None if live_row is None else gpus_per_node_requested(live_row.tres_per_node)
    if asked is None and shape is not None:
        asked = _gpus_asked(shape)
    ray_nodes = ray_nodes_of(record, cluster)
    nodes = () if live_row is None or not running else live_row.nodes
    return AllocationSnapshot(
        slurm_job_id=record.slurm_job_id,
        role=_role(record, ledger),
        state=condition.state,
        reason=live_row.reason if live_row is not None and condition.pending else None,
        reason_category=reason_category(live_row.reason) if live_row is not None and condition.pending else None,
        committed=condition.live,
        time_left_seconds=live_row.time_left_seconds if live_row is not None and running else None,
        time_limit_seconds=None if live_row is None else live_row.time_limit_seconds,
        expected_start_at=live_row.expected_start_at if live_row is not None and condition.pending else None,
        partition=None if job is None else job.partition,
        requested_nodes=_nodes_asked(job, shape),
        requested_gpus_per_node=asked,
        tres=tres,
        granted_gpus=_granted(tres, asked) if running else None,
        nodes=nodes,
        ray_nodes=ray_nodes,
        ready=_ready(condition, nodes, ray_nodes),
        draining=draining_of(record, condition, observation, cluster),
        idle_seconds=idle_seconds_of(record, cluster),
        intent=record.intent,
        drain_deadline=record.drain_deadline,
        submitted_at=record.submitted_at,
        message=message_of(record, observation),
    )


def _nodes_asked(job: ListedJob | None, shape: EffectiveShape | None) -> int | None:
    if job is not None and job.requested_nodes is not None:
        return job.requested_nodes
    return None if shape is None else shape.nodes


def _gpus_asked(shape: EffectiveShape) -> int | None:
    if shape.gpus_per_node is not None:
        return int(str(shape.gpus_per_node).rpartition(":")[2])
    # Who says nothing asks for none, unless an extra option may have.
    said = " ".join(shape.extra_options).lower()
    return None if any(word in said for word in ("gpu", "gres", "tres", "-g")) else 0


def _granted(tres: str | None, asked: int | None) -> int | None:
    found = total_gpus(parse_tres(tres))
    # Without an entry the site may not track GPUs: 0 only when none were asked for.
    return 0 if found is None and asked == 0 else found


def _ready(condition: Condition, nodes: tuple[str, ...], ray_nodes: Mapping[str, str] | None) -> bool | None:
    if condition.live is None:
        return None
    if condition.state != "RUNNING":
        return False
    if ray_nodes is None or not nodes:
        return None
    return all(node in ray_nodes for node in nodes)


def _not_observed(observation: Observation, cluster: Report | None, head: AllocationSnapshot) -> tuple[str, ...]:
    found = []
    if not observation.listing.answered:
        found.append(f"The scheduler did not answer: {observation.listing.error or 'no reply'}")
    if observation.accounting is not None and not observation.accounting.answered:
        found.append(f"Accounting did not answer: {observation.accounting.error or 'no reply'}")
    if head.state == "RUNNING" and cluster is None:
        found.append("Ray's membership is not known: the head's agent has not reported yet.")
    elif cluster is not None and not cluster.fresh:
        found.append(f"Ray's membership is not known: the head's agent last reported {cluster.age_seconds} s ago.")
    return tuple(found)
