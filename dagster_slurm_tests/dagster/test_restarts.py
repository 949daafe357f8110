"""A payload whose head ends: the next head, the next attempt, and where that stops; on a played session."""

from __future__ import annotations

import attrs
import pytest

from dagster_slurm.allocations.plan import HeldBack, HeldBackReasons
from dagster_slurm.allocations.snapshot import AllocationSnapshot, SessionSnapshot
from dagster_slurm.allocations.succession import HeadResult
from dagster_slurm.errors import HostUnreachable, PayloadEndedWithHead, PayloadFailed
from dagster_slurm.head_keeper import STEP_SECONDS, SUCCESSORS_ALLOWED, HeadKeeper
from dagster_slurm_tests.dagster.fakes import (
    CLOSED,
    OPENED,
    FakeSession,
    Notes,
    Step,
    failed,
    message,
    prints,
    running,
    says,
    succeeded,
    waits,
)
from dagster_slurm_tests.dagster.test_run_loop import follow, one_worker


def leader(job_id: str) -> AllocationSnapshot:
    return AllocationSnapshot(slurm_job_id=job_id, role="head", state="RUNNING", committed=True)


def head_ends(state: str = "NODE_FAIL", *next_heads: AllocationSnapshot) -> Step:
    def step(session: FakeSession) -> None:
        session.head = attrs.evolve(session.head, state=state, committed=False)
        session.heads = list(next_heads)
        session.now += 31

    return step


def payload_ends_with_head(session: FakeSession) -> None:
    failed(session)
    session.ended_with_head, session.message = True, "ended with its head: told to end (SIGTERM)"


def taken_by(job_id: str) -> Step:
    def step(session: FakeSession) -> None:
        session.taken_by = job_id
        running(session)

    return step


def test_a_payload_that_ended_with_its_head_is_run_again_on_the_next_head() -> None:
    ran = follow(
        running,
        says(OPENED, CLOSED),
        prints("first\n"),
        head_ends("CANCELLED", leader("2")),
        payload_ends_with_head,
        waits(1),
        taken_by("2"),
        prints("second\n"),
        says(OPENED, CLOSED),
        succeeded,
        policy=one_worker,
        restarts=1,
    )
    ran.run()
    starts = ran.session.called("start_payload")
    assert len({start["payload_id"] for start in starts}) == 2
    assert [start["env"]["ID"] for start in starts] == [start["payload_id"] for start in starts]
    assert ran.lines == ["first", "second"]
    assert ran.handler.handled == ["opened", "opened", "closed"]
    assert len(ran.session.called("ensure_head")) == 1
    said = "\n".join(ran.notes.lines)
    assert "run again on the next head (1 of at most 1 times)" in said
    assert "The head is job 2." in said
    # The workers of the step were not released in between.
    assert [call["intents"][0].count for call in ran.session.called("reconcile_workers")][-1] == 0
    assert [call["intents"][0].count for call in ran.session.called("reconcile_workers")].count(0) == 1


def test_a_head_that_is_gone_without_a_word_ends_its_payload_as_well() -> None:
    ran = follow(running, head_ends("NODE_FAIL", leader("2")), *[waits(3)] * 5, taken_by("2"), succeeded, restarts=1)
    ran.run()
    assert len(ran.session.called("start_payload")) == 2
    assert len(ran.session.called("cancel_payload")) == 1, "should it live after all, it stops"


def test_restarts_are_bounded_and_the_error_says_that_the_head_ended() -> None:
    script = [running, head_ends("TIMEOUT", leader("2")), payload_ends_with_head]
    ran = follow(*script, taken_by("2"), head_ends("TIMEOUT", leader("3")), payload_ends_with_head, restarts=1)
    with pytest.raises(PayloadEndedWithHead, match=r"ended with its head: told to end \(SIGTERM\)"):
        ran.run()
    assert len(ran.session.called("start_payload")) == 2
    ran = follow(*script, restarts=0)
    with pytest.raises(PayloadEndedWithHead):
        ran.run()
    assert len(ran.session.called("start_payload")) == 1


def test_a_payload_that_failed_by_itself_is_not_run_again() -> None:
    ran = follow(running, failed, restarts=3)
    with pytest.raises(PayloadFailed) as caught:
        ran.run()
    assert not isinstance(caught.value, PayloadEndedWithHead)
    assert len(ran.session.called("start_payload")) == 1


def test_a_message_cut_off_by_the_heads_end_does_not_spoil_the_next_attempt() -> None:
    ran = follow(
        running,
        says(OPENED, b'{"method": "lo'),
        head_ends("CANCELLED", leader("2")),
        payload_ends_with_head,
        taken_by("2"),
        says(OPENED, message("log", message="x", level="INFO"), CLOSED),
        succeeded,
        restarts=1,
    )
    ran.run()
    assert ran.handler.handled == ["opened", "opened", "log", "closed"]
    assert ran.handler.errors == 0


@pytest.mark.parametrize("state", ["NODE_FAIL", "PREEMPTED", "TIMEOUT"])
def test_a_head_that_was_taken_away_before_it_took_the_payload_is_replaced(state: str) -> None:
    pending = attrs.evolve(leader("2"), state="PENDING")
    ran = follow(head_ends(state, pending), *[waits(40)] * 3, taken_by("2"), succeeded, restarts=1)
    ran.run()
    assert len(ran.session.called("start_payload")) == 1
    assert any("A new head was submitted: job 2." in line for line in ran.notes.lines)


@pytest.mark.parametrize(("state", "restarts"), [("FAILED", 3), ("CANCELLED", 3), ("NODE_FAIL", 0)])
def test_a_head_that_failed_by_itself_is_not_followed_by_a_queue_of_them(state: str, restarts: int) -> None:
    ran = follow(head_ends(state), restarts=restarts)
    with pytest.raises(PayloadFailed, match=f"ended \\({state}\\) before it took the payload"):
        ran.run()
    assert ran.session.called("ensure_head") == []


def test_a_successor_that_ended_is_nothing_to_wait_for() -> None:
    ran = follow(head_ends("FAILED"), restarts=3)
    ran.session.successor = AllocationSnapshot(slurm_job_id="2", role="successor", state="FAILED", committed=False)
    with pytest.raises(PayloadFailed, match=r"ended \(FAILED\) before it took the payload"):
        ran.run()
    assert ran.session.called("ensure_head") == []


def test_a_session_that_finds_no_other_head_fails_the_step_after_a_while() -> None:
    ran = follow(running, head_ends("TIMEOUT"), payload_ends_with_head, *[waits(20)] * 4, restarts=3)
    with pytest.raises(PayloadFailed, match="before it took the payload"):
        ran.run()
    assert ran.session.now < 200
    assert any("needs a successor: none" in line for line in ran.notes.lines)


# -- the keeper --------------------------------------------------------------------------------------


class Elections:
    """Plays the answers of a session."""

    def __init__(self, *answers: HeadResult | HostUnreachable) -> None:
        self.answers = list(answers)

    def submit_successor(self) -> HeadResult:
        return self.ensure_head()

    def ensure_head(self) -> HeadResult:
        answer = self.answers.pop(0)
        if isinstance(answer, HostUnreachable):
            raise answer
        return answer


def needy() -> FakeSession:
    session = FakeSession()
    head_ends("TIMEOUT")(session)
    return session


def test_an_election_under_way_is_followed_quickly_and_said_once() -> None:
    claimed = HeadResult(standing="claimed", head_job_id="1", claimed="7")
    elections = Elections(claimed, claimed, HeadResult(standing="leads", head_job_id="7"))
    notes, snapshot = Notes(), needy().inspect()
    keeper = HeadKeeper(elections, notes.logger)
    assert not keeper.step(snapshot, 100.0)
    assert keeper.electing
    assert not keeper.step(snapshot, 100.5)
    assert len(elections.answers) == 2, "not before its time"
    assert not keeper.step(snapshot, 100.0 + STEP_SECONDS)
    assert keeper.step(snapshot, 100.0 + 2 * STEP_SECONDS)
    assert not keeper.electing
    assert [line.split(":")[0] for line in notes.lines] == ["Job 7 is to be the next head", "The head is job 7."]


def test_a_session_that_needs_nothing_is_not_asked() -> None:
    keeper = HeadKeeper(Elections(), Notes().logger)
    assert not keeper.step(None, 1.0)
    assert not keeper.step(FakeSession().inspect(), 2.0)


def test_one_snapshot_is_acted_on_once_and_a_failure_is_told() -> None:
    none = HeadResult(
        standing="none", head_job_id="1", held_back=HeldBackReasons((HeldBack("refused", "No such partition."),))
    )
    elections = Elections(HostUnreachable("gone"), none, none)
    notes, session = Notes(), needy()
    keeper = HeadKeeper(elections, notes.logger)
    snapshot = session.inspect()
    keeper.step(snapshot, 1.0)
    keeper.step(snapshot, 9.0)
    assert len(elections.answers) == 2
    keeper.step(session.inspect(), 30.0)
    keeper.step(session.inspect(), 60.0)
    assert notes.lines == [
        "The head could not be seen to; trying again. gone",
        "The head's job 1 needs a successor: none. No such partition.",
    ]


def near_its_end(left: int | None, **successor: object) -> SessionSnapshot:
    head = attrs.evolve(leader("1"), time_left_seconds=left)
    next_one = AllocationSnapshot(slurm_job_id="2", role="successor", **successor) if successor else None  # type: ignore[arg-type]
    return attrs.evolve(FakeSession().inspect(), head=head, successor=next_one, allocations=(head,))


def test_the_next_head_is_queued_once_the_walltime_runs_low() -> None:
    queued = HeadResult(standing="leads", head_job_id="1", submitted=("2",))
    elections, notes = Elections(queued, queued), Notes()
    keeper = HeadKeeper(elections, notes.logger, 1800)
    for quiet in (near_its_end(1801), near_its_end(None), near_its_end(900, state="PENDING", committed=True)):
        keeper.step(quiet, 1.0)
    keeper.step(near_its_end(900, state=None, committed=None), 2.0)
    assert len(elections.answers) == 2
    keeper.step(near_its_end(1800), 3.0)
    assert notes.lines == ["The next head: job 2."]
    keeper.step(near_its_end(900, state="FAILED", committed=False), 4.0)
    assert elections.answers == []
    HeadKeeper(elections, notes.logger).step(near_its_end(10), 5.0)


def test_a_successor_that_cannot_be_had_is_not_asked_for_without_end() -> None:
    refused = HeadResult(
        standing="leads", head_job_id="1", held_back=HeldBackReasons((HeldBack("refused", "No such account."),))
    )
    elections, notes = Elections(HostUnreachable("gone"), *[refused] * SUCCESSORS_ALLOWED), Notes()
    keeper = HeadKeeper(elections, notes.logger, 1800)
    for _ in range(9):
        keeper.step(near_its_end(900), 1.0)
    assert elections.answers == []
    elections.answers = [refused]
    later = near_its_end(900)
    keeper.step(attrs.evolve(later, head=attrs.evolve(later.head, slurm_job_id="2")), 2.0)
    assert elections.answers == [], "the next head has successors of its own"
    assert notes.lines == [
        "The next head could not be queued; trying again. gone",
        "The next head: not submitted. No such account.",
    ]
