"""The ledger: what a session knows for good, as a value. Every edit returns a new ledger.

It is stored as ``allocation.json`` in the session directory and only ever replaced by a commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

from dagster_slurm.allocations.config import EffectiveShape
from dagster_slurm.allocations.records import HEAD as HEAD
from dagster_slurm.allocations.records import SUCCESSOR as SUCCESSOR
from dagster_slurm.allocations.records import WORKER as WORKER
from dagster_slurm.allocations.records import AllocationRecord as AllocationRecord
from dagster_slurm.allocations.records import OpenSubmission as OpenSubmission
from dagster_slurm.allocations.records import Role as Role
from dagster_slurm.allocations.records import extra_keys, read_flat
from dagster_slurm.allocations.records import flat_json as flat_json
from dagster_slurm.errors import DagsterSlurmError, LedgerDamaged, LedgerTooNew

SCHEMA_VERSION = 1
ENDED_RECORDS_KEPT = 50
ENDED_RECORDS_KEPT_SECONDS = 3600
#: A job that bears a dropped token ends by its fate file; the list only lets it be cancelled before it starts.
REVOKED_TOKENS_KEPT = 200

_T = TypeVar("_T")


@attrs.frozen(kw_only=True)
class Ledger:
    """Everything a session knows for good. Fields as in the stored JSON; ``extra`` keeps unknown keys."""

    session_id: str
    job_name: str
    last_commit: str | None = None
    head: AllocationRecord | None = None
    successor: AllocationRecord | None = None
    predecessors: tuple[AllocationRecord, ...] = ()
    workers: tuple[AllocationRecord, ...] = ()
    head_template: str | None = None
    worker_template: str | None = None
    worker_submissions: Mapping[str, OpenSubmission] = attrs.field(factory=dict)
    revoked_tokens: tuple[str, ...] = ()
    election: Mapping[str, Any] | None = None
    failed_leaders: Mapping[str, int] = attrs.field(factory=dict)
    shapes: Mapping[str, EffectiveShape] = attrs.field(factory=dict)
    extra: Mapping[str, Any] = extra_keys()

    # -- reading ---------------------------------------------------------------------------------

    def records(self) -> tuple[AllocationRecord, ...]:
        """Every recorded allocation: predecessors, head, successor, workers."""
        leaders = tuple(record for record in (self.head, self.successor) if record is not None)
        return (*self.predecessors, *leaders, *self.workers)

    def record(self, slurm_job_id: str) -> AllocationRecord | None:
        """The record of that job, or None."""
        return next((record for record in self.records() if record.slurm_job_id == slurm_job_id), None)

    @property
    def known_tokens(self) -> frozenset[str]:
        """Tokens that were taken or dropped."""
        taken = {record.token for record in self.records()}
        return frozenset(taken.union(self.worker_submissions, self.revoked_tokens))

    def claimed_leader(self) -> str | None:
        """Job id of a worker that an election has claimed as the next head, or None."""
        claimed = (self.election or {}).get("slurm_job_id")
        return claimed if isinstance(claimed, str) else None

    def leads(self, slurm_job_id: str) -> bool:
        """Whether the job is the head, the successor, or claimed as the next head."""
        leaders = {record.slurm_job_id for record in (self.head, self.successor) if record is not None}
        return slurm_job_id in leaders or slurm_job_id == self.claimed_leader()

    # -- edits -----------------------------------------------------------------------------------

    def with_record(self, slurm_job_id: str, **changes: Any) -> Ledger:
        """Change fields of one record, wherever it is kept."""
        return self.map_records(
            lambda record: attrs.evolve(record, **changes) if record.slurm_job_id == slurm_job_id else record
        )

    def map_records(self, change: Callable[[AllocationRecord], AllocationRecord]) -> Ledger:
        """Apply ``change`` to every record."""
        return attrs.evolve(
            self,
            head=None if self.head is None else change(self.head),
            successor=None if self.successor is None else change(self.successor),
            predecessors=tuple(change(record) for record in self.predecessors),
            workers=tuple(change(record) for record in self.workers),
        )

    def with_submission(self, submission: OpenSubmission, shape: EffectiveShape) -> Ledger:
        """Add an open submission and the shape it refers to."""
        return attrs.evolve(
            self,
            worker_submissions={**self.worker_submissions, submission.token: submission},
            shapes={**self.shapes, submission.shape: shape},
        )

    def with_adopted(self, token: str, slurm_job_id: str, submitted_at: int | None) -> Ledger:
        """Turn an open submission into the record of its job.

        Args:
            token: The open submission.
            slurm_job_id: Its job.
            submitted_at: Login node's clock of the submission; None when it was not seen: the time it was planned at.
        """
        submission = self.worker_submissions[token]
        moment = submission.prepared_at if submitted_at is None else submitted_at
        record = AllocationRecord(
            slurm_job_id=slurm_job_id,
            token=token,
            shape=submission.shape,
            intent=submission.intent,
            submitted_at=moment if submission.dated else None,
            extra=submission.extra,
        )
        rest = {key: value for key, value in self.worker_submissions.items() if key != token}
        ledger = attrs.evolve(self, worker_submissions=rest)
        if submission.role == WORKER:
            return attrs.evolve(ledger, workers=(*self.workers, record))
        former = self.head if submission.role == HEAD else self.successor
        if former is not None:
            ledger = attrs.evolve(ledger, predecessors=(*self.predecessors, former))
        return attrs.evolve(ledger, head=record) if submission.role == HEAD else attrs.evolve(ledger, successor=record)

    def without_submission(self, token: str) -> Ledger:
        """Drop an open submission for good: a job that ever bears its token is cancelled, never counted."""
        rest = {key: value for key, value in self.worker_submissions.items() if key != token}
        revoked = (*self.revoked_tokens, token)[-REVOKED_TOKENS_KEPT:]
        return attrs.evolve(self, worker_submissions=rest, revoked_tokens=revoked)

    def without_old_records(self, now: int) -> tuple[Ledger, tuple[AllocationRecord, ...]]:
        """Take ended workers and predecessors out once they are an hour old, or beyond the newest fifty.

        Args:
            now: Login node's clock.

        Returns:
            The shorter ledger, and the records taken out, for the history.
        """
        movable = [r for r in (*self.predecessors, *self.workers) if r.final_state is not None]
        movable.sort(key=lambda record: record.ended_at or 0, reverse=True)
        old = {
            record.slurm_job_id
            for position, record in enumerate(movable)
            if position >= ENDED_RECORDS_KEPT or now - (record.ended_at or 0) > ENDED_RECORDS_KEPT_SECONDS
        }
        if not old:
            return self, ()
        ledger = attrs.evolve(
            self,
            predecessors=tuple(r for r in self.predecessors if r.slurm_job_id not in old),
            workers=tuple(r for r in self.workers if r.slurm_job_id not in old),
        )
        return ledger.without_unused_shapes(), tuple(r for r in movable if r.slurm_job_id in old)

    def without_unused_shapes(self) -> Ledger:
        """Drop shapes that no record, submission or template refers to."""
        used = {record.shape for record in self.records()}
        used |= {submission.shape for submission in self.worker_submissions.values()}
        used |= {self.head_template or "", self.worker_template or ""}
        return attrs.evolve(self, shapes={key: shape for key, shape in self.shapes.items() if key in used})

    # -- storage ---------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """The stored form: JSON, one line for each key, ending in a newline."""
        document: dict[str, Any] = {
            **self.extra,
            "schema_version": SCHEMA_VERSION,
            "session_id": self.session_id,
            "job_name": self.job_name,
            "last_commit": self.last_commit,
            "head": None if self.head is None else flat_json(self.head),
            "successor": None if self.successor is None else flat_json(self.successor),
            "predecessors": [flat_json(record) for record in self.predecessors],
            "workers": [flat_json(record) for record in self.workers],
            "head_template": self.head_template,
            "worker_template": self.worker_template,
            "worker_submissions": {token: flat_json(item) for token, item in self.worker_submissions.items()},
            "revoked_tokens": list(self.revoked_tokens),
            "election": self.election,
            "failed_leaders": dict(self.failed_leaders),
            "shapes": {key: shape.to_json() for key, shape in self.shapes.items()},
        }
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in document.items())
        return ("{\n" + lines + "\n}\n").encode("ascii")


def _records(documents: Any) -> tuple[AllocationRecord, ...]:
    return tuple(read_flat(AllocationRecord, document) for document in _typed(documents, list))


def _typed(value: Any, expected: type[_T]) -> _T:
    if not isinstance(value, expected) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no {expected.__name__}")
    return value


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _typed(value, str)


def read_ledger(data: bytes, *, path: str) -> Ledger:
    """Read a stored ledger.

    Args:
        data: Content of ``allocation.json``.
        path: Where it came from, for the message.

    Raises:
        LedgerDamaged: it is no ledger. Nothing is guessed from a part of one.
        LedgerTooNew: it has a newer schema version.
    """
    try:
        document = _typed(json.loads(data.decode("utf-8")), dict)
        version = document["schema_version"]
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise LedgerTooNew(
                f"{path} was written by a newer version (schema {version}, this one reads {SCHEMA_VERSION}).",
                remedy="upgrade dagster_slurm where this code runs.",
            )
        if version != SCHEMA_VERSION or isinstance(version, bool):
            raise ValueError(f"schema_version is {version!r}")
        return _read_document(document)
    except LedgerTooNew:
        raise
    except (ValueError, TypeError, KeyError, RecursionError, DagsterSlurmError) as error:
        raise LedgerDamaged(
            f"{path} cannot be read as a ledger ({type(error).__name__}: {error}). Nothing was changed.",
            remedy="restore the file from a backup, or end the session's jobs by name and remove its directory.",
        ) from error


def _read_document(document: dict[str, Any]) -> Ledger:
    head, successor = document["head"], document["successor"]
    submissions = {
        token: read_flat(OpenSubmission, item) for token, item in _typed(document["worker_submissions"], dict).items()
    }
    for token, submission in submissions.items():
        if token != submission.token:
            raise ValueError(f"submission {token!r} holds the token {submission.token!r}")
    names = {a.name for a in attrs.fields(Ledger)} | {"schema_version"}
    election = document["election"]
    ledger = Ledger(
        session_id=_typed(document["session_id"], str),
        job_name=_typed(document["job_name"], str),
        last_commit=_text_or_none(document["last_commit"]),
        head=None if head is None else read_flat(AllocationRecord, head),
        successor=None if successor is None else read_flat(AllocationRecord, successor),
        predecessors=_records(document["predecessors"]),
        workers=_records(document["workers"]),
        head_template=_text_or_none(document["head_template"]),
        worker_template=_text_or_none(document["worker_template"]),
        worker_submissions=submissions,
        revoked_tokens=tuple(_typed(token, str) for token in _typed(document["revoked_tokens"], list)),
        election=None if election is None else _typed(election, dict),
        failed_leaders={key: _typed(value, int) for key, value in _typed(document["failed_leaders"], dict).items()},
        shapes={key: EffectiveShape.from_json(shape) for key, shape in _typed(document["shapes"], dict).items()},
        extra={key: value for key, value in document.items() if key not in names},
    )
    ids = [record.slurm_job_id for record in ledger.records()]
    if len(ids) != len(set(ids)):
        raise ValueError("a job id stands in two records")
    return ledger
