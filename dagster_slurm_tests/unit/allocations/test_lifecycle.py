"""Creation, one more worker, outcomes, the end: the smaller planners."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import pytest

from dagster_slurm.allocations.ledger import Ledger
from dagster_slurm.allocations.lifecycle import (
    end_by_name,
    is_over,
    live_jobs,
    open_tokens,
    plan_addition,
    plan_end,
    plan_head,
    plan_outcomes,
    plan_upkeep,
)
from dagster_slurm.allocations.observation import Fate, Observation
from dagster_slurm.allocations.plan import (
    Cancel,
    Close,
    Committed,
    Forget,
    NotTried,
    Plan,
    Revoke,
    SubmissionOutcome,
    Submit,
)
from dagster_slurm.allocations.result import EndResult
from dagster_slurm.errors import SessionClosing, SessionRecordsLost
from dagster_slurm.slurm.replies import Ambiguous, Listing, Refused, Submitted
from dagster_slurm_tests.builders import (
    HEAD_SHAPE,
    JOB_NAME,
    KEY,
    NOW,
    SESSION,
    UNREACHABLE,
    WORKER_SHAPE,
    codes,
    effects,
    fresh,
    head,
    job,
    ledger,
    look,
    record,
    silent,
    submission,
    token,
    trace,
)

EMPTY = Listing(answered=True)


def create(observation: Observation) -> Plan:
    """Make sure that the session has a head."""
    return plan_head(observation, SESSION, HEAD_SHAPE, WORKER_SHAPE, fresh())


# -- creation --------------------------------------------------------------------------------------


def test_a_session_is_made_with_its_head_on_its_way() -> None:
    plan = create(look(None, listing=EMPTY))
    (submit,) = plan.effects
    assert isinstance(submit, Submit)
    assert (submit.role, submit.intent) == ("head", None)
    assert (plan.ledger.session_id, plan.ledger.job_name) == (SESSION, JOB_NAME)
    assert plan.ledger.worker_template == WORKER_SHAPE.digest
    assert set(plan.ledger.shapes) == {WORKER_SHAPE.digest, HEAD_SHAPE.digest}
    assert plan.ledger.worker_submissions[submit.token].dated is False
    assert plan.ledger.head is None


def test_J_9_a_second_process_finds_the_head_on_its_way_or_running() -> None:
    first = create(look(None, listing=EMPTY))
    opened = look(first.ledger, listing=EMPTY, traces={first.effects[0].token: trace(Fate.READY)})  # type: ignore[union-attr]
    assert not effects(create(opened), Submit)
    assert not create(look(ledger())).changes(ledger())
    assert not effects(create(look(ledger(head=None, successor=head(2)), job(2))), Submit)


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "SOMETHING_NEW"])
def test_jobs_without_records_are_a_typed_error(state: str) -> None:
    with pytest.raises(SessionRecordsLost, match="its jobs live: 1"):
        create(look(None, head_job=job(1, state)))


def test_ended_jobs_of_the_name_do_not_stand_in_the_way() -> None:
    assert len(effects(create(look(None, head_job=job(1, "FAILED"))), Submit)) == 1


def test_a_session_is_never_made_while_the_scheduler_is_silent() -> None:
    plan = create(silent(None))
    assert codes(plan) == ("scheduler_silent",)
    assert not plan.changes(None)


def test_a_session_without_a_head_gets_none_while_the_scheduler_is_silent() -> None:
    books = ledger(head=None)
    plan = create(silent(books))
    assert codes(plan) == ("scheduler_silent",)
    assert not plan.changes(books)
    assert not create(silent(ledger())).changes(ledger()), "a head that nobody can see may be alive"


def test_only_a_head_that_is_known_to_have_ended_is_replaced() -> None:
    ended = create(look(ledger(), head_job=job(1, "FAILED")))
    (submit,) = effects(ended, Submit)
    adopted = ended.ledger.with_adopted(submit.token, "2", NOW)
    assert adopted.head is not None
    assert adopted.head.slurm_job_id == "2"
    assert [r.slurm_job_id for r in adopted.predecessors] == ["1"]


def test_a_refused_head_is_told() -> None:
    opened = ledger(head=None, opened=(submission(1, role="head", intent=None, dated=False),))
    files = {token(1): trace(outcome=Refused("sbatch: error: Invalid account"))}
    plan = create(look(opened, listing=EMPTY, traces=files))
    assert codes(plan) == ("refused",)
    assert effects(plan, Revoke) == [Revoke(token(1), Fate.SENT)]


def test_a_session_that_is_ending_is_a_typed_error() -> None:
    with pytest.raises(SessionClosing, match="it starts no new work"):
        create(look(ledger(), closing=True))


# -- one more worker -------------------------------------------------------------------------------


def add(observation: Observation, *tokens: str) -> Plan:
    """Add one worker; the tokens are those of this call's attempts."""
    assert observation.ledger is not None
    return plan_addition(observation.ledger, observation, WORKER_SHAPE, tokens, 200)


def test_an_added_worker_belongs_to_no_intent_and_never_expires() -> None:
    plan = add(look(ledger()), token(20))
    assert effects(plan, Submit) == [Submit(token(20), "worker", None, WORKER_SHAPE.digest)]
    adopted = plan.ledger.with_adopted(token(20), "20", NOW).record("20")
    assert adopted is not None
    assert (adopted.intent, adopted.submitted_at) == (None, None)


@pytest.mark.parametrize(
    "books",
    [
        ledger(record(20, intent=None)),
        ledger(opened=(submission(20, intent=None),)),
        ledger(revoked_tokens=(token(20),)),
    ],
)
def test_an_earlier_attempt_that_took_hold_or_was_refused_is_not_repeated(books: Ledger) -> None:
    plan = add(look(books, job(20), traces={token(20): trace()}), token(20), token(21))
    assert not effects(plan, Submit)


def test_nothing_is_added_in_silence_or_at_the_end() -> None:
    assert codes(add(silent(ledger()), token(20))) == ("scheduler_silent",)
    ending = add(look(ledger(record(7, drain_deadline=1)), job(7), closing=True), token(20))
    assert codes(ending) == ("closing",)
    assert not ending.changes(ledger(record(7, drain_deadline=1)))


def test_an_added_worker_counts_against_the_sessions_limit() -> None:
    books = ledger(record(2, intent=None), opened=(submission(3),))
    seen = look(books, job(2), traces={token(3): trace()})
    full = plan_addition(books, seen, WORKER_SHAPE, [token(20)], 3)
    assert codes(full) == ("limit",)
    assert full.held_back[0].sentence == "A session has at most 3 live allocations; it has 3."
    assert not effects(full, Submit)
    assert effects(plan_addition(books, seen, WORKER_SHAPE, [token(20)], 4), Submit)


# -- outcomes --------------------------------------------------------------------------------------


def noted(*answers: Submitted | Refused | Ambiguous | NotTried) -> Plan:
    """What is noted of a commit whose submissions 20, 21, ... met these answers."""
    opened = tuple(submission(20 + n) for n in range(len(answers)))
    outcomes: Mapping[str, SubmissionOutcome] = {
        token(20 + n): SubmissionOutcome(answer, NOW + n) for n, answer in enumerate(answers)
    }
    return plan_outcomes(ledger(opened=opened), Committed(submissions=outcomes))


def test_job_ids_move_into_the_ledger_with_the_time_of_their_submission() -> None:
    plan = noted(Submitted("20", None), Submitted("21", None))
    assert [(r.slurm_job_id, r.submitted_at, r.intent) for r in plan.ledger.workers] == [
        ("20", NOW, KEY),
        ("21", NOW + 1, KEY),
    ]
    assert not plan.ledger.worker_submissions
    assert plan.effects == (Forget((token(20), token(21))),)
    assert plan.held_back == ()


def test_I_5_a_refusal_is_dropped_and_its_text_surfaces() -> None:
    plan = noted(Refused("sbatch: error: QOSMaxSubmitJobPerUserLimit"), NotTried("an earlier one failed"))
    assert codes(plan) == ("refused",)
    assert "QOSMaxSubmitJobPerUserLimit" in str(plan.held_back[0])
    assert plan.effects == (Revoke(token(20), Fate.SENT), Forget((token(20), token(21))))
    assert plan.ledger.revoked_tokens == (token(20), token(21))


def test_J_1_an_ambiguous_submission_stays_open() -> None:
    plan = noted(Submitted("20", None), Ambiguous("Socket timed out"), NotTried("an earlier one failed"))
    assert codes(plan) == ("unresolved",)
    assert list(plan.ledger.worker_submissions) == [token(21)]
    assert plan.effects == (Forget((token(20), token(22))),)


def test_only_doubt_leaves_nothing_to_note() -> None:
    plan = noted(Ambiguous("Socket timed out"))
    assert not plan.changes(ledger(opened=(submission(20),)))


def test_submissions_that_ran_out_of_time_are_said() -> None:
    plan = noted(Submitted("20", None), NotTried("its time was up"), NotTried("its time was up"))
    assert codes(plan) == ("contended",)
    assert str(plan.held_back[0]).startswith("2 submission(s) were not begun")


def test_an_outcome_that_somebody_else_recorded_changes_nothing() -> None:
    books = ledger(record(20))
    answer = Committed(submissions={token(20): SubmissionOutcome(Submitted("20", None), NOW)})
    assert not plan_outcomes(books, answer).changes(books)


# -- the end ---------------------------------------------------------------------------------------


def test_the_end_cancels_by_name_and_settles_open_submissions() -> None:
    books = ledger(record(7, drain_deadline=NOW - 5), opened=(submission(8, prepared_at=NOW - 500),))
    plan = plan_end(look(books, job(7), traces={token(8): trace(Fate.SENT)}), SESSION)
    assert plan.effects == (Revoke(token(8), Fate.SENT), Close())
    assert not effects(plan, Cancel), "everything is cancelled by name"


def test_the_end_of_a_session_without_records_still_cancels_by_name() -> None:
    plan = plan_end(look(None, listing=EMPTY), SESSION)
    assert plan.effects == (Close(),)
    assert plan.ledger.job_name == JOB_NAME
    assert plan.changes(None)


def test_the_end_is_over_when_a_listing_shows_nothing_and_nothing_is_open() -> None:
    over = look(ledger(), head_job=job(1, "CANCELLED"), closing=True)
    assert is_over(over)
    assert not plan_end(over, SESSION).changes(over.ledger)

    not_closed = attrs.evolve(over, closing=False)
    assert plan_end(not_closed, SESSION).effects == (Close(),)

    for unfinished in (
        look(ledger(), closing=True),
        look(ledger(), head_job=job(1, "WHO_KNOWS"), closing=True),
        silent(ledger(), closing=True),
        look(ledger(opened=(submission(8),)), head_job=job(1, "CANCELLED"), traces={token(8): trace()}, closing=True),
    ):
        assert not is_over(unfinished)
        assert Close() in plan_end(unfinished, SESSION).effects


def test_the_end_in_silence_is_repeated_and_changes_no_record() -> None:
    books = ledger(record(7))
    plan = plan_end(silent(books, UNREACHABLE), SESSION)
    assert plan.effects == (Close(),)
    assert plan.ledger == books


def test_what_is_left_is_named() -> None:
    books = ledger(record(7), opened=(submission(8),))
    seen = look(books, job(7), job(9, None), job(10, "FAILED"), traces={token(8): trace()})
    assert live_jobs(seen.listing) == ("1", "7", "9")
    assert open_tokens(seen) == (token(8),)
    assert open_tokens(look(None)) == ()


def test_upkeep_leaves_a_session_that_is_ending_to_its_end() -> None:
    books = ledger(record(7, drain_deadline=NOW - 5))
    assert not plan_upkeep(books, look(books, job(7), closing=True)).changes(books)


@pytest.mark.parametrize(
    ("listing", "complete", "live"),
    [
        (look(None, job(7, "COMPLETED"), head_job=job(1, "CANCELLED")).listing, True, ()),
        (look(None, job(7, "PENDING"), head_job=job(1, "COMPLETED")).listing, False, ("7",)),
        (silent(None).listing, False, ()),
    ],
)
def test_without_records_a_listing_by_name_tells_the_end(
    listing: Listing, complete: bool, live: tuple[str, ...]
) -> None:
    assert end_by_name(listing) == EndResult(complete=complete, live=live, by_name=True)
