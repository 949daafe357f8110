"""sbatch --test-only within a budget: what is asked, what is used again, what is never remembered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import attrs
import pytest

from dagster_slurm.allocations.config import EffectiveShape, SlurmWorkerAllocationConfig, inherit
from dagster_slurm.allocations.estimate import StartProbe
from dagster_slurm.errors import ConfigurationError, EstimateBudgetExceeded, HostUnreachable
from dagster_slurm.session.estimators import SbatchTestOnlyEstimator
from dagster_slurm.session.session import AllocationSession
from dagster_slurm.slurm.replies import TestOnlyReply
from dagster_slurm_tests.builders import UNREACHABLE, WORKER_SHAPE

Options = tuple[str, ...]

NOW_FREE = TestOnlyReply(0, None, True, "gpu-a")
REFUSED = TestOnlyReply(None, "allocation failure: Requested node configuration is not available", True)
SILENT = TestOnlyReply(None, UNREACHABLE, False)


@attrs.define
class Asked:
    """What an estimator needs of a session: shapes, options, and the scheduler's answers in turn."""

    answers: list[TestOnlyReply | Exception] = attrs.field(factory=list)
    questions: list[list[Options]] = attrs.field(factory=list)

    def worker_shape(self, config: SlurmWorkerAllocationConfig) -> EffectiveShape:
        return inherit(config, WORKER_SHAPE)

    def worker_sbatch_options(self, candidates: Sequence[SlurmWorkerAllocationConfig]) -> tuple[Options, ...]:
        return tuple((self.worker_shape(candidate).digest,) for candidate in candidates)

    def probe_starts(self, options: Sequence[Options]) -> tuple[StartProbe, ...]:
        self.questions.append(list(options))
        given = [self.answers.pop(0) if self.answers else NOW_FREE for _ in options]
        for answer in given:
            if isinstance(answer, Exception):
                raise answer
        return tuple(StartProbe(answer) for answer in cast("list[TestOnlyReply]", given))

    def asked(self) -> int:
        """Requests that the scheduler got."""
        return sum(len(question) for question in self.questions)


class Bench:
    """An estimator with a hand-moved clock before a scheduler with given answers."""

    def __init__(self, *answers: TestOnlyReply | Exception, **settings: Any) -> None:
        self.now = 100.0
        self.session = Asked(list(answers))
        self.estimator = SbatchTestOnlyEstimator(clock=lambda: self.now, **settings)

    def estimate(self, *minutes: int) -> Any:
        candidates = [SlurmWorkerAllocationConfig(time_limit=str(n)) for n in minutes]
        return self.estimator.estimate(cast("AllocationSession", self.session), candidates)


def test_each_candidate_gets_its_estimate_in_order() -> None:
    bench = Bench(NOW_FREE, REFUSED, attrs.evolve(NOW_FREE, start_in_seconds=4800))
    first, second, third = bench.estimate(10, 20, 40)
    assert (first.start_in_seconds, first.time_limit_seconds, first.error) == (0, 600, None)
    assert (first.config.time_limit, first.partition) == ("10", "gpu-a")
    assert (second.start_in_seconds, second.time_limit_seconds, second.error) == (None, 1200, REFUSED.error)
    assert second.answered
    assert third.start_in_seconds == 4800
    assert len(bench.session.questions) == 1, "one remote command for all"


def test_the_walltime_of_an_estimate_is_the_inherited_one() -> None:
    bench = Bench()
    (found,) = bench.estimator.estimate(cast("AllocationSession", bench.session), [SlurmWorkerAllocationConfig()])
    assert found.time_limit_seconds == 3600


def test_H_12_a_ninth_candidate_is_refused_before_anything_is_sent() -> None:
    bench = Bench()
    with pytest.raises(EstimateBudgetExceeded, match="9 candidates") as raised:
        bench.estimate(*range(1, 10))
    assert raised.value.field == "SbatchTestOnlyEstimator.max_candidates"
    assert bench.session.questions == []
    assert len(bench.estimate(*range(1, 9))) == 8
    assert bench.session.asked() == 8


def test_the_budget_is_of_questions_not_of_candidates() -> None:
    bench = Bench(max_candidates=2)
    assert len(bench.estimate(5, 5, 5, 6)) == 4
    assert bench.session.asked() == 2
    assert len(bench.estimate(5, 6, 7, 8)) == 4, "two of the four have a recent answer"
    with pytest.raises(EstimateBudgetExceeded):
        bench.estimate(1, 2, 3)


def test_Q_10_answers_are_used_again_for_a_minute() -> None:
    bench = Bench()
    bench.estimate(5)
    bench.now += 59.9
    bench.estimate(5, 5)
    assert bench.session.asked() == 1
    bench.now += 0.1
    bench.estimate(5)
    assert bench.session.asked() == 2


def test_H_15_the_time_limit_is_part_of_what_an_answer_is_for() -> None:
    bench = Bench(NOW_FREE, attrs.evolve(NOW_FREE, start_in_seconds=4800))
    (short,) = bench.estimate(10)
    (long,) = bench.estimate(40)
    assert (short.start_in_seconds, long.start_in_seconds) == (0, 4800)


def test_H_8_a_refusal_is_remembered_for_cache_seconds_and_no_longer() -> None:
    bench = Bench(REFUSED, NOW_FREE, cache_seconds=30)
    assert bench.estimate(5)[0].error == REFUSED.error
    bench.now += 29
    assert bench.estimate(5)[0].error == REFUSED.error
    bench.now += 1
    assert bench.estimate(5)[0].starts_within(0)


def test_H_12_silence_is_told_from_refusal_and_never_remembered() -> None:
    bench = Bench(SILENT, NOW_FREE)
    (silent,) = bench.estimate(5)
    assert (silent.answered, silent.start_in_seconds) == (False, None)
    assert "Unable to contact slurm controller" in silent.error
    assert bench.estimate(5)[0].start_in_seconds == 0
    assert bench.session.asked() == 2


def test_a_remembered_answer_is_given_beside_a_new_silence() -> None:
    bench = Bench(NOW_FREE, SILENT)
    bench.estimate(5)
    assert [e.answered for e in bench.estimate(5, 6)] == [True, False]


def test_an_unreachable_host_remembers_nothing() -> None:
    bench = Bench(HostUnreachable("no route"), NOW_FREE)
    with pytest.raises(HostUnreachable):
        bench.estimate(5)
    assert bench.estimate(5)[0].start_in_seconds == 0


def test_a_budget_of_one_question() -> None:
    bench = Bench(max_candidates=1)
    assert len(bench.estimate(5)) == 1
    with pytest.raises(EstimateBudgetExceeded):
        bench.estimate(6, 7)


def test_without_candidates_nobody_is_asked() -> None:
    bench = Bench()
    assert bench.estimate() == ()
    assert bench.session.questions == []


def test_cache_seconds_of_zero_remembers_nothing() -> None:
    bench = Bench(cache_seconds=0)
    bench.estimate(5)
    bench.estimate(5)
    assert bench.session.asked() == 2


@pytest.mark.parametrize(
    ("settings", "field"), [({"max_candidates": 0}, "max_candidates"), ({"cache_seconds": -1}, "cache_seconds")]
)
def test_bounds_that_make_no_sense_are_refused(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        SbatchTestOnlyEstimator(**settings)
    assert raised.value.field == field
