"""Commits whose reply is lost, that break off or go on later: nothing twice, and everything reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from dagster_slurm.allocations.plan import CommitRefused, CommitRequest
from dagster_slurm.errors import HostUnreachable, LockTimeout, ReplyIncomplete, SessionDirectoryUnsafe
from dagster_slurm.session.commit_loop import ATTEMPTS, Outcome
from dagster_slurm_tests.unit.session.meddling import Meddled, Session, lost_before, lost_when_done


@pytest.fixture
def session() -> Session:
    return Session()


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
