"""The loop of every operation: what it commits, what it does when it is refused, what it reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dagster_slurm.allocations.lifecycle import plan_addition, plan_end
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.plan import CommitRefused, CommitRequest, Plan
from dagster_slurm.errors import HostUnreachable, LockTimeout
from dagster_slurm.session.commit_loop import ATTEMPTS, Outcome, carry_out, fresh_tokens
from dagster_slurm.testing.scheduler import SimulatedScheduler
from dagster_slurm.testing.simulation import SimulatedSite
from dagster_slurm_tests.builders import WORKER_SHAPE
from dagster_slurm_tests.unit.session.meddling import Meddled, Session, lost_before, lost_when_done


@pytest.fixture
def session() -> Session:
    return Session()


# -- the plain way -----------------------------------------------------------------------------------


def test_a_call_observes_commits_and_records(session: Session) -> None:
    site = Meddled(session.site, [])
    before = session.site.steps.count("ledger-in-place")
    outcome = session.call(3, site)
    assert outcome.submitted == ("2", "3", "4")
    assert outcome.recovered == ()
    assert outcome.held_back == ()
    assert site.observations == 1
    assert session.site.steps.count("ledger-in-place") == before + 2, "one commit, and one that records the ids"
    assert session.recorded() == ["2", "3", "4"]
    assert not session.site.files.open


def test_nothing_to_do_takes_one_look_and_no_lock(session: Session) -> None:
    session.call(2)
    site, steps = Meddled(session.site, []), len(session.site.steps)
    outcome = session.call(2, site)
    assert (outcome.submitted, outcome.plan.live) == ((), ("2", "3"))
    assert (site.observations, len(session.site.steps)) == (1, steps)
    assert session.pauses == []


def test_tokens_are_128_bits_and_never_the_same() -> None:
    drawn = fresh_tokens()
    some = [next(drawn) for _ in range(50)]
    assert len(set(some)) == 50
    assert all(len(token) == 32 and int(token, 16) >= 0 for token in some)


# -- refused -----------------------------------------------------------------------------------------


def test_J_9_two_processes_with_one_intent_submit_it_once(session: Session) -> None:
    other: list[Outcome] = []

    def other_first(commit: Callable[[CommitRequest], Any], request: CommitRequest) -> Any:
        other.append(session.call(3))
        return commit(request)

    outcome = session.call(3, Meddled(session.site, [other_first]))
    assert other[0].submitted == ("2", "3", "4")
    assert outcome.submitted == ()
    assert outcome.held_back == ()
    assert outcome.plan.live == ("2", "3", "4")
    assert session.workers() == ["2", "3", "4"]


def test_a_stale_commit_is_decided_again(session: Session) -> None:
    def late(commit: Callable[[CommitRequest], Any], request: CommitRequest) -> Any:
        session.scheduler.advance(61)
        return commit(request)

    outcome = session.call(1, Meddled(session.site, [late]))
    assert outcome.submitted == ("2",)
    assert outcome.held_back == ()


def test_a_session_that_begins_to_end_holds_back_at_once(session: Session) -> None:
    session.call(1)

    def ended(commit: Callable[[CommitRequest], Any], request: CommitRequest) -> Any:
        session.site.files.closing = True
        return commit(request)

    outcome = session.call(3, Meddled(session.site, [ended]))
    assert [reason.code for reason in outcome.held_back] == ["closing"]
    assert outcome.submitted == ()
    assert len(session.pauses) == 1
    assert session.workers() == ["2"]
    session.scheduler.end("2", "FAILED")
    again = session.call(1)
    assert [reason.code for reason in again.held_back] == ["closing"]
    assert len(session.pauses) == 1, "what cannot be committed is not tried"


def test_an_end_may_commit_to_a_session_that_is_ending(session: Session) -> None:
    session.site.files.closing = True
    outcome = carry_out(session.site, lambda o: plan_end(o, "sim"), even_if_closing=True, pause=session.pauses.append)
    assert not outcome.held_back
    assert session.scheduler.jobs["1"].state == "CANCELLED"


def test_K_4_a_controller_that_fell_silent_after_the_look_holds_back(session: Session) -> None:
    session.call(2)
    session.site.start_job("2")

    def silent(commit: Callable[[CommitRequest], Any], request: CommitRequest) -> Any:
        session.scheduler.silent = True
        return commit(request)

    outcome = session.call(3, Meddled(session.site, [silent]))
    assert [reason.code for reason in outcome.held_back] == ["scheduler_silent"]
    assert outcome.submitted == ()
    assert outcome.plan.live == ("2", "3")


def test_a_controller_that_only_blinked_holds_back_and_releases_nothing(session: Session) -> None:
    session.call(2)

    def blinked(commit: Callable[[CommitRequest], Any], request: CommitRequest) -> Any:
        return CommitRefused(code="scheduler_silent", detail="DOWN", observation=session.site.observe())

    outcome = session.call(1, Meddled(session.site, [blinked]), release=frozenset({"2"}))
    assert [str(reason) for reason in outcome.held_back] == ["The scheduler did not answer. It said: DOWN"]
    assert (outcome.released, outcome.expired) == ((), ())
    assert set(outcome.plan.live) == {"2", "3"}, "what was not released is still counted"
    assert session.workers() == ["2", "3"]


def test_attempts_that_are_used_up_are_a_value(session: Session) -> None:
    def refused(commit: Callable[[CommitRequest], Any], request: CommitRequest) -> Any:
        return CommitRefused(code="changed", detail="another commit came first", observation=session.site.observe())

    site = Meddled(session.site, [refused] * (ATTEMPTS + 5))
    outcome = session.call(3, site)
    assert [reason.code for reason in outcome.held_back] == ["contended"]
    assert "another commit came first" in str(outcome.held_back[0])
    assert outcome.submitted == ()
    assert len(site.around) == 5
    assert len(session.pauses) == ATTEMPTS
    assert all(0 <= pause <= 1 for pause in session.pauses)
    assert session.workers() == []


def test_a_lock_that_stays_taken_is_an_error_and_nothing_is_submitted(session: Session) -> None:
    session.site.files.lock_owner = "other"
    session.site.files.owner_alive = True
    session.site.files.lock_taken_at = session.scheduler.now
    with pytest.raises(LockTimeout, match="other"):
        session.call(1)
    assert session.workers() == []
    session.scheduler.advance(80)
    assert session.call(1).submitted == ("2",), "an abandoned lock is taken over"


def test_a_login_node_that_cannot_be_asked_is_an_error(session: Session) -> None:
    class Gone(Meddled):
        def observe(self) -> Observation:
            raise HostUnreachable("no route")

    with pytest.raises(HostUnreachable):
        session.call(1, Gone(session.site, []))


# -- refusals of the scheduler -------------------------------------------------------------------------


def test_I_5_a_refusal_stops_the_call_and_says_why(session: Session) -> None:
    session.scheduler.submission_answers = ["ok", "refused", "ok"]
    outcome = session.call(3)
    assert outcome.submitted == ("2",)
    assert [reason.code for reason in outcome.held_back] == ["refused"]
    assert "QOSMaxSubmitJobPerUserLimit" in str(outcome.held_back[0])
    assert len(session.scheduler.jobs) == 2
    assert session.call(3).submitted == ("3", "4")


def test_I_5_a_refusal_whose_reply_was_lost_is_not_tried_again_by_the_call(session: Session) -> None:
    session.scheduler.submission_answers = ["refused"]
    outcome = session.call(1, Meddled(session.site, [lost_when_done]))
    assert outcome.submitted == ()
    assert {reason.code for reason in outcome.held_back} == {"refused"}
    assert any("QOSMaxSubmitJobPerUserLimit" in str(reason) for reason in outcome.held_back)
    assert len(session.scheduler.jobs) == 1


def test_releases_are_done_although_submissions_are_refused(session: Session) -> None:
    session.call(1)
    session.site.start_job("2")
    session.scheduler.submission_answers = ["refused"]
    outcome = session.call(1, release=frozenset({"2"}))
    assert outcome.released == ("2",)
    assert session.scheduler.jobs["2"].token in session.site.files.drains


def test_J_8_a_dropped_submission_is_replaced_by_the_call_that_drops_it(session: Session) -> None:
    session.scheduler.submission_answers = ["nothing"]
    session.call(1)
    session.scheduler.advance(7200)
    outcome = session.call(1)
    assert outcome.submitted == ("2",)
    assert len(session.workers()) == 1


# -- other planners ------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [lost_before, lost_when_done])
def test_an_added_worker_is_added_once(session: Session, lost: Any) -> None:
    tokens: list[str] = []

    def decide(observation: Observation) -> Plan:
        assert observation.ledger is not None
        tokens.append(next(fresh_tokens()))
        return plan_addition(observation.ledger, observation, WORKER_SHAPE, tokens, 200)

    outcome = carry_out(Meddled(session.site, [lost]), decide, pause=session.pauses.append)
    assert outcome.submitted == ("2",)
    assert session.workers() == ["2"]


@pytest.mark.parametrize("lost", [lost_before, lost_when_done])
def test_a_session_is_created_once(lost: Any) -> None:
    site = SimulatedSite(SimulatedScheduler())
    outcome = carry_out(Meddled(site, [lost]), Session.make_head, pause=lambda _: None)
    assert outcome.submitted == ("1",)
    again = carry_out(site, Session.make_head, pause=lambda _: None)
    assert again.submitted == ()
    assert len(site.scheduler.jobs) == 1


def test_nothing_is_created_while_the_scheduler_is_silent() -> None:
    site = SimulatedSite(SimulatedScheduler(silent=True))
    outcome = carry_out(site, Session.make_head, pause=lambda _: None)
    assert [reason.code for reason in outcome.held_back] == ["scheduler_silent"]
    assert site.files.ledger is None
    assert outcome.submitted == ()


def test_a_session_that_was_refused_its_head_gets_one_from_a_later_call() -> None:
    site = SimulatedSite(SimulatedScheduler(submission_answers=["refused"]))
    outcome = carry_out(site, Session.make_head, pause=lambda _: None)
    assert [reason.code for reason in outcome.held_back] == ["refused"]
    assert carry_out(site, Session.make_head, pause=lambda _: None).submitted == ("1",)


def test_an_unanswered_creation_that_was_not_done_leaves_nothing() -> None:
    site = SimulatedSite(SimulatedScheduler())
    outcome = carry_out(Meddled(site, [lost_before] * ATTEMPTS), Session.make_head, pause=lambda _: None)
    assert [reason.code for reason in outcome.held_back] == ["contended"]
    assert (site.files.ledger, outcome.submitted) == (None, ())
