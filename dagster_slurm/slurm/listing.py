"""squeue: the one question that lists a session's jobs, and what its reply means."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import attrs

from dagster_slurm.slurm.arguments import job_name as checked_job_name
from dagster_slurm.slurm.commands import (
    BOUNDED,
    FIELD_END,
    ROW_END,
    WORDS_FOR_NOTHING,
    ReplyFault,
    cluster_argument,
    fault_of,
    names_usage_error,
    number_or_none,
    said,
)
from dagster_slurm.slurm.durations import parse_walltime
from dagster_slurm.slurm.hostlists import expand_hostlist
from dagster_slurm.slurm.states import StateClass, canonical_state, state_class

# Fields of squeue 20.11 and later. Free text comes last; the id is repeated at the very end, so that a row that
# lost its middle and ran into the next one does not pass as a job.
_FIELDS: Final = (
    "JobArrayID",
    "State",
    "TimeLeft",
    "TimeLimit",
    "SubmitTime",
    "StartTime",
    "NumNodes",
    "NodeList",
    "tres-alloc",
    "tres-per-node",
    "Partition",
    "QOS",
    "Account",
    "UserName",
    "Name",
    "Reason",
    "Command",
    "Comment",
    "JobArrayID",
)
# A wrapper of the site can end with 0 although it could not ask; without rows such words are no empty queue.
_NAMES_TROUBLE: Final = re.compile(
    r"error|fail|unable|unavailable|maintenance|denied|timed out|\bdown\b|not found", re.IGNORECASE
)
_QUERY_OF_A_PURGED_ID: Final = "slurm_load_jobs error: Invalid job id specified"


@attrs.frozen
class ListedJob:
    """One job as squeue listed it. None in any field: not known, or not applicable in this state.

    Times are seconds of the cluster's clock since 1970. `state` is spelled as `canonical_state` spells it;
    None only when the column was empty.
    """

    slurm_job_id: str
    name: str
    state: str | None
    reason: str | None
    """Why it is pending or held, the whole text; None for a job that ended, whose old reason means nothing."""
    time_left_seconds: int | None
    """Remaining walltime; None unless the job runs and has a limit."""
    time_limit_seconds: int | None
    """None: no limit."""
    submitted_at: int | None
    """The scheduler's submit time; moves on a requeue."""
    expected_start_at: int | None
    """When the scheduler plans to start it; None unless pending and planned."""
    nodes: tuple[str, ...]
    requested_nodes: int | None
    tres: str | None
    """The request while pending, the grant once it runs; a total over all nodes."""
    tres_per_node: str | None
    partition: str | None
    qos: str | None
    account: str | None
    comment: str | None
    command: str | None
    user: str | None


@attrs.frozen
class Listing:
    """A reply of squeue. Without an answer there are no jobs in it and nothing follows about any job."""

    answered: bool
    jobs: tuple[ListedJob, ...] = ()
    error: str | None = None
    fault: ReplyFault | None = None


def squeue_arguments(job_name: str, cluster: str | None = None) -> tuple[str, ...]:
    """The command that lists our own jobs of that name in every state. SLURM_TIME_FORMAT must be ``%s``.

    Raises:
        ConfigurationError: the name filter would not take the name as one name.
    """
    return _squeue("-n", checked_job_name(job_name, "job_name"), cluster)


def squeue_by_id_arguments(job_ids: Iterable[str], cluster: str | None = None) -> tuple[str, ...]:
    """The same for ids, whatever the jobs are called by now: somebody may have renamed one."""
    return _squeue("-j", ",".join(job_ids), cluster)


def _squeue(selector: str, selected: str, cluster: str | None) -> tuple[str, ...]:
    field_ends = [FIELD_END] * (len(_FIELDS) - 1) + [FIELD_END + ROW_END]
    fields = ",".join(f"{field}:{end}" for field, end in zip(_FIELDS, field_ends, strict=True))
    return (
        *BOUNDED,
        "squeue",
        "-h",
        "-t",
        "all",
        cluster_argument(cluster),
        "--me",
        selector,
        selected,
        "-O",
        fields,
    )


def parse_listing(status: int, text: str) -> Listing:
    """Read squeue's reply: exit status, and standard output and error in one text.

    Jobs whose id is not a plain number (array tasks, parts of heterogeneous jobs) and a header are skipped: they
    are no allocations of ours. One row that is cut or malformed makes the whole listing unanswered, because a job
    missing from it would be read as one that ended.
    """
    fault = fault_of(status, text)
    if fault is not None:
        if text.strip() == _QUERY_OF_A_PURGED_ID:
            return Listing(answered=True)
        return Listing(answered=False, error=said(status, text), fault=fault)
    *rows, rest = text.split(ROW_END)
    if FIELD_END in rest:
        return _damaged("The last row is cut.", text)
    jobs: list[ListedJob] = []
    for row in rows:
        columns = row.split(FIELD_END)
        # Lines before the first column are a heading or a message, not the id.
        job_id = columns[0].rpartition("\n")[2].strip()
        if len(columns) != len(_FIELDS) + 1 or columns[-1] or columns[-2].strip() != job_id:
            found = f"{len(columns) - 1} of {len(_FIELDS)}"
            return _damaged(f"A row has {found} columns, or columns of two rows.", text)
        if not (job_id.isascii() and job_id.isdigit()):
            continue
        job = _listed_job(job_id, columns)
        if job is None:
            return _damaged("A column of the row spans lines.", text)
        jobs.append(job)
    if not rows and _NAMES_TROUBLE.search(rest):
        return Listing(
            answered=False,
            error=said(status, text),
            fault=ReplyFault.USAGE if names_usage_error(rest) else ReplyFault.ERROR,
        )
    return Listing(answered=True, jobs=tuple(jobs))


def _damaged(what: str, text: str) -> Listing:
    shown = text.replace(FIELD_END, "|").replace(ROW_END, "")[:2000]
    fault = ReplyFault.USAGE if names_usage_error(text) else ReplyFault.DAMAGED
    return Listing(answered=False, error=f"squeue's reply is damaged. {what}\n{shown}", fault=fault)


def _listed_job(job_id: str, columns: list[str]) -> ListedJob | None:
    # What stands in one line by nature: a line break in it is a message printed into the middle of a row.
    if "\n" in "".join(columns[1:14]):
        return None
    state = canonical_state(columns[1])
    kind = StateClass.UNFAMILIAR if state is None else state_class(state)
    words = [None if column in WORDS_FOR_NOTHING else column for column in map(str.strip, columns)]
    return ListedJob(
        slurm_job_id=job_id,
        name=columns[14],
        state=state,
        reason=None if kind is StateClass.ENDED else words[15],
        time_left_seconds=parse_walltime(columns[2]) if kind is StateClass.RUNNING else None,
        time_limit_seconds=parse_walltime(columns[3]),
        submitted_at=number_or_none(columns[4]),
        expected_start_at=number_or_none(columns[5]) if kind is StateClass.PENDING else None,
        nodes=expand_hostlist(columns[7]),
        requested_nodes=number_or_none(columns[6]),
        tres=words[8],
        tres_per_node=words[9],
        partition=words[10],
        qos=words[11],
        account=words[12],
        user=words[13],
        command=words[16],
        comment=words[17],
    )
