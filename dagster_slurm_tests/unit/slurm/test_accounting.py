"""sacct's question and replies."""

from __future__ import annotations

import pytest

from dagster_slurm.slurm.replies import AccountingRow, ReplyFault, parse_accounting, sacct_arguments


def row(*columns: str) -> str:
    return "\x1f".join(columns) + "\n"


def test_B_6_the_question_has_ids_and_a_bound() -> None:
    arguments = sacct_arguments(["41", "42"], 1796127290)
    assert arguments[arguments.index("-j") + 1] == "41,42"
    assert arguments[arguments.index("-S") + 1] == "uts1796127290"
    assert "--local" in arguments
    assert "-S" not in sacct_arguments(["41"])
    assert "--clusters=alpha" in sacct_arguments(["41"], cluster="alpha")


def test_B_1_words_of_accounting() -> None:
    reply = parse_accounting(0, row("4242", "CANCELLED by 1001", "1796127297", "0:0", "None assigned", "wk"))
    assert reply.answered
    assert dict(reply.rows) == {"4242": AccountingRow("CANCELLED", "wk", 1796127297, (), 0, 0)}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Slurm accounting storage is disabled\n", ReplyFault.DISABLED),
        ("sacct: error: Problem talking to the database: Connection refused\n", ReplyFault.NO_ANSWER),
        ("sacct: error: slurmdbd: Too wide of a date range in query\n", ReplyFault.ERROR),
    ],
)
def test_B_3_B_4_B_7_accounting_that_cannot_answer(text: str, fault: ReplyFault) -> None:
    reply = parse_accounting(1, text)
    assert (reply.answered, dict(reply.rows), reply.fault, reply.error) == (False, {}, fault, text.strip())


def test_B_10_a_preempted_job_ended_by_its_signal() -> None:
    found = parse_accounting(0, row("4242", "PREEMPTED", "1796127297", "0:15", "n1", "wk")).rows["4242"]
    assert (found.state, found.exit_code, found.exit_signal) == ("PREEMPTED", 0, 15)


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "COMPLETING", "HIBERNATED", ""])
def test_B_12_a_row_that_is_not_final_has_no_exit_code(state: str) -> None:
    found = parse_accounting(0, row("4242", state, "1796127297", "0:0", "n1", "wk")).rows["4242"]
    assert (found.exit_code, found.exit_signal) == (None, None)


def test_B_13_a_purged_job_has_no_row() -> None:
    reply = parse_accounting(0, "")
    assert (reply.answered, dict(reply.rows)) == (True, {})


@pytest.mark.parametrize("state", ["PENDING", "COMPLETED"])
def test_J_3_a_provisional_row_does_not_know_the_name(state: str) -> None:
    found = parse_accounting(0, row("68", state, "1796127147", "0:0", "cpu-1", "allocation")).rows["68"]
    assert (found.state, found.name) == (state, None)


def test_rows_of_arrays_and_messages_are_skipped() -> None:
    text = (
        "sacct: warning: x\n"
        + row("33_1", "RUNNING", "1", "0:0", "n1", "wk")
        + row("5", "FAILED", "1", "3:0", "n1", "wk")
    )
    assert {job_id: found.exit_code for job_id, found in parse_accounting(0, text).rows.items()} == {"5": 3}


def test_a_damaged_row_makes_the_reply_unanswered() -> None:
    reply = parse_accounting(0, row("5", "FAILED", "1", "3:0", "wk"))
    assert (reply.answered, dict(reply.rows), reply.fault) == (False, {}, ReplyFault.DAMAGED)
