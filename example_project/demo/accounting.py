"""What Slurm's queue and accounting say about the run's allocations. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import attrs

QUEUE_COMMAND = ("squeue", "-h", "-a", "-o", "%A|%T")
ACCOUNTING_COMMAND = (
    *("sacct", "-a", "-X", "-n", "-P", "-S", "now-1days"),
    *("-o", "JobIDRaw,JobName,Partition,State,ElapsedRaw,NodeList,AllocCPUS"),
)
_LIVE = frozenset({"PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "RESIZING"})


@attrs.frozen
class AccountedJob:
    """One allocation in Slurm's accounting.

    Attributes:
        slurm_job_id: Slurm's number.
        role: "head" or "worker".
        name: The job name, shared by all allocations of the session.
        partition: Where it was queued.
        state: Slurm's word, with "by <uid>" cut off.
        elapsed_seconds: How long it ran.
        nodes: Slurm's node list; None when it never started.
        cpus: CPUs it was granted.
    """

    slurm_job_id: int
    role: str
    name: str
    partition: str
    state: str
    elapsed_seconds: int
    nodes: str | None
    cpus: int

    @property
    def ran(self) -> bool:
        """Whether it had nodes and time."""
        return self.nodes is not None and self.elapsed_seconds > 0

    @property
    def live(self) -> bool:
        """Whether it can still run."""
        return self.state in _LIVE


def parse_queue(text: str) -> Mapping[int, str]:
    """Slurm's state word of each listed job."""
    rows = (line.split("|") for line in text.splitlines() if line)
    return {int(number): state for number, state in rows}


def parse_accounting(text: str) -> tuple[AccountedJob, ...]:
    """The allocations of a Slurm that ran nothing else: the first one is the head, submitted before all others."""
    rows = sorted((line.split("|") for line in text.splitlines() if line), key=lambda row: int(row[0]))
    return tuple(
        AccountedJob(
            slurm_job_id=int(number),
            role="worker" if position else "head",
            name=name,
            partition=partition,
            state=state.split()[0],
            elapsed_seconds=int(elapsed or 0),
            nodes=None if nodes in ("", "None assigned") else nodes,
            cpus=int(cpus or 0),
        )
        for position, (number, name, partition, state, elapsed, nodes, cpus) in enumerate(rows)
    )


def count_by_state(queue: Mapping[int, str]) -> str:
    """One line such as ``head RUNNING, workers 1 PENDING 2 RUNNING``; the lowest number is the head's."""
    if not queue:
        return "no allocation"
    head, *workers = sorted(queue)
    states = Counter(queue[worker] for worker in workers)
    counted = " ".join(f"{number} {state}" for state, number in sorted(states.items())) or "none"
    return f"head {queue[head]}, workers {counted}"


def accounting_table(jobs: Sequence[AccountedJob]) -> str:
    """The allocations as a table for the terminal."""
    lines = [f"  {'job':>6}  {'role':6}  {'state':12}  {'elapsed':>8}  {'cpus':>4}  {'partition':10}  node"]
    lines += [
        f"  {job.slurm_job_id:>6}  {job.role:6}  {job.state:12}  {job.elapsed_seconds:>6} s  {job.cpus:>4}"
        f"  {job.partition:10}  {job.nodes or '-'}"
        for job in jobs
    ]
    return "\n".join(lines)


def shortcomings(jobs: Sequence[AccountedJob], queue: Mapping[int, str], least_workers: int) -> list[str]:
    """What is missing from a run that scaled as promised and left nothing behind; empty when nothing is."""
    found = []
    if not any(job.role == "head" and job.ran for job in jobs):
        found.append("accounting shows no head allocation that ran")
    workers = sum(job.role == "worker" and job.ran for job in jobs)
    if workers < least_workers:
        found.append(f"accounting shows {workers} worker allocations that ran, at least {least_workers} were expected")
    live = [f"{job.slurm_job_id} {job.state}" for job in jobs if job.live]
    if live:
        found.append(f"accounting still shows live allocations: {', '.join(live)}")
    if queue:
        found.append(f"the queue is not empty: {', '.join(f'{job} {state}' for job, state in sorted(queue.items()))}")
    return found
