"""When could a candidate shape start? The scheduler's answer, as a value."""

from __future__ import annotations

import attrs

from dagster_slurm.allocations.config import SlurmWorkerAllocationConfig
from dagster_slurm.slurm.partitions import Partition
from dagster_slurm.slurm.submission import TestOnlyReply


@attrs.frozen
class StartProbe:
    """What the scheduler answered about one candidate, and the partition it answered for; None when not known."""

    answer: TestOnlyReply
    partition: Partition | None = None

    def caveats(self, time_limit_seconds: int | None) -> tuple[str, ...] | None:
        """What the answer does not take into account; None when the partition could not be read."""
        partition = self.partition
        if partition is None:
            return None
        found = []
        if partition.state not in (None, "UP"):
            found.append(f"Partition {partition.name} is {partition.state}: the job would wait for it.")
        longest = partition.max_time_seconds
        if longest is not None and time_limit_seconds is not None and time_limit_seconds > longest:
            found.append(
                f"The walltime of {time_limit_seconds} s is above the {longest} s of partition {partition.name}: "
                "the job would stay pending for ever."
            )
        return tuple(found)


@attrs.frozen(kw_only=True)
class StartEstimate:
    """The scheduler's estimate for one candidate. It is advisory and reserves nothing.

    Attributes:
        config: The candidate.
        start_in_seconds: Seconds from the login node's clock to the estimated start, at least 0; None without one.
        time_limit_seconds: Walltime that the candidate would request, inherited included; None without a limit.
        error: What the scheduler said when it refused the candidate, or why there is no estimate; None with one.
        answered: Whether the scheduler answered at all: False tells a silence from a refusal.
        partition: The partition that the estimate is for.
        caveats: Where ``sbatch --test-only`` is known to be blind: the partition is down, or its longest walltime is
            below what is asked for, so that the job would stay pending. Empty when nothing is known against the
            estimate; None when the partitions could not be read.
    """

    config: SlurmWorkerAllocationConfig
    start_in_seconds: int | None
    time_limit_seconds: int | None
    error: str | None
    answered: bool = True
    partition: str | None = None
    caveats: tuple[str, ...] | None = None

    def starts_within(self, seconds: float) -> bool:
        """Whether it is estimated to start within that many seconds; False without an estimate."""
        return self.start_in_seconds is not None and self.start_in_seconds <= seconds
