"""What one look at a session brought back: facts only, nothing decided."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

import attrs

from dagster_slurm.allocations.ledger import Ledger
from dagster_slurm.slurm.replies import AccountingReply, Ambiguous, ListedJob, Listing, Refused, Submitted

#: What a commit expects when there was no ledger.
NO_LEDGER = "absent"

#: Files that agents rewrite every two seconds are believed until they are this old (seconds).
REPORT_FRESH_SECONDS = 15


class Fate(enum.Enum):
    """Where the fate file of a submission stands. It moves by rename only, so it is exactly one of these."""

    READY = "ready"
    SENT = "sent"
    STARTED = "started"
    REVOKED = "revoked"
    MISSING = "missing"


@attrs.frozen(kw_only=True)
class SubmissionTrace:
    """What the files of one submission say.

    Attributes:
        fate: Where its fate file stands.
        started_job_id: The job that claimed it, when the fate is ``STARTED``.
        outcome: What ``sbatch`` answered; None when no answer was written.
        submitted_at: Login node's clock right before ``sbatch``; None without an answer.
    """

    fate: Fate
    started_job_id: str | None = None
    outcome: Submitted | Refused | Ambiguous | None = None
    submitted_at: int | None = None


@attrs.frozen(kw_only=True)
class Report:
    """A file that an agent rewrites, and how old it was.

    Attributes:
        content: The parsed JSON object.
        age_seconds: Difference of two modification times on the shared filesystem.
    """

    content: Mapping[str, Any]
    age_seconds: int

    @property
    def fresh(self) -> bool:
        """Whether it is recent enough to be believed."""
        return self.age_seconds <= REPORT_FRESH_SECONDS


@attrs.frozen(kw_only=True)
class Observation:
    """One look at a session, read in this order: clock, ledger, traces, listing, then everything else.

    The order matters: only a job id that was known before the listing can be absent from it.

    Attributes:
        login_clock: Login node's clock at the start, epoch seconds.
        ledger: The ledger; None when there is none.
        ledger_sha256: Checksum of its bytes, ``"absent"`` when there is none.
        traces: Files of the submissions that were open, by token.
        listing: The scheduler's answer.
        accounting: Accounting's answer about recorded jobs absent from the listing; None when nothing was asked.
        closing: Whether the session is ending.
        drains: Tokens whose drain file exists.
        nodes: Node agents' reports by (job id, node name).
        cluster: Head agents' reports by head job id.
        work: What payloads reported, by payload id.
        drivers: Marks of the steps that follow payloads, by payload id; rewritten with each look at a payload.
    """

    login_clock: int
    ledger: Ledger | None
    ledger_sha256: str
    traces: Mapping[str, SubmissionTrace]
    listing: Listing
    accounting: AccountingReply | None = None
    closing: bool = False
    drains: frozenset[str] = frozenset()
    nodes: Mapping[tuple[str, str], Report] = attrs.field(factory=dict)
    cluster: Mapping[str, Report] = attrs.field(factory=dict)
    work: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    drivers: Mapping[str, Report] = attrs.field(factory=dict)

    def listed(self, slurm_job_id: str) -> ListedJob | None:
        """The scheduler's row of that job, or None."""
        return self._rows.get(slurm_job_id)

    @cached_property
    def _rows(self) -> Mapping[str, ListedJob]:
        return {job.slurm_job_id: job for job in self.listing.jobs}

    def reports_of(self, slurm_job_id: str) -> tuple[Report, ...]:
        """What the agents of that job's nodes reported."""
        return self._reports.get(slurm_job_id, ())

    @cached_property
    def _reports(self) -> Mapping[str, tuple[Report, ...]]:
        found: dict[str, tuple[Report, ...]] = {}
        for (job_id, _), report in self.nodes.items():
            found[job_id] = (*found.get(job_id, ()), report)
        return found


_COMMENT = re.compile(r"\bdagster-slurm \S+ ([0-9a-f]{32})\b")
_COMMAND = re.compile(r"/submissions/([0-9a-f]{32})/batch\.sh$")


def comment_for(session_id: str, token: str) -> str:
    """The job comment that carries a token."""
    return f"dagster-slurm {session_id} {token}"


def tokens_of(job: ListedJob) -> frozenset[str]:
    """Tokens that a job carries in its comment or its command; a site may have overwritten or wrapped the comment."""
    return _tokens_in(job.comment or "", job.command or "")


@lru_cache(maxsize=4096)
def _tokens_in(comment: str, command: str) -> frozenset[str]:
    found = [_COMMENT.search(comment), _COMMAND.search(command.rstrip())]
    return frozenset(match.group(1) for match in found if match is not None)
