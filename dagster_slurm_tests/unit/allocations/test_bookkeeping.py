"""What every decision begins with: open submissions, dropped tokens, deadlines, old records."""

from __future__ import annotations

import attrs
import pytest

from dagster_slurm.allocations.bookkeeping import SETTLE_SECONDS, bring_up_to_date
from dagster_slurm.allocations.ledger import ENDED_RECORDS_KEPT, REVOKED_TOKENS_KEPT
from dagster_slurm.allocations.lifecycle import plan_upkeep
from dagster_slurm.allocations.observation import Fate, SubmissionTrace
from dagster_slurm.allocations.plan import Archive, Cancel, Drain, Forget, Revoke, Submit
from dagster_slurm.slurm.replies import Ambiguous, Refused, Submitted
from dagster_slurm_tests.builders import (
    KEY,
    NOW,
    codes,
    effects,
    intent,
    job,
    later,
    ledger,
    look,
    reconcile,
    record,
    silent,
    snapshot,
    submission,
    token,
    trace,
)

TIMED_OUT = Ambiguous("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")

# -- open submissions ------------------------------------------------------------------------------


def test_J_1_a_submission_without_an_answer_counts_until_its_job_is_found() -> None:
    doubt = look(ledger(opened=(submission(7),)), traces={token(7): trace(outcome=TIMED_OUT, submitted_at=NOW - 9)})
    plan = reconcile(doubt, intent(1))
    assert not plan.effects
    assert codes(plan) == ("unresolved",)
    assert plan.unresolved == (token(7),)

    found = later(doubt, plan, 5, job(7, "PENDING"), traces=doubt.traces)
    second = reconcile(found, intent(1))
    assert second.adopted == ("7",)
    assert second.live == ("7",)
    assert not effects(second, Submit)
    assert effects(second, Forget) == [Forget((token(7),))]
    adopted = second.ledger.record("7")
    assert adopted is not None
    assert (adopted.intent, adopted.submitted_at) == (KEY, NOW - 9)


@pytest.mark.parametrize("answer", [None, Submitted("7")])
def test_a_job_that_came_after_its_submission_was_revoked_is_cancelled_and_replaced(answer: Submitted | None) -> None:
    # The rename won: the job finds nothing to claim, so it never works, however long it waits.
    late = look(
        ledger(opened=(submission(7),)),
        job(7, "PENDING"),
        traces={token(7): SubmissionTrace(fate=Fate.REVOKED, outcome=answer)},
    )
    plan = reconcile(late, intent(1))
    assert plan.adopted == ()
    assert plan.ledger.revoked_tokens == (token(7),)
    assert Cancel(("7",), only_pending=False) in plan.effects
    assert len(effects(plan, Submit)) == 1


def test_an_adopted_job_without_a_result_is_dated_when_it_was_planned() -> None:
    plan = reconcile(look(ledger(opened=(submission(7),)), job(7)), intent(1))
    assert plan.ledger.record("7").submitted_at == NOW - 10  # type: ignore[union-attr]


def test_an_adopted_allocation_of_no_intent_has_no_date() -> None:
    opened = submission(7, intent=None, dated=False)
    known = {token(7): trace(outcome=Submitted("7", None), submitted_at=NOW - 9)}
    plan = plan_upkeep(ledger(), look(ledger(opened=(opened,)), job(7), traces=known))
    assert plan.ledger.record("7") is None, "the ledger that is passed is the one that is changed"
    books = ledger(opened=(opened,))
    adopted = plan_upkeep(books, look(books, job(7), traces=known)).ledger.record("7")
    assert adopted is not None
    assert (adopted.intent, adopted.submitted_at) == (None, None)


@pytest.mark.parametrize(
    "carrier",
    [
        {"command": None},
        {"comment": None},
        {"comment": f'"proj=abc; dagster-slurm run-1 {token(7)}"', "command": None},
        {"comment": "(null)"},
    ],
)
def test_J_6_the_token_is_found_in_what_the_site_left_of_it(carrier: dict[str, str | None]) -> None:
    seen = look(ledger(opened=(submission(7),)), job(7, **carrier))
    assert reconcile(seen, intent(1)).adopted == ("7",)


@pytest.mark.parametrize("files", [trace(outcome=Submitted("7", None)), trace(Fate.STARTED, started_job_id="7")])
def test_J_3_the_files_name_a_job_that_ended_before_anyone_looked(files: SubmissionTrace) -> None:
    seen = look(ledger(opened=(submission(7),)), traces={token(7): files})
    plan = reconcile(seen, intent(1))
    assert plan.adopted == ("7",)
    ended = plan.ledger.record("7")
    assert ended is not None
    assert ended.final_state == "ENDED"
    assert len(effects(plan, Submit)) == 1


def test_J_8_a_sent_submission_without_any_sign_is_dropped_after_the_settle_time() -> None:
    young = submission(7, prepared_at=NOW - SETTLE_SECONDS + 1)
    old = submission(7, prepared_at=NOW - SETTLE_SECONDS)
    files = {token(7): trace(Fate.SENT, outcome=TIMED_OUT)}
    assert not reconcile(look(ledger(opened=(young,)), traces=files), intent(1)).effects

    first = look(ledger(opened=(old,)), traces=files)
    plan = reconcile(first, intent(1))
    assert plan.effects == (Revoke(token(7), Fate.SENT),), "the fate file is renamed first; it may have started"
    assert token(7) in plan.ledger.worker_submissions

    kept = later(first, plan, 5, traces={token(7): trace(Fate.STARTED, started_job_id="7")})
    assert reconcile(kept, intent(1)).adopted == ("7",)

    revoked = later(first, plan, 5, traces={token(7): trace(Fate.REVOKED)})
    filled = reconcile(revoked, intent(1))
    assert token(7) not in filled.ledger.worker_submissions
    assert filled.ledger.revoked_tokens == (token(7),)
    assert len(effects(filled, Submit)) == 1


def test_a_submission_that_was_never_sent_is_dropped_at_once() -> None:
    seen = look(ledger(opened=(submission(7),)), traces={token(7): trace(Fate.READY)})
    assert effects(reconcile(seen, intent(1)), Revoke) == [Revoke(token(7), Fate.READY)]


def test_a_submission_whose_files_are_gone_is_dropped_after_the_settle_time() -> None:
    young = look(ledger(opened=(submission(7),)))
    assert not reconcile(young, intent(1)).effects
    old = look(ledger(opened=(submission(7, prepared_at=NOW - 7200),)))
    plan = reconcile(old, intent(1))
    assert plan.ledger.revoked_tokens == (token(7),)
    assert len(effects(plan, Submit)) == 1


def test_I_5_a_refusal_that_nobody_recorded_is_told_and_dropped() -> None:
    files = {token(7): trace(outcome=Refused("sbatch: error: QOSMaxSubmitJobPerUserLimit"))}
    plan = reconcile(look(ledger(opened=(submission(7),)), traces=files), intent(0))
    assert codes(plan) == ("refused",)
    assert "QOSMaxSubmitJobPerUserLimit" in plan.held_back[0].sentence
    assert effects(plan, Revoke) == [Revoke(token(7), Fate.SENT)]
    assert plan.ledger.revoked_tokens == (token(7),)


def test_a_job_that_bears_a_dropped_token_is_cancelled_and_never_counted() -> None:
    books = ledger(revoked_tokens=(token(7), token(8)))
    seen = look(books, job(7, "PENDING"), job(8, "COMPLETED"))
    plan = reconcile(seen, intent(1))
    assert effects(plan, Cancel) == [Cancel(("7",), only_pending=False)]
    assert plan.adopted == ()
    assert len(effects(plan, Submit)) == 1
    assert snapshot(seen).unrecorded == ("7",)


def test_a_submission_whose_id_was_used_before_waits_for_the_old_record_to_leave() -> None:
    older = record(7, token=token(70), final_state="COMPLETED", ended_at=NOW - 100)
    seen = look(ledger(older, opened=(submission(7),)), job(7))
    plan = reconcile(seen, intent(1))
    assert not plan.changes(seen.ledger)
    assert codes(plan) == ("unresolved",)
    old_enough = attrs.evolve(older, ended_at=NOW - 3601)
    first = look(ledger(old_enough, opened=(submission(7),)), job(7))
    assert reconcile(later(first, reconcile(first, intent(1)), 5, job(7)), intent(1)).adopted == ("7",)


def test_dropped_tokens_are_kept_up_to_a_limit() -> None:
    books = ledger(revoked_tokens=tuple(token(n) for n in range(REVOKED_TOKENS_KEPT)), opened=(submission(999),))
    dropped = books.without_submission(token(999)).revoked_tokens
    assert len(dropped) == REVOKED_TOKENS_KEPT
    assert dropped[-1] == token(999)
    assert token(0) not in dropped


def test_markers_left_over_go_with_the_next_commit_and_are_no_reason_for_one() -> None:
    left = {token(50): trace(Fate.REVOKED)}
    idle = look(ledger(record(7)), job(7), traces=left)
    assert not reconcile(idle, intent(1)).changes(idle.ledger)
    busy = look(ledger(record(7)), job(7, "FAILED"), traces=left)
    assert effects(reconcile(busy, intent(0)), Forget) == [Forget((token(50),))]


def test_an_open_submission_is_never_surplus() -> None:
    seen = look(ledger(record(7), opened=(submission(8),)), job(7), traces={token(8): trace(Fate.SENT)})
    plan = reconcile(seen, intent(1))
    assert plan.released == ()
    assert plan.live == ("7",)
    assert not effects(plan, Submit)


# -- deadlines -------------------------------------------------------------------------------------


def test_a_deadline_that_passed_is_enforced_by_any_call_whatever_the_intent() -> None:
    books = ledger(
        record(7, drain_deadline=NOW, intent="other"),
        record(8, drain_deadline=NOW - 1, intent=None),
        record(9, drain_deadline=NOW + 1),
        record(10, drain_deadline=NOW - 9),
    )
    drained = frozenset({token(9), token(7), token(8)})
    plan = reconcile(look(books, job(7), job(8, "PENDING"), job(9), job(10, "TIMEOUT"), drains=drained), intent(0))
    assert effects(plan, Cancel) == [Cancel(("7", "8"), only_pending=False)]
    assert not effects(plan, Drain)
    assert [plan.ledger.record(str(n)).drain_deadline for n in (7, 8, 9, 10)] == [  # type: ignore[union-attr]
        NOW,
        NOW - 1,
        NOW + 1,
        NOW - 9,
    ]


def test_L_11_a_failed_drain_is_repeated_with_the_time_that_is_left() -> None:
    books = ledger(record(7, drain_deadline=NOW + 100))
    plan = plan_upkeep(books, look(books, job(7)))
    assert plan.effects == (Drain(token(7), "7", NOW + 100, 100),)
    assert not plan_upkeep(books, look(books, job(7), drains=frozenset({token(7)}))).effects


def test_K_4_a_failed_cancel_is_repeated_and_one_that_started_is_drained() -> None:
    books = ledger(record(7, drain_deadline=NOW + 100), record(8, drain_deadline=NOW + 100))
    plan = plan_upkeep(books, look(books, job(7, "PENDING"), job(8)))
    assert plan.effects == (Cancel(("7",), only_pending=True), Drain(token(8), "8", NOW + 100, 100))
    assert plan.ledger == books, "the deadlines stay"


def test_K_3_what_already_ended_is_not_cancelled_again() -> None:
    books = ledger(record(7, drain_deadline=NOW - 100))
    assert not plan_upkeep(books, look(books, job(7, "CANCELLED"))).effects
    assert not plan_upkeep(books, look(books)).effects


def test_K_4_nothing_is_enforced_on_an_allocation_whose_state_is_unknown() -> None:
    books = ledger(record(7, drain_deadline=NOW - 100))
    assert not plan_upkeep(books, silent(books)).changes(books)


# -- old records -----------------------------------------------------------------------------------


def test_ended_records_go_to_the_history_after_an_hour() -> None:
    books = ledger(
        record(7, final_state="COMPLETED", ended_at=NOW - 3600),
        record(8, final_state="COMPLETED", ended_at=NOW - 3601),
        record(9),
        predecessors=(record(2, final_state="FAILED", ended_at=NOW - 9999, intent=None),),
    )
    plan = plan_upkeep(books, look(books, job(9)))
    assert [r.slurm_job_id for r in plan.ledger.records()] == ["1", "7", "9"]
    assert plan.effects[0] == Archive((books.record("8"), books.record("2")))  # type: ignore[arg-type]


def test_at_most_fifty_ended_records_are_kept_the_newest() -> None:
    ended = [record(n, final_state="COMPLETED", ended_at=NOW - n) for n in range(100, 100 + ENDED_RECORDS_KEPT + 2)]
    books = ledger(*ended)
    plan = plan_upkeep(books, look(books))
    assert {r.slurm_job_id for r in effects(plan, Archive)[0].records} == {"150", "151"}
    assert len(plan.ledger.workers) == ENDED_RECORDS_KEPT
    assert not plan_upkeep(plan.ledger, look(plan.ledger)).changes(plan.ledger)


def test_shapes_that_nothing_refers_to_go_with_the_records() -> None:
    books = ledger(record(8, final_state="COMPLETED", ended_at=NOW - 3601))
    unused = attrs.evolve(next(iter(books.shapes.values())), partition="gone")
    books = attrs.evolve(books, shapes={**books.shapes, unused.digest: unused})
    kept = plan_upkeep(books, look(books)).ledger.shapes
    assert unused.digest not in kept
    assert set(kept) == {books.head.shape, books.worker_template}  # type: ignore[union-attr]


def test_a_head_is_never_taken_out_although_it_ended() -> None:
    books = ledger(head=record(1, intent=None, final_state="FAILED", ended_at=NOW - 9999))
    assert plan_upkeep(books, look(books, head_job=job(1, "FAILED"))).ledger.head is not None


def test_a_silent_scheduler_changes_no_books() -> None:
    books = ledger(record(7), opened=(submission(8),), revoked_tokens=(token(9),))
    seen = silent(books, traces={token(8): trace(outcome=Submitted("8", None))})
    up_to_date = bring_up_to_date(books, seen)
    assert up_to_date.ledger == books
    assert up_to_date.all_effects(()) == ()
