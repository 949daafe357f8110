"""A tick: observe, policy, reconcile, record; on a played session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import attrs
import pytest

from dagster_slurm.allocations.config import SlurmWorkerAllocationConfig
from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.errors import HostUnreachable, LockTimeout
from dagster_slurm.policy import PolicyContext
from dagster_slurm.ticks import Ticker
from dagster_slurm_tests.dagster.fakes import EPOCH, FakeSession, Notes, make_ticker
from dagster_slurm_tests.sessions import until


def two_workers(context: PolicyContext) -> WorkerIntent:
    return WorkerIntent(key=context.key, count=2)


def test_a_policy_is_asked_with_what_was_seen_and_its_intent_is_reconciled() -> None:
    session, notes, seen = FakeSession(), Notes(), list[PolicyContext]()

    def policy(context: PolicyContext) -> WorkerIntent:
        seen.append(context)
        assert context.estimates([SlurmWorkerAllocationConfig(partition="cpu")])[0].starts_within(1)
        return WorkerIntent(key=context.key, count=1)

    make_ticker(session, notes, policy).step({"remaining": 5})
    assert seen[0].key == "asset"
    assert seen[0].work == {"remaining": 5}
    assert seen[0].run_id == "run"
    (call,) = session.called("reconcile_workers")
    assert call["observed"] is seen[0].snapshot
    assert call["max_submissions"] == 1
    sentence, metadata = notes.events[0]
    assert sentence == "The policy wants 1 worker allocation of 'asset'. Submitted job 100."
    assert metadata["slurm/submitted"] == 1
    assert metadata["slurm/remaining"] == 5


def test_ticks_come_at_the_interval_and_at_once_when_hurried() -> None:
    session, notes = FakeSession(), Notes()
    ticker = make_ticker(session, notes, two_workers, interval=30)
    ticker.step(None)
    ticker.step(None)
    assert len(session.called("inspect")) == 1
    session.now = 30
    ticker.step(None)
    assert len(session.called("inspect")) == 2
    ticker.hurry()
    ticker.step(None)
    assert len(session.called("inspect")) == 3


def test_an_allocation_that_ended_after_the_snapshot_is_not_replaced_unasked() -> None:
    session, notes = FakeSession(), Notes()
    ticker = make_ticker(session, notes, two_workers)
    ticker.step(None)
    ticker.hurry()
    ticker.step(None)
    assert [call["max_submissions"] for call in session.called("reconcile_workers")] == [2, 0]


def test_growth_of_one_intent_is_not_used_up_by_another_that_shrinks() -> None:
    session, notes = FakeSession(), Notes()
    for _ in range(3):
        session.add_worker("big")

    def policy(_: PolicyContext) -> list[WorkerIntent]:
        return [WorkerIntent(key="big", count=0), WorkerIntent(key="small", count=1)]

    make_ticker(session, notes, policy).step(None)
    (call,) = session.called("reconcile_workers")
    assert call["max_submissions"] == 1
    assert [intent.key for intent in call["intents"]] == ["big", "small"]
    assert "Submitted job 103; released jobs 100, 101, 102." in notes.sentences[0]


def test_none_leaves_the_workers_and_the_scheduler_alone() -> None:
    session, notes = FakeSession(), Notes()
    session.add_worker("asset")
    make_ticker(session, notes, lambda _: None).step(None)
    assert session.called("reconcile_workers") == []
    assert notes.sentences == ["The policy leaves the workers as they are."]


def test_earlier_releases_are_followed_up_whatever_the_policy_says() -> None:
    session, notes = FakeSession(), Notes()
    job = session.add_worker("asset")
    session.workers[job] = attrs.evolve(session.workers[job], drain_deadline=EPOCH + 5)

    def policy(_: PolicyContext) -> None:
        raise RuntimeError("no idea")

    make_ticker(session, notes, policy).step(None)
    (call,) = session.called("reconcile_workers")
    assert call["intents"] == ()
    assert call["max_submissions"] == 0


def test_a_policy_that_raises_is_recorded_and_the_next_tick_asks_again() -> None:
    session, notes = FakeSession(), Notes()
    answers: list[int] = []

    def policy(context: PolicyContext) -> WorkerIntent:
        answers.append(1)
        if len(answers) < 3:
            raise ZeroDivisionError("division of nothing")
        return WorkerIntent(key=context.key, count=1)

    ticker = make_ticker(session, notes, policy)
    for _ in range(3):
        ticker.hurry()
        ticker.step(None)
    sentence, metadata = notes.events[0]
    assert sentence == "The policy failed: ZeroDivisionError: division of nothing"
    assert "in policy" in metadata["slurm/policy_error"]
    # The same failure again adds neither an event nor a log line.
    assert [s.partition(":")[0] for s in notes.sentences] == [
        "The policy failed",
        "The policy wants 1 worker allocation of 'asset'. Submitted job 100.",
    ]
    assert len([line for line in notes.lines if "The work goes on" in line]) == 1


@pytest.mark.parametrize(
    "answer",
    [3, "three", [1], {"count": 2}, [WorkerIntent(key="a", count=1), WorkerIntent(key="a", count=2)], True],
    ids=str,
)
def test_nonsense_is_recorded_and_nothing_is_reconciled(answer: object) -> None:
    session, notes = FakeSession(), Notes()
    make_ticker(session, notes, lambda _: answer).step(None)  # type: ignore[arg-type, return-value]
    assert session.called("reconcile_workers") == []
    assert notes.sentences[0].startswith("The policy failed: ConfigurationError: The policy answered")


def test_a_policy_that_exits_does_not_end_the_step() -> None:
    session, notes = FakeSession(), Notes()

    def policy(_: PolicyContext) -> None:
        raise SystemExit(1)

    make_ticker(session, notes, policy).step(None)
    assert notes.sentences == ["The policy failed: SystemExit: 1"]


def step_until(ticker: Ticker, condition: Callable[[], bool], what: str) -> None:
    def stepped() -> bool:
        ticker.step(None)
        return condition()

    until(stepped, what)


class BlockingPolicy:
    """Waits until it is let go; then asks for an estimate and five workers."""

    def __init__(self) -> None:
        self.go, self.gone, self.calls = threading.Event(), threading.Event(), 0
        self.error: BaseException | None = None

    def __call__(self, context: PolicyContext) -> Sequence[WorkerIntent]:
        self.calls += 1
        try:
            assert self.go.wait(30)
            context.estimates([SlurmWorkerAllocationConfig()])
        except Exception as error:
            self.error = error
            raise
        finally:
            self.gone.set()
        return [WorkerIntent(key=context.key, count=5)]


def test_a_policy_that_blocks_is_not_waited_for_and_its_late_answer_is_ignored() -> None:
    session, notes, policy = FakeSession(), Notes(), BlockingPolicy()
    ticker = make_ticker(session, notes, policy, interval=10, policy_limit=0.01)
    ticker.step(None)
    session.now = 5
    ticker.step(None)
    assert notes.sentences == ["The policy did not answer within 0.01 s; a late answer is ignored."]
    session.now = 15
    ticker.step(None)
    assert notes.sentences[1:] == ["The policy still works on an earlier tick; it was not asked again."]
    policy.go.set()
    assert policy.gone.wait(30)
    # Its time was over, so the scheduler was not asked on its behalf.
    assert "time for this policy is over" in str(policy.error)
    assert session.called("estimate_worker_starts") == []

    def asked_again() -> bool:
        ticker.hurry()
        ticker.step(None)
        return policy.calls == 2

    # Only the next question's answer is acted upon.
    assert session.called("reconcile_workers") == []
    until(asked_again, "the next question")
    step_until(ticker, lambda: session.called("reconcile_workers") != [], "the next answer")
    assert len(session.called("reconcile_workers")) == 1


def test_a_policy_that_takes_its_time_is_used_when_it_answers_before_its_deadline() -> None:
    session, notes, policy = FakeSession(), Notes(), BlockingPolicy()
    ticker = make_ticker(session, notes, policy, interval=1000, policy_limit=0.01)
    ticker.step(None)
    assert notes.sentences == []
    policy.go.set()
    assert policy.gone.wait(30)
    step_until(ticker, lambda: notes.sentences != [], "its answer")
    assert notes.sentences[0].startswith("The policy wants 5 worker allocations of 'asset'. Submitted jobs 100,")


def test_a_cluster_that_cannot_be_asked_is_recorded_without_numbers() -> None:
    session, notes = FakeSession(), Notes()
    session.fail["inspect"] = [HostUnreachable("No connection to login:22.")]
    make_ticker(session, notes, two_workers).step(None)
    sentence, metadata = notes.events[0]
    assert sentence == "The cluster could not be asked. No connection to login:22."
    assert set(metadata) == {"slurm/decision"}


def test_a_scheduler_that_is_silent_gives_no_numbers_and_no_zeros() -> None:
    session, notes = FakeSession(), Notes()
    session.add_worker("asset")
    session.certain = False
    make_ticker(session, notes, lambda _: None).step(None)
    metadata = notes.events[0][1]
    assert metadata["slurm/certain"] is False
    assert not {"slurm/live", "slurm/ready", "slurm/pending", "slurm/granted_gpus"} & set(metadata)


def test_a_reconciliation_that_fails_is_recorded_and_tried_again_at_the_next_tick() -> None:
    session, notes = FakeSession(), Notes()
    session.fail["reconcile_workers"] = [LockTimeout("The session lock stayed taken.")]
    ticker = make_ticker(session, notes, two_workers)
    ticker.step(None)
    ticker.hurry()
    ticker.step(None)
    assert "could not be reconciled: The session lock stayed taken." in notes.sentences[0]
    assert "Submitted jobs 100, 101." in notes.sentences[1]


def test_quiet_ticks_are_recorded_every_ten_minutes_only() -> None:
    session, notes = FakeSession(), Notes()
    ticker = make_ticker(session, notes, two_workers)
    for second in range(0, 3600, 30):
        session.now = second
        ticker.step(None)
    assert len(session.called("inspect")) == 120
    assert len(notes.events) <= 8


def test_the_end_releases_every_intent_that_was_used() -> None:
    session, notes = FakeSession(), Notes()
    keys = iter(["first", "second"])
    ticker = make_ticker(session, notes, lambda _: WorkerIntent(key=next(keys), count=1))
    for _ in range(2):
        ticker.hurry()
        ticker.step(None)
    ticker.release()
    last = session.called("reconcile_workers")[-1]
    assert [(i.key, i.count) for i in last["intents"]] == [("first", 0), ("second", 0)]
    assert notes.sentences[-1] == "The work has ended; workers released: 100, 101."


def test_a_step_that_used_no_intent_releases_nothing() -> None:
    session, notes = FakeSession(), Notes()
    ticker = make_ticker(session, notes, None)
    ticker.step(None)
    ticker.release()
    assert session.called("reconcile_workers") == []
