"""When could a candidate shape start? The scheduler's answer, as a value."""

from __future__ import annotations

import attrs

from dagster_slurm.allocations.config import SlurmWorkerAllocationConfig


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
    """

    config: SlurmWorkerAllocationConfig
    start_in_seconds: int | None
    time_limit_seconds: int | None
    error: str | None
    answered: bool = True
    partition: str | None = None

    def starts_within(self, seconds: float) -> bool:
        """Whether it is estimated to start within that many seconds; False without an estimate."""
        return self.start_in_seconds is not None and self.start_in_seconds <= seconds
