"""Small builders of records, jobs, observations and plans. Number n names job n, its token and its node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from dagster_slurm.allocations.config import EffectiveShape
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.ledger import AllocationRecord, Ledger, OpenSubmission
from dagster_slurm.allocations.observation import Fate, Observation, Report, SubmissionTrace, comment_for
from dagster_slurm.allocations.plan import Effect, Plan
from dagster_slurm.allocations.request import WorkerRequest
from dagster_slurm.allocations.snapshot import SessionSnapshot, build_snapshot
from dagster_slurm.allocations.workers import plan_workers
from dagster_slurm.slurm.replies import AccountingReply, AccountingRow, ListedJob, Listing

NOW = 1_800_000_000
SESSION = "run-1"
JOB_NAME = "dagster-run-1"
KEY = "gpu-helpers"
HEAD_ID = "1"

HEAD_SHAPE = EffectiveShape(partition="main", time_limit="1-00:00:00", head_only=True)
WORKER_SHAPE = EffectiveShape(partition="main", time_limit="01:00:00")

UNREACHABLE = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


def token(n: int) -> str:
    """Token of number n."""
    return f"{n:032x}"


def fresh() -> Iterator[str]:
    """Tokens that no record has, the same in every test."""
    return (token(n) for n in range(100_000, 200_000))


def record(n: int, **changes: Any) -> AllocationRecord:
    """A worker of the intent, submitted ten minutes ago."""
    values: dict[str, Any] = {
        "slurm_job_id": str(n),
        "token": token(n),
        "shape": WORKER_SHAPE.digest,
        "intent": KEY,
        "submitted_at": NOW - 600,
    }
    return AllocationRecord(**{**values, **changes})


def head(n: int = 1, **changes: Any) -> AllocationRecord:
    """A head."""
    return record(n, **{"shape": HEAD_SHAPE.digest, "intent": None, "submitted_at": None, **changes})


def submission(n: int, **changes: Any) -> OpenSubmission:
    """A submission of the intent whose outcome is not recorded, prepared ten seconds ago."""
    values: dict[str, Any] = {
        "token": token(n),
        "role": "worker",
        "intent": KEY,
        "shape": WORKER_SHAPE.digest,
        "prepared_at": NOW - 10,
        "dated": True,
    }
    return OpenSubmission(**{**values, **changes})


def ledger(*workers: AllocationRecord, opened: tuple[OpenSubmission, ...] = (), **changes: Any) -> Ledger:
    """A session with head 1 and these workers."""
    values: dict[str, Any] = {
        "session_id": SESSION,
        "job_name": JOB_NAME,
        "last_commit": "0" * 32,
        "head": head(),
        "workers": workers,
        "head_template": HEAD_SHAPE.digest,
        "worker_template": WORKER_SHAPE.digest,
        "worker_submissions": {item.token: item for item in opened},
        "shapes": {shape.digest: shape for shape in (HEAD_SHAPE, WORKER_SHAPE)},
    }
    return Ledger(**{**values, **changes})


def job(n: int, state: str | None = "RUNNING", **changes: Any) -> ListedJob:
    """squeue's row of job n, which bears token n."""
    running = state == "RUNNING"
    values: dict[str, Any] = {
        "slurm_job_id": str(n),
        "name": JOB_NAME,
        "state": state,
        "reason": "Resources" if state == "PENDING" else None,
        "time_left_seconds": 3000 if running else None,
        "time_limit_seconds": 3600,
        "submitted_at": NOW - 600,
        "expected_start_at": None,
        "nodes": (f"n{n}",) if running else (),
        "requested_nodes": 1,
        "tres": "cpu=1,mem=100M,node=1,billing=1",
        "tres_per_node": None,
        "partition": "main",
        "qos": None,
        "account": None,
        "comment": comment_for(SESSION, token(n)),
        "command": f"/base/sessions/{SESSION}/submissions/{token(n)}/batch.sh",
        "user": "ada",
    }
    return ListedJob(**{**values, **changes})


def look(books: Ledger | None, *jobs: ListedJob, head_job: ListedJob | None = None, **changes: Any) -> Observation:
    """A look with an answered listing of these jobs and the running head."""
    rows = (job(1) if head_job is None else head_job, *jobs)
    values: dict[str, Any] = {
        "login_clock": NOW,
        "ledger": books,
        "ledger_sha256": "0" * 64,
        "traces": {},
        "listing": Listing(answered=True, jobs=rows, error=None),
    }
    return Observation(**{**values, **changes})


def silent(books: Ledger | None, error: str | None = UNREACHABLE, **changes: Any) -> Observation:
    """A look that the scheduler did not answer."""
    return look(books, listing=Listing(answered=False, jobs=(), error=error), **changes)


def accounting(**states: str) -> AccountingReply:
    """Accounting's answer: ``accounting(j7="RUNNING")``."""
    rows = {
        name[1:]: AccountingRow(state=state, name=JOB_NAME, submitted_at=None, nodes=(), exit_code=None)
        for name, state in states.items()
    }
    return AccountingReply(answered=True, rows=rows, error=None)


def no_accounting(error: str = "Slurm accounting storage is disabled") -> AccountingReply:
    """Accounting did not answer."""
    return AccountingReply(answered=False, rows={}, error=error)


def trace(fate: Fate = Fate.SENT, **changes: Any) -> SubmissionTrace:
    """Files of a submission."""
    return SubmissionTrace(fate=fate, **changes)


def node_report(age_seconds: int = 1, **content: Any) -> Report:
    """What a node's agent wrote."""
    return Report(content=content, age_seconds=age_seconds)


def ray_nodes(*numbers: int, age_seconds: int = 1, **changes: Any) -> Report:
    """What the head's agent wrote: node n of job n is alive in Ray."""
    nodes = [
        {"ray_node_id": f"ray{n}", "state": "ALIVE", "slurm_job_id": str(n), "node": f"n{n}", "idle_seconds": 5.0}
        for n in numbers
    ]
    return Report(content={"nodes": nodes, "demand": [], **changes}, age_seconds=age_seconds)


def intent(count: int, **changes: Any) -> WorkerIntent:
    """The intent that the records belong to."""
    return WorkerIntent(KEY, count, **changes)


def reconcile(observation: Observation, *intents: WorkerIntent, **request: Any) -> Plan:
    """The decision of one call."""
    assert observation.ledger is not None
    return plan_workers(observation.ledger, observation, WorkerRequest(intents=intents, **request), fresh())


def snapshot(observation: Observation) -> SessionSnapshot:
    """What a policy sees."""
    assert observation.ledger is not None
    return build_snapshot(observation.ledger, observation)


def effects(plan: Plan, kind: type[Effect]) -> list[Any]:
    """Effects of one kind, in order."""
    return [effect for effect in plan.effects if isinstance(effect, kind)]


def codes(plan: Plan) -> tuple[str, ...]:
    """Codes of what is held back."""
    return tuple(reason.code for reason in plan.held_back)


def later(observation: Observation, plan: Plan, seconds: int, *jobs: ListedJob, **changes: Any) -> Observation:
    """The next look, with the plan's ledger in place."""
    return attrs.evolve(look(plan.ledger, *jobs, **changes), login_clock=observation.login_clock + seconds)
