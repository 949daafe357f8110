"""Does the session need another head, and which allocation would lead it best? Read from one observation, pure."""

from __future__ import annotations

import enum
import math

import attrs

from dagster_slurm.allocations.bookkeeping import Books
from dagster_slurm.allocations.conditions import recently_reported
from dagster_slurm.allocations.ledger import HEAD, AllocationRecord, Ledger
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.reports import draining_of, ray_nodes_of
from dagster_slurm.slurm.replies import ListedJob

#: A head with less walltime left than this is about to end; of a short walltime it is the last quarter.
HEAD_ENDING_SECONDS = 60

#: A running head whose agent and Ray have said nothing for so long has lost Ray.
HEAD_SILENT_SECONDS = 300

#: A claimed allocation has so long to bring up Ray's head; that takes some seconds.
CLAIM_LIMIT_SECONDS = 120

#: One that failed to lead this often is not claimed again.
LEADER_FAILURES_ALLOWED = 2

#: Why a session needs another head.
ENDED, SILENT, ENDING = "ended", "silent", "ending"


@attrs.frozen
class Claim:
    """An election's claim: one allocation brings up Ray's head and is published once it did.

    Attributes:
        slurm_job_id: The allocation.
        nonce: Whose claim it is.
        claimed_at: Login node's clock; 0 when the record does not say, which is long ago.
    """

    slurm_job_id: str
    nonce: str
    claimed_at: int

    def to_json(self) -> dict[str, str | int]:
        """As it stands in the ledger."""
        return attrs.asdict(self)


def claim_of(ledger: Ledger) -> Claim | None:
    """The claim in force, or None."""
    stored, job_id = ledger.election or {}, ledger.claimed_leader()
    if job_id is None:
        return None
    at = stored.get("claimed_at")
    return Claim(job_id, str(stored.get("nonce")), at if isinstance(at, int) else 0)


class ClaimState(enum.Enum):
    """How far a claim has come."""

    UP = "up"
    """Ray's head runs there: it can be published."""
    COMING = "coming"
    FAILED = "failed"
    """Its time is up."""
    VOID = "void"
    """The allocation has ended, was released, or is not known."""


def claim_state(claim: Claim, books: Books, observation: Observation) -> ClaimState:
    """Judge a claim; an allocation with a deadline never leads, whoever claimed it."""
    record = books.ledger.record(claim.slurm_job_id)
    if record is None or record.drain_deadline is not None or books.conditions[record.slurm_job_id].live is False:
        return ClaimState.VOID
    if is_on_its_way(books.ledger):
        # It would take the head's place when it is found; until it is, nobody else takes it.
        return ClaimState.COMING
    if books.conditions[record.slurm_job_id].state == "RUNNING" and has_come_up(record, observation):
        return ClaimState.UP
    late = observation.login_clock - claim.claimed_at > CLAIM_LIMIT_SECONDS
    return ClaimState.FAILED if late else ClaimState.COMING


def is_on_its_way(ledger: Ledger) -> bool:
    """Whether a new head was submitted and its job is not recorded yet."""
    return any(submission.role == HEAD for submission in ledger.worker_submissions.values())


def has_come_up(record: AllocationRecord, observation: Observation) -> bool:
    """Whether a fresh report of this very submission shows Ray's head alive on its own node."""
    report = observation.cluster.get(record.slurm_job_id)
    return report is not None and report.content.get("token") == record.token and bool(ray_nodes_of(record, report))


def head_need(books: Books, observation: Observation) -> str | None:
    """Why the session needs another head; None when it needs none, or nobody knows."""
    head = books.ledger.head
    if not observation.listing.answered:
        return None
    if head is None or books.conditions[head.slurm_job_id].live is False:
        return ENDED
    condition = books.conditions[head.slurm_job_id]
    if condition.state != "RUNNING":
        return None
    if _is_silent(head, observation):
        return SILENT
    return ENDING if _is_ending(condition.job) else None


def best_leader(books: Books, observation: Observation, need: str) -> AllocationRecord | None:
    """The running successor; else the worker with fewest failures and most time left; None when none can lead."""
    successor = books.ledger.successor
    if successor is not None and _can_lead(successor, books, observation, need):
        return successor
    able = [worker for worker in books.ledger.workers if _can_lead(worker, books, observation, need)]

    def rank(record: AllocationRecord) -> tuple[int, bool, float, int, str]:
        failures, left = failures_of(record, books.ledger), _left(books, record)
        number = int(record.slurm_job_id) if record.slurm_job_id.isdecimal() else 0
        return (failures, not recently_reported(record, observation), -left, number, record.slurm_job_id)

    return min(able, key=rank, default=None)


def failures_of(record: AllocationRecord, ledger: Ledger) -> int:
    """How often it was claimed and did not bring up Ray's head."""
    return ledger.failed_leaders.get(record.slurm_job_id, 0)


def _can_lead(record: AllocationRecord, books: Books, observation: Observation, need: str) -> bool:
    condition = books.conditions[record.slurm_job_id]
    if record.drain_deadline is not None or condition.state != "RUNNING" or _is_ending(condition.job):
        return False
    cluster = None if books.ledger.head is None else observation.cluster.get(books.ledger.head.slurm_job_id)
    if draining_of(record, condition, observation, cluster):
        return False
    # A living head is given up only for one that is known to be better.
    if need == ENDING and books.ledger.head is not None and _left(books, record) <= _left(books, books.ledger.head):
        return False
    if need == SILENT and not recently_reported(record, observation):
        return False
    return failures_of(record, books.ledger) < LEADER_FAILURES_ALLOWED


def _left(books: Books, record: AllocationRecord) -> float:
    """Seconds of walltime left; without a limit it is the longest."""
    job = books.conditions[record.slurm_job_id].job
    return math.inf if job is None or job.time_left_seconds is None else float(job.time_left_seconds)


def _is_ending(job: ListedJob | None) -> bool:
    left, limit = (None, None) if job is None else (job.time_left_seconds, job.time_limit_seconds)
    margin = HEAD_ENDING_SECONDS if limit is None else min(HEAD_ENDING_SECONDS, limit // 4)
    return left is not None and left <= margin


def _is_silent(head: AllocationRecord, observation: Observation) -> bool:
    """Reports that were never there say nothing: it may still be starting."""
    cluster = observation.cluster.get(head.slurm_job_id)
    reports = () if cluster is None else (cluster, *observation.reports_of(head.slurm_job_id))
    return bool(reports) and all(report.age_seconds >= HEAD_SILENT_SECONDS for report in reports)
