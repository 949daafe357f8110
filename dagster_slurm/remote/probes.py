"""Two small questions: when could these options start, and what did that job print."""

from __future__ import annotations

from collections.abc import Sequence

from dagster_slurm.allocations.estimate import StartProbe
from dagster_slurm.allocations.settings import SessionSettings
from dagster_slurm.remote.frames import Reply, quote
from dagster_slurm.remote.replies import missing
from dagster_slurm.remote.scripts import command
from dagster_slurm.slurm.commands import BOUNDED
from dagster_slurm.slurm.partitions import parse_partitions, partitions_arguments
from dagster_slurm.slurm.replies import TestOnlyReply, parse_test_only

LOG_TAIL_BYTES = 16_384


def starts_script(options: Sequence[tuple[str, ...]], cluster: str | None = None) -> str:
    """Ask about each option list, after a cheap look at whether the controller answers at all."""
    lines = ["SLURM_TIME_FORMAT=%s; export SLURM_TIME_FORMAT"]
    for words in options:
        probe = command((*BOUNDED, "sbatch", "--test-only", *words, "--wrap=:"))
        lines.append(f"section now date +%s; section start {probe}")
    lines.append(f"section partitions {command(partitions_arguments(cluster))}")
    asked = "\n".join(lines)
    named = "" if cluster is None else f" --clusters={quote(cluster)}"
    return f"""pinged=$(timeout -k 1 2 scontrol{named} ping 2>&1)
emit ping "$?" "$pinged"
case $pinged in *' is UP'*)
{asked}
;; esac
"""


def read_starts(reply: Reply, count: int, address: str) -> tuple[StartProbe, ...]:
    """One answer for each option list; silence of the controller is an answer too."""
    ping = reply.section("ping")
    if ping is None:
        raise missing(reply, "start estimates", address)
    clocks = [section for section in reply.sections if section.name == "now"]
    starts = [section for section in reply.sections if section.name == "start"]
    if not starts and reply.complete:
        silent = TestOnlyReply(
            start_in_seconds=None,
            error=f"the scheduler did not answer: {ping.text.strip() or 'no reply to ping'}",
            answered=False,
            partition=None,
            nodes=(),
        )
        return (StartProbe(silent),) * count
    if len(starts) != count or len(clocks) != count:
        raise missing(reply, "some start estimates", address)
    told = reply.section("partitions")
    partitions = (None if told is None else parse_partitions(told.status, told.text)) or {}
    answers = (
        parse_test_only(start.status, start.text, int(clock.text)) for start, clock in zip(starts, clocks, strict=True)
    )
    return tuple(StartProbe(answer, partitions.get(answer.partition or "")) for answer in answers)


def log_script(settings: SessionSettings, token: str) -> str:
    """The end of a job's log."""
    path = quote(f"{settings.submission_dir(token)}/log")
    return f"show_log() {{ [ ! -e {path} ] || tail -c {LOG_TAIL_BYTES} {path}; }}\nsection log show_log\n"


def read_log(reply: Reply, address: str) -> str:
    """The text that ``log_script`` printed."""
    section = reply.section("log")
    if section is None:
        raise missing(reply, "a job's log", address)
    return section.text
