"""The loop of every operation: refused, lost and repeated commits, and what a call reports of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.allocations.lifecycle import plan_addition, plan_end, plan_head
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.plan import CommitRefused, CommitRequest, Committed, Plan, Submit
from dagster_slurm.allocations.request import WorkerRequest
from dagster_slurm.allocations.workers import plan_workers
from dagster_slurm.errors import HostUnreachable, LockTimeout, ReplyIncomplete, SessionDirectoryUnsafe
from dagster_slurm.session.commit_loop import ATTEMPTS, Outcome, carry_out, fresh_tokens
from dagster_slurm.testing.scheduler import SimulatedScheduler
from dagster_slurm.testing.simulation import SimulatedSite
from dagster_slurm_tests.builders import HEAD_SHAPE, WORKER_SHAPE

KEY = "w"


class Session:
    """A session on a simulated site, with any number of calling processes."""

    def __init__(self) -> None:
        self.scheduler = SimulatedScheduler()
        self.site = SimulatedSite(self.scheduler)
        self.pauses: list[float] = []
        outcome = carry_out(self.site, self.make_head, pause=self.pauses.append)
        assert outcome.submitted == ("1",)
        self.site.start_job("1")

    @staticmethod
    def make_head(observation: Observation) -> Plan:
        return plan_head(observation, "sim", HEAD_SHAPE, WORKER_SHAPE, fresh_tokens())

    def call(self, count: int, site: Any = None, *, pending_timeout: float | None = None, **request: Any) -> Outcome:
        """One ``reconcile_workers``, as the session makes it."""
        intent = WorkerIntent(KEY, count, drain_timeout=30, pending_timeout=pending_timeout)
        asked = WorkerRequest(intents=(intent,), **request)
        tokens: set[str] = set()
        expired: set[str] = set()

        def decide(observation: Observation) -> Plan:
            assert observation.ledger is not None
            mine = attrs.evolve(asked, own_tokens=frozenset(tokens), own_expired=frozenset(expired))
            plan = plan_workers(observation.ledger, observation, mine, fresh_tokens())
            tokens.update(effect.token for effect in plan.effects if isinstance(effect, Submit))
            expired.update(plan.expired)
            return plan

        return carry_out(site or self.site, decide, pause=self.pauses.append)

    def workers(self) -> list[str]:
        """Jobs that work or will, the head apart."""
        return [job.slurm_job_id for job in self.site.working() if job.slurm_job_id != "1"]

    def recorded(self) -> list[str]:
        ledger = self.site.read()
        assert ledger is not None
        return [record.slurm_job_id for record in ledger.workers]


@pytest.fixture
def session() -> Session:
    return Session()


@attrs.define
class Meddled:
    """A site where something happens around each commit.

    Attributes:
        site: The site.
        around: For each commit in turn: takes the commit and its request, gives the answer.
        observations: Looks taken so far.
    """

    site: SimulatedSite
    around: list[Callable[[Callable[[CommitRequest], Any], CommitRequest], Any]]
    observations: int = 0

    def observe(self) -> Observation:
        self.observations += 1
        return self.site.observe()

    def commit(self, request: CommitRequest) -> Committed | CommitRefused:
        if not self.around:
            return self.site.commit(request)
        answer: Committed | CommitRefused = self.around.pop(0)(self.site.commit, request)
        return answer


def lost_when_done(commit: Callable[[CommitRequest], Any], request: CommitRequest) -> Any:
    commit(request)
    raise ReplyIncomplete("the reply was cut")


def lost_before(commit: Callable[[CommitRequest], Any], request: CommitRequest) -> Any:
    raise HostUnreachable("no route")


# -- the plain way -----------------------------------------------------------------------------------


def test_a_call_observes_commits_and_records(session: Session) -> None:
    site = Meddled(session.site, [])
    before = session.site.steps.count("in-place")
    outcome = session.call(3, site)
    assert outcome.submitted == ("2", "3", "4")
    assert outcome.recovered == ()
    assert outcome.held_back == ()
    assert site.observations == 1
    assert session.site.steps.count("in-place") == before + 2, "one commit, and one that records the ids"
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


# -- lost replies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [lost_before, lost_when_done])
def test_a_lost_reply_submits_once_and_reports_it_as_its_own(session: Session, lost: Any) -> None:
    outcome = session.call(3, Meddled(session.site, [lost]))
    assert outcome.submitted == ("2", "3", "4")
    assert outcome.recovered == ()
    assert len(session.scheduler.jobs) == 4
    assert session.recorded() == ["2", "3", "4"]


@pytest.mark.parametrize("kind", ["die", "lose"])
@pytest.mark.parametrize("step", range(24))
def test_J_1_a_commit_that_breaks_off_at_any_step_never_submits_twice(session: Session, kind: str, step: int) -> None:
    session.site.fault = (kind, step)
    first = session.call(2)
    tokens = [job.token for job in session.scheduler.jobs.values()]
    assert len(tokens) == len(set(tokens))
    assert len(session.workers()) <= 2
    assert not first.recovered
    assert set(first.submitted) <= set(session.workers())
    for _ in range(3):
        session.scheduler.advance(130)
        session.call(2)
    assert len(session.workers()) == 2
    assert sorted(session.recorded()) == sorted(session.workers())


@pytest.mark.parametrize("step", range(24))
def test_a_suspended_commit_that_goes_on_later_finds_nothing_to_do(session: Session, step: int) -> None:
    session.site.fault = ("pause", step)
    try:
        session.call(2)
    except LockTimeout:
        session.scheduler.advance(80)
        session.call(2)
    session.site.wake()
    for _ in range(3):
        session.scheduler.advance(130)
        session.call(2)
    assert len(session.workers()) == 2
    assert sorted(session.recorded()) == sorted(session.workers())


def test_L_5_a_lost_reply_does_not_widen_the_budget(session: Session) -> None:
    outcome = session.call(5, Meddled(session.site, [lost_when_done]), max_submissions=2)
    assert outcome.submitted == ("2", "3")
    assert [reason.code for reason in outcome.held_back] == ["budget"]
    assert len(session.scheduler.jobs) == 3


def test_a_lost_reply_does_not_replace_what_expired(session: Session) -> None:
    session.call(1)
    session.scheduler.advance(120)
    outcome = session.call(1, Meddled(session.site, [lost_when_done]), pending_timeout=60)
    assert outcome.expired == ("2",)
    assert outcome.submitted == ()
    assert session.call(1, pending_timeout=60).submitted == ("3",)


@pytest.mark.parametrize("lost", [lost_before, lost_when_done])
def test_a_lost_release_is_reported_once_it_is_seen(session: Session, lost: Any) -> None:
    session.call(2)
    session.site.start_job("2")
    session.site.start_job("3")
    outcome = session.call(0, Meddled(session.site, [lost]))
    assert sorted(outcome.released) == ["2", "3"]
    assert outcome.plan.live == ()
    assert set(session.site.files.drains) == {session.scheduler.jobs[n].token for n in ("2", "3")}


def test_releases_of_an_earlier_lost_commit_are_reported_although_a_later_one_was_refused(session: Session) -> None:
    session.call(1)
    session.site.start_job("2")
    pending: list[CommitRequest] = []

    def lost_and_late(commit: Callable[[CommitRequest], Any], request: CommitRequest) -> Any:
        pending.append(request)
        raise ReplyIncomplete("the reply was cut")

    def after_the_late_one(commit: Callable[[CommitRequest], Any], request: CommitRequest) -> Any:
        commit(pending[0])
        return commit(request)

    outcome = session.call(0, Meddled(session.site, [lost_and_late, after_the_late_one]))
    assert outcome.released == ("2",)


def test_a_lost_release_is_known_by_its_deadline_after_another_commit(session: Session) -> None:
    session.call(2)
    session.site.start_job("2")
    session.site.start_job("3")

    def lost_then_another(commit: Callable[[CommitRequest], Any], request: CommitRequest) -> Any:
        commit(request)
        session.scheduler.end("3", "FAILED")
        session.call(0)
        raise ReplyIncomplete("the reply was cut")

    outcome = session.call(1, Meddled(session.site, [lost_then_another]))
    assert outcome.released == ("3",)


def test_what_another_process_released_is_not_reported_as_ones_own(session: Session) -> None:
    session.call(1)
    session.site.start_job("2")

    def another_instead(commit: Callable[[CommitRequest], Any], request: CommitRequest) -> Any:
        session.scheduler.advance(7)
        assert session.call(0).released == ("2",)
        raise HostUnreachable("no route")

    assert session.call(0, Meddled(session.site, [another_instead])).released == ()


def test_commits_that_are_never_answered_are_a_value_and_what_was_done_is_reported(session: Session) -> None:
    site = Meddled(session.site, [lost_when_done, *[lost_before] * ATTEMPTS])
    outcome = session.call(2, site)
    assert outcome.submitted == ("2", "3"), "their ids are in the files, recorded or not"
    assert [reason.code for reason in outcome.held_back] == ["contended"]
    assert set(outcome.plan.live) == {"2", "3"}
    assert session.recorded() == []
    following = session.call(2)
    assert following.submitted == ()
    assert following.recovered == ("2", "3"), "another call recorded what it did not submit itself"


# -- what was submitted and recovered ------------------------------------------------------------------


def test_J_1_what_a_killed_call_left_behind_is_recovered_by_the_next(session: Session) -> None:
    session.scheduler.submission_answers = ["lost"]
    first = session.call(1)
    assert first.submitted == ()
    assert [reason.code for reason in first.held_back] == ["unresolved"]
    assert "Socket timed out" in str(first.held_back[0])
    session.scheduler.advance(5)
    second = session.call(1)
    assert (second.recovered, second.submitted) == (("2",), ())
    assert second.plan.live == ("2",)
    assert session.call(1).recovered == ()


def test_own_submissions_are_reported_when_another_process_recorded_them(session: Session) -> None:
    other: list[Outcome] = []

    def recorded_by_another(commit: Callable[[CommitRequest], Any], request: CommitRequest) -> Any:
        other.append(session.call(2))
        return commit(request)

    site = Meddled(session.site, [lambda commit, request: commit(request), recorded_by_another])
    outcome = session.call(2, site)
    assert outcome.submitted == ("2", "3")
    assert outcome.recovered == ()
    assert other[0].recovered == ("2", "3")
    assert other[0].submitted == ()
    assert session.recorded() == ["2", "3"]


@pytest.mark.parametrize(
    "error",
    [
        ReplyIncomplete("cut"),
        LockTimeout("taken"),
        SessionDirectoryUnsafe("no space left"),
    ],
)
def test_recording_that_fails_takes_nothing_from_what_was_submitted(session: Session, error: Exception) -> None:
    def fails(commit: Callable[[CommitRequest], Any], request: CommitRequest) -> Any:
        raise error

    outcome = session.call(2, Meddled(session.site, [lambda commit, request: commit(request), fails]))
    assert outcome.submitted == ("2", "3")
    assert session.recorded() == []
    assert session.call(2).recovered == ("2", "3")


def test_recording_goes_on_after_other_commits_and_stops_in_silence(session: Session) -> None:
    def changed(commit: Callable[[CommitRequest], Any], request: CommitRequest) -> Any:
        return CommitRefused(code="changed", detail="", observation=session.site.observe())

    def plain(commit: Callable[[CommitRequest], Any], request: CommitRequest) -> Any:
        return commit(request)

    assert session.call(1, Meddled(session.site, [plain, changed, changed])).submitted == ("2",)
    assert session.recorded() == ["2"], "recorded by a later attempt"

    def silent(commit: Callable[[CommitRequest], Any], request: CommitRequest) -> Any:
        return CommitRefused(code="scheduler_silent", detail="", observation=session.site.observe())

    assert session.call(2, Meddled(session.site, [plain, silent])).submitted == ("3",)
    assert session.recorded() == ["2"]
    assert session.call(2, Meddled(session.site, [plain, *[changed] * ATTEMPTS])).recovered == ("3",)


def test_recording_gives_up_after_as_many_attempts(session: Session) -> None:
    def changed(commit: Callable[[CommitRequest], Any], request: CommitRequest) -> Any:
        return CommitRefused(code="changed", detail="", observation=session.site.observe())

    site = Meddled(session.site, [lambda commit, request: commit(request), *[changed] * (ATTEMPTS + 3)])
    assert session.call(1, site).submitted == ("2",)
    assert len(site.around) == 3


def test_recording_ends_when_the_records_are_gone(session: Session) -> None:
    def gone(commit: Callable[[CommitRequest], Any], request: CommitRequest) -> Any:
        observation = attrs.evolve(session.site.observe(), ledger=None)
        return CommitRefused(code="changed", detail="", observation=observation)

    outcome = session.call(1, Meddled(session.site, [lambda commit, request: commit(request), gone]))
    assert outcome.submitted == ("2",)


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
        return plan_addition(observation.ledger, observation, WORKER_SHAPE, tokens)

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
