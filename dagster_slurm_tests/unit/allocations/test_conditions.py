"""Is an allocation alive? Listing, accounting, absence and re-appearance."""

from __future__ import annotations

import attrs
import pytest

from dagster_slurm.allocations.conditions import Condition, condition_of, unanswered_ids, with_absent
from dagster_slurm.allocations.observation import Fate, Observation
from dagster_slurm.allocations.plan import Submit
from dagster_slurm.slurm.replies import AccountingReply, AccountingRow, Listing, Submitted
from dagster_slurm.slurm.states import StateClass
from dagster_slurm_tests.builders import (
    JOB_NAME,
    KEY,
    NOW,
    accounting,
    codes,
    effects,
    head,
    intent,
    job,
    later,
    ledger,
    look,
    no_accounting,
    node_report,
    reconcile,
    record,
    silent,
    snapshot,
    submission,
    token,
    trace,
)

PENDING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT")
RUNNING = ("RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT")
ENDED = ("COMPLETING", "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE")


def state_of(observation: Observation, job_id: str = "7") -> str | None:
    """The state that a user reads."""
    found = {a.slurm_job_id: a.state for a in snapshot(observation).allocations}
    return found[job_id]


def committed(observation: Observation, job_id: str = "7") -> bool | None:
    return {a.slurm_job_id: a.committed for a in snapshot(observation).allocations}[job_id]


@pytest.mark.parametrize(
    ("words", "kind", "counts"),
    [(PENDING, StateClass.PENDING, True), (RUNNING, StateClass.RUNNING, True), (ENDED, StateClass.ENDED, False)],
)
def test_states_decide_whether_an_allocation_counts(words: tuple[str, ...], kind: StateClass, counts: bool) -> None:
    for word in words:
        seen = look(ledger(record(7)), job(7, word))
        assert Condition(state=word).kind is kind
        assert state_of(seen) == word
        assert committed(seen) is counts
        assert bool(reconcile(seen, intent(1)).live) is counts


def test_C_3_a_word_we_do_not_know_is_kept_and_counts_as_live() -> None:
    seen = look(ledger(record(7)), job(7, "HIBERNATING"))
    assert state_of(seen) == "HIBERNATING"
    assert committed(seen) is True
    assert not effects(reconcile(seen, intent(1)), Submit)


def test_a_row_without_a_state_is_unknown_and_not_an_end() -> None:
    seen = look(ledger(record(7)), job(7, None))
    assert committed(seen) is None
    assert not effects(reconcile(seen, intent(1)), Submit)


def test_A_2_a_silent_controller_makes_every_state_unknown_and_moves_nothing() -> None:
    books = ledger(record(7), record(8, drain_deadline=NOW - 5), record(9, final_state="COMPLETED", ended_at=NOW - 9))
    seen = silent(books)
    plan = reconcile(seen, intent(3))
    assert all(a.state is None and a.committed is None for a in snapshot(seen).allocations)
    assert snapshot(seen).certain is False
    assert codes(plan) == ("scheduler_silent",)
    assert "Unable to contact slurm controller" in plan.held_back[0].sentence
    assert not plan.changes(books)
    assert plan.live == ("7",), "what is known to have ended does not count because nobody answers"


def test_A_2_silence_is_said_although_the_count_seems_to_hold() -> None:
    plan = reconcile(silent(ledger(record(7))), intent(1))
    assert codes(plan) == ("scheduler_silent",)


def test_A_3_a_listing_that_timed_out_is_unknown_whatever_it_lists() -> None:
    seen = silent(ledger(record(7)), error="slurm_load_jobs error: Socket timed out on send/recv operation")
    assert state_of(seen) is None
    assert not snapshot(seen).certain
    assert "Socket timed out" in snapshot(seen).not_observed[0]


def test_A_1_absent_from_an_answered_listing_is_gone() -> None:
    seen = look(ledger(record(7)), accounting=accounting())
    assert state_of(seen) == "ENDED"
    assert snapshot(seen).certain


@pytest.mark.parametrize("reply", [no_accounting(), no_accounting("Connection refused"), accounting(), None])
def test_B_3_B_4_B_13_without_a_word_from_accounting_an_absent_job_is_ended(reply: AccountingReply | None) -> None:
    seen = look(ledger(record(7), record(8)), job(8), accounting=reply)
    assert state_of(seen) == "ENDED"
    assert state_of(seen, "8") == "RUNNING"
    assert snapshot(seen).certain
    assert len(effects(reconcile(seen, intent(2)), Submit)) == 1, "submitting goes on without accounting"


def test_B_4_that_accounting_was_silent_is_told() -> None:
    seen = look(ledger(record(7)), accounting=no_accounting("Connection refused"))
    assert any("Accounting did not answer: Connection refused" in sentence for sentence in snapshot(seen).not_observed)


def test_B_8_the_queue_overrules_accounting() -> None:
    seen = look(ledger(record(7)), job(7, "PENDING", reason="BeginTime"), accounting=accounting(j7="PREEMPTED"))
    assert state_of(seen) == "PENDING"
    assert not effects(reconcile(seen, intent(1)), Submit)
    assert unanswered_ids(seen) == ()


def test_B_10_a_preempted_job_that_left_the_queue_is_replaced() -> None:
    seen = look(ledger(record(7)), accounting=accounting(j7="PREEMPTED"))
    assert state_of(seen) == "PREEMPTED"
    plan = reconcile(seen, intent(1))
    assert len(effects(plan, Submit)) == 1
    assert plan.ledger.record("7").final_state == "PREEMPTED"  # type: ignore[union-attr]


def test_A_5_B_12_accounting_that_calls_it_live_leaves_it_unknown_and_unreplaced() -> None:
    first = look(ledger(record(7)), accounting=accounting(j7="RUNNING"))
    assert state_of(first) is None
    assert committed(first) is None
    plan = reconcile(first, intent(1))
    assert not effects(plan, Submit)
    assert plan.live == ("7",)
    assert plan.ledger.record("7").absent_since == NOW  # type: ignore[union-attr]

    back = later(first, plan, 5, job(7))
    assert state_of(back) == "RUNNING"
    assert reconcile(back, intent(1)).ledger.record("7").absent_since is None  # type: ignore[union-attr]


@pytest.mark.parametrize(("seconds", "ended"), [(1, False), (59, False), (60, True), (600, True)])
def test_A_5_two_listings_a_minute_apart_settle_it(seconds: int, ended: bool) -> None:
    first = look(ledger(record(7)), accounting=accounting(j7="RUNNING"))
    second = later(first, reconcile(first, intent(1)), seconds, accounting=accounting(j7="RUNNING"))
    assert state_of(second) == ("ENDED" if ended else None)
    plan = reconcile(second, intent(1))
    assert len(effects(plan, Submit)) == (1 if ended else 0)
    assert plan.ledger.record("7").absent_since == NOW, "the first absence stays the first"  # type: ignore[union-attr]


@pytest.mark.parametrize(("age", "ended"), [(0, False), (30, False), (31, True)])
def test_A_5_an_agent_that_reported_overrules_the_absence(age: int, ended: bool) -> None:
    books = ledger(record(7, absent_since=NOW - 300), record(8))
    nodes = {("7", "n7"): node_report(age), ("8", "n8"): node_report(0)}
    seen = look(books, job(8), accounting=accounting(j7="RUNNING"), nodes=nodes)
    assert state_of(seen) == ("ENDED" if ended else None)


def test_A_7_L_2_a_job_that_comes_back_is_live_again_under_its_old_record() -> None:
    gone = look(ledger(record(7, drain_deadline=NOW + 900), record(8)), job(8), accounting=accounting())
    ended = reconcile(gone, intent(1))
    assert ended.ledger.record("7").final_state == "ENDED"  # type: ignore[union-attr]
    again = later(gone, ended, 300, job(7), job(8))
    plan = reconcile(again, intent(1))
    revived = plan.ledger.record("7")
    assert revived is not None
    assert (revived.final_state, revived.ended_at) == (None, None)
    assert (revived.intent, revived.drain_deadline) == (KEY, NOW + 900)
    assert state_of(again) == "RUNNING"


def test_A_7_what_comes_back_counts_and_the_surplus_is_released() -> None:
    gone = look(ledger(record(7)), accounting=accounting())
    replaced = reconcile(gone, intent(1))
    books = replaced.ledger.with_adopted(effects(replaced, Submit)[0].token, "8", NOW)
    bearer = job(8, "PENDING", comment=None, command=f"/x/submissions/{token(100_000)}/batch.sh")
    back = look(books, job(7), bearer)
    plan = reconcile(back, intent(1))
    assert plan.released == ("8",)
    assert plan.live == ("7",)
    assert not effects(plan, Submit)


def test_the_recorded_end_is_kept_once_the_job_left_the_queue() -> None:
    books = ledger(record(7, final_state="TIMEOUT", ended_at=NOW - 30))
    assert state_of(look(books)) == "TIMEOUT"
    assert unanswered_ids(look(books)) == ()
    assert not reconcile(look(books), intent(0)).changes(books)


def test_the_end_is_dated_once_and_named_when_the_listing_names_it() -> None:
    books = ledger(record(7, final_state="ENDED", ended_at=NOW - 30))
    named = reconcile(look(books, job(7, "NODE_FAIL")), intent(0)).ledger.record("7")
    assert named is not None
    assert (named.final_state, named.ended_at) == ("NODE_FAIL", NOW - 30)


def test_completing_does_not_count_and_is_no_final_state() -> None:
    seen = look(ledger(record(7)), job(7, "COMPLETING"))
    plan = reconcile(seen, intent(1))
    assert len(effects(plan, Submit)) == 1
    assert plan.ledger.record("7").final_state is None  # type: ignore[union-attr]
    gone = later(seen, reconcile(seen, intent(0)), 30, accounting=accounting(j7="COMPLETED"))
    assert state_of(gone) == "COMPLETED"


def test_an_id_that_was_used_again_is_not_our_job() -> None:
    reused = job(7, comment=None, command=f"/x/submissions/{token(99)}/batch.sh")
    seen = look(ledger(record(7)), reused, accounting=accounting(j7="COMPLETED"))
    assert unanswered_ids(seen) == ("7",)
    assert state_of(seen) == "COMPLETED"


def test_J_6_a_row_whose_comment_the_site_replaced_is_still_ours() -> None:
    assert state_of(look(ledger(record(7)), job(7, comment="(null)", command=None))) == "RUNNING"


@pytest.mark.parametrize(
    ("name", "submitted_at", "own"),
    [
        (JOB_NAME, NOW - 600, True),
        (JOB_NAME, NOW - 600 - 3600, True),
        (JOB_NAME, NOW - 600 - 3601, False),
        (JOB_NAME, None, True),
        (None, NOW, True),
        ("another", NOW - 600, False),
        (JOB_NAME, NOW - 90_000, False),
    ],
)
def test_accounting_is_believed_only_about_this_job(name: str | None, submitted_at: int | None, own: bool) -> None:
    row = AccountingRow(state="FAILED", name=name, submitted_at=submitted_at, nodes=(), exit_code=1)
    seen = look(ledger(record(7)), accounting=AccountingReply(answered=True, rows={"7": row}, error=None))
    assert state_of(seen) == ("FAILED" if own else "ENDED")


def test_accounting_without_our_submit_time_goes_by_name() -> None:
    row = AccountingRow(state="FAILED", name=JOB_NAME, submitted_at=5, nodes=(), exit_code=1)
    seen = look(ledger(record(7, submitted_at=None)), accounting=AccountingReply(answered=True, rows={"7": row}))
    assert state_of(seen) == "FAILED"


def test_a_row_of_accounting_without_a_state_says_nothing() -> None:
    row = AccountingRow(state=None, name=None, submitted_at=None, nodes=(), exit_code=None)
    seen = look(ledger(record(7)), accounting=AccountingReply(answered=True, rows={"7": row}))
    assert state_of(seen) == "ENDED"


def test_what_accounting_is_asked_about() -> None:
    books = ledger(record(7), record(8), record(9, final_state="FAILED", ended_at=NOW), opened=(submission(10),))
    assert unanswered_ids(look(books, job(7))) == ("8",)
    assert unanswered_ids(silent(books)) == ()
    assert unanswered_ids(look(None)) == ()
    started = {token(10): trace(Fate.STARTED, started_job_id="10")}
    assert unanswered_ids(look(books, job(7), job(8), traces=started)) == ("10",)
    assert unanswered_ids(look(books, job(7), job(8), job(10), traces=started)) == ()
    assert unanswered_ids(look(books, job(7), job(8), traces={token(10): trace(Fate.SENT)})) == ()


def test_A_5_a_job_that_only_its_files_name_is_not_ended_while_accounting_calls_it_live() -> None:
    books = ledger(opened=(submission(10),))
    known = {token(10): trace(outcome=Submitted("10", None), submitted_at=NOW - 8)}
    plan = reconcile(look(books, traces=known, accounting=accounting(j10="RUNNING")), intent(1))
    assert plan.adopted == ("10",)
    assert plan.live == ("10",)
    assert not effects(plan, Submit)


def test_the_head_is_read_like_any_other() -> None:
    assert condition_of(head(), look(ledger(), head_job=job(1, "FAILED"))).live is False
    observation = attrs.evolve(look(ledger()), accounting=accounting(j1="RUNNING"))
    assert condition_of(head(), observation).running


# -- asked again by id -----------------------------------------------------------------------------


def test_a_renamed_job_is_found_by_its_token_and_foreign_jobs_with_its_id_are_not() -> None:
    books = ledger(workers=(record(7), record(8)), opened=(submission(9),))
    renamed = job(7, name="somebody-renamed-it")
    reused = job(8, name="other", comment="dagster-slurm elsewhere " + token(99), command="/other/run.sh")
    adopted = job(9, "PENDING", name="renamed-too")
    seen = with_absent(look(books), Listing(answered=True, jobs=(renamed, reused, adopted)))
    assert [row.slurm_job_id for row in seen.listing.jobs] == ["1", "7", "9"]
    assert condition_of(record(7), seen).running
    assert condition_of(record(8), seen).state == "ENDED"
    assert with_absent(look(books, job(7)), Listing(answered=True, jobs=(job(7),))) == look(books, job(7))
    assert with_absent(look(None), Listing(answered=True, jobs=(job(7),))) == look(None)


def test_without_an_answer_by_id_nothing_is_absent() -> None:
    books = ledger(workers=(record(7), record(8)))
    seen = with_absent(look(books, job(7)), Listing(answered=False, error="Socket timed out"))
    assert not seen.listing.answered
    assert seen.listing.error == "Socket timed out"
    assert condition_of(record(7), seen).state is None
    assert condition_of(record(8), seen).state is None
