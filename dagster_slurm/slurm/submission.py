"""sbatch: what became of a submission, when a job could start, and whether the controller answers."""

from __future__ import annotations

import re
from typing import Final

import attrs

from dagster_slurm.slurm.commands import (
    ReplyFault,
    fault_of,
    names_communication_failure,
    not_started,
    ran,
    said,
)
from dagster_slurm.slurm.hostlists import expand_hostlist

_PARSABLE: Final = re.compile(r"(?P<id>[0-9]{1,18})(?:;(?P<cluster>[^;\s]+))?")
_SENTENCE: Final = re.compile(r"Submitted batch job (?P<id>[0-9]{1,18})\b(?: on cluster (?P<cluster>\S+))?.*")
# The words after the timestamp differ by version and kind of job.
_ESTIMATE: Final = re.compile(
    r"^(?:sbatch: )?Job [0-9]+(?:\+[0-9]+)? to start at (?P<start>\S+)(?P<rest>.*)$",
    re.MULTILINE,
)
_ESTIMATE_PARTITION: Final = re.compile(r" in partition (\S+)")
_ESTIMATE_NODES: Final = re.compile(r" processors on (?:nodes )?(\S+)")
_CONTROLLER_UP: Final = re.compile(r"^Slurmctld\([^)]*\) at .* is UP\b", re.MULTILINE)


@attrs.frozen
class Submitted:
    """The job exists. `cluster` is named when sbatch named one."""

    slurm_job_id: str
    cluster: str | None = None


@attrs.frozen
class Refused:
    """No job was made and none will be; `text` is everything that was printed."""

    text: str


@attrs.frozen
class Ambiguous:
    """A job may exist or may still appear; only its token can tell. `text` is everything that was printed."""

    text: str


@attrs.frozen
class TestOnlyReply:
    """A start estimate: advisory, reserves nothing.

    `start_in_seconds`: from the login node's clock at the question, never negative; None without an estimate.
    `error`: why there is none. `answered`: False when the scheduler did not answer, so that the error says nothing
    about the candidate. `partition` and `nodes` are those of the estimate.
    """

    __test__ = False  # not a test class, whatever its name says to pytest

    start_in_seconds: int | None
    error: str | None
    answered: bool
    partition: str | None = None
    nodes: tuple[str, ...] = ()
    fault: ReplyFault | None = None


def parse_submission(status: int, stdout: str, stderr: str) -> Submitted | Refused | Ambiguous:
    """What became of a submission with ``sbatch --parsable``.

    Refused only when sbatch ended by itself, failed, printed a reason, and the reason names no lost message, or
    when sbatch never ran. Everything else without exactly one job id is ambiguous.
    """
    printed = said(status, "\n".join(part.strip() for part in (stderr, stdout) if part.strip()))
    found = _job_ids(stdout)
    if status == 0:
        return found[0] if len(found) == 1 else Ambiguous(printed)
    if not_started(status) and not found:
        return Refused(printed)
    reason = stderr.strip() or stdout.strip()
    if found or not ran(status) or not reason or names_communication_failure(printed):
        return Ambiguous(printed)
    return Refused(printed)


def _job_ids(stdout: str) -> list[Submitted]:
    lines = [line.strip() for line in stdout.split("\n")]
    for pattern in (_PARSABLE, _SENTENCE):
        matches = [match for match in map(pattern.fullmatch, lines) if match is not None]
        found = {Submitted(match["id"], match["cluster"]) for match in matches if int(match["id"]) > 0}
        if found:
            return sorted(found, key=lambda job: job.slurm_job_id)
    return []


def parse_test_only(status: int, text: str, login_clock: int) -> TestOnlyReply:
    """Read the reply of ``sbatch --test-only``: exit status, and standard output and error in one text.

    SLURM_TIME_FORMAT must have been ``%s``: a timestamp without a zone is not read. `login_clock` is the clock of the
    login node in seconds, read next to the command.
    """
    fault = fault_of(status, text)
    if fault is not None:
        answered = fault in (ReplyFault.ERROR, ReplyFault.USAGE)
        return TestOnlyReply(None, said(status, text), answered=answered, fault=fault)
    estimates = list(_ESTIMATE.finditer(text))
    if not estimates:
        return TestOnlyReply(None, f"sbatch gave no start estimate: {said(status, text)}", answered=True)
    start, rest = estimates[-1]["start"], estimates[-1]["rest"]
    if not re.fullmatch(r"[0-9]{1,18}", start):
        return TestOnlyReply(
            None,
            f"sbatch gave no start time that can be read: {said(status, text)}",
            answered=True,
        )
    partition = _ESTIMATE_PARTITION.search(rest)
    nodes = _ESTIMATE_NODES.search(rest)
    return TestOnlyReply(
        start_in_seconds=max(0, int(start) - login_clock),
        error=None,
        answered=True,
        partition=None if partition is None else partition[1],
        nodes=() if nodes is None else expand_hostlist(nodes[1]),
    )


def parse_ping(status: int, text: str) -> bool:
    """Whether ``timeout 2 scontrol ping`` found a controller that answers, primary or backup."""
    return ran(status) and _CONTROLLER_UP.search(text) is not None
