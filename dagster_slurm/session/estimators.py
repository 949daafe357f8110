"""Start estimates from ``sbatch --test-only``, within a budget of scheduler requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from dagster_slurm.allocations.config import SlurmWorkerAllocationConfig
from dagster_slurm.allocations.estimate import StartEstimate, StartProbe
from dagster_slurm.errors import ConfigurationError, EstimateBudgetExceeded

if TYPE_CHECKING:
    from dagster_slurm.session.session import AllocationSession


class StartEstimator(Protocol):
    """Anything that can say when candidates could start, for example from a reservation calendar."""

    def estimate(
        self, session: AllocationSession, candidates: Sequence[SlurmWorkerAllocationConfig]
    ) -> Sequence[StartEstimate]:
        """One estimate for each candidate, in order."""
        ...


class SbatchTestOnlyEstimator:
    """Asks ``sbatch --test-only`` about every candidate in one remote command.

    Args:
        max_candidates: Most distinct candidates that one call asks the scheduler about; each costs it one request.
        cache_seconds: How long an answer is used again for the same options. Refusals too, but never longer.
        clock: Monotonic clock, for tests.

    Raises:
        ConfigurationError: a bound that makes no sense.
    """

    def __init__(
        self, max_candidates: int = 8, cache_seconds: float = 60, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if max_candidates < 1:
            raise ConfigurationError(f"max_candidates must be at least 1, not {max_candidates}", field="max_candidates")
        if cache_seconds < 0:
            raise ConfigurationError(f"cache_seconds must be at least 0, not {cache_seconds}", field="cache_seconds")
        self.max_candidates = max_candidates
        self.cache_seconds = cache_seconds
        self._clock = clock
        self._answers: dict[tuple[str, ...], tuple[float, StartProbe]] = {}

    def estimate(
        self, session: AllocationSession, candidates: Sequence[SlurmWorkerAllocationConfig]
    ) -> tuple[StartEstimate, ...]:
        """One estimate for each candidate, in order.

        Raises:
            EstimateBudgetExceeded: more distinct candidates without a recent answer than ``max_candidates``; nothing
                was sent.
            RemoteError: the login node could not be asked.
        """
        options = session.worker_sbatch_options(candidates)
        now = self._clock()
        self._answers = {key: item for key, item in self._answers.items() if now - item[0] < self.cache_seconds}
        asked = [key for key in dict.fromkeys(options) if key not in self._answers]
        if len(asked) > self.max_candidates:
            raise EstimateBudgetExceeded(
                f"{len(asked)} candidates have no recent answer; one call asks about at most {self.max_candidates}.",
                field="SbatchTestOnlyEstimator.max_candidates",
                remedy="try fewer shapes, or raise max_candidates.",
            )
        answers = {key: item[1] for key, item in self._answers.items()}
        for key, answer in zip(asked, session.probe_starts(asked) if asked else (), strict=True):
            answers[key] = answer
            if answer.answer.answered:
                self._answers[key] = (now, answer)
        return tuple(
            _estimate(session, candidate, answers[key]) for candidate, key in zip(candidates, options, strict=True)
        )


def _estimate(session: AllocationSession, candidate: SlurmWorkerAllocationConfig, probe: StartProbe) -> StartEstimate:
    answer, time_limit_seconds = probe.answer, session.worker_shape(candidate).time_limit_seconds
    return StartEstimate(
        config=candidate,
        start_in_seconds=answer.start_in_seconds,
        time_limit_seconds=time_limit_seconds,
        error=answer.error,
        answered=answer.answered,
        partition=answer.partition,
        caveats=probe.caveats(time_limit_seconds) if answer.start_in_seconds is not None else (),
    )
