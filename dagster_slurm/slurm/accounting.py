"""sacct: final states of jobs that left the queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import attrs

from dagster_slurm.slurm.commands import (
    BOUNDED,
    FIELD_END,
    ReplyFault,
    cluster_argument,
    fault_of,
    number_or_none,
    said,
)
from dagster_slurm.slurm.hostlists import expand_hostlist
from dagster_slurm.slurm.states import StateClass, canonical_state, state_class

# The name in a row that the database made before it heard of the submission (seen on 22.05).
_PROVISIONAL_NAME: Final = "allocation"
_FIELDS: Final = ("JobIDRaw", "State", "Submit", "ExitCode", "NodeList", "JobName")


@attrs.frozen
class AccountingRow:
    """The latest record of one job. `exit_code` and `exit_signal` are None until the job ended.

    `name` is None as long as accounting does not know it: for some seconds a row can be provisional, even with a
    final state. `submitted_at` is the scheduler's submit time in seconds of the cluster's clock. Job ids are used
    again, for example after a controller lost its last seconds: compare name and submit time before you believe a row.
    """

    state: str | None
    name: str | None
    submitted_at: int | None
    nodes: tuple[str, ...]
    exit_code: int | None
    exit_signal: int | None = None


@attrs.frozen
class AccountingReply:
    """A reply of sacct. A job without a row is not known to accounting: purged, not yet written, or never there."""

    answered: bool
    rows: Mapping[str, AccountingRow] = attrs.field(factory=dict)
    error: str | None = None
    fault: ReplyFault | None = None


def sacct_arguments(
    job_ids: Iterable[str], since_epoch: int | None = None, cluster: str | None = None
) -> tuple[str, ...]:
    """The command that asks for the latest record of these jobs. SLURM_TIME_FORMAT must be ``%s``.

    `since_epoch` bounds the search, because sites refuse wide ranges: the oldest submission among the jobs, by the
    cluster's clock; None leaves it to sacct, which then looks at all times.
    """
    return (
        *BOUNDED,
        "sacct",
        "-X",
        "-n",
        "-P",
        f"--delimiter={FIELD_END}",
        cluster_argument(cluster),
        "-j",
        ",".join(job_ids),
        *(() if since_epoch is None else ("-S", f"uts{since_epoch}")),
        "-o",
        ",".join(_FIELDS),
    )


def parse_accounting(status: int, text: str) -> AccountingReply:
    """Read sacct's reply: exit status, and standard output and error in one text.

    Rows are the lines with separators; those without a plain job id are skipped; a row with a wrong number of
    columns makes the reply unanswered.
    """
    fault = fault_of(status, text)
    if fault is not None:
        return AccountingReply(answered=False, error=said(status, text), fault=fault)
    rows: dict[str, AccountingRow] = {}
    # Only the newline ends a row: str.splitlines would also split at the separator's neighbours.
    for line in text.split("\n"):
        if FIELD_END not in line:
            continue
        columns = line.split(FIELD_END)
        if len(columns) != len(_FIELDS):
            return AccountingReply(
                answered=False,
                error=f"sacct's reply is damaged: {len(columns)} of {len(_FIELDS)} columns in {line[:500]!r}",
                fault=ReplyFault.DAMAGED,
            )
        job_id, state, submit, exit_pair, nodes, name = columns
        if job_id.isascii() and job_id.isdigit():
            rows[job_id] = _row(state, submit, exit_pair, nodes, name)
    return AccountingReply(answered=True, rows=MappingProxyType(rows))


def _row(raw_state: str, submit: str, exit_pair: str, nodes: str, name: str) -> AccountingRow:
    state = canonical_state(raw_state)
    # A row that is not final shows 0:0, which would read as success.
    ended = state is not None and state_class(state) is StateClass.ENDED and state != "COMPLETING"
    code, _, signal = exit_pair.partition(":")
    return AccountingRow(
        state=state,
        name=None if name == _PROVISIONAL_NAME else name,
        submitted_at=number_or_none(submit),
        nodes=expand_hostlist(nodes),
        exit_code=number_or_none(code) if ended else None,
        exit_signal=number_or_none(signal) if ended else None,
    )
