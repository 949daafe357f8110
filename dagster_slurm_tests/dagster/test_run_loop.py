"""A payload followed from start to end: output, messages, lost connections, ends; on a played session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from dagster_slurm.allocations.intent import WorkerIntent
from dagster_slurm.errors import (
    HostKeyRejected,
    HostUnreachable,
    PayloadFailed,
    RemoteError,
    ReplyIncomplete,
    SessionNotFound,
)
from dagster_slurm.patience import LOST_LIMIT_SECONDS
from dagster_slurm.payload_ids import (
    EARLIER_LIMIT_SECONDS,
    end_earlier_attempts,
    new_payload_id,
    next_payload_id,
    step_part,
)
from dagster_slurm.pipes import FedMessageReader, OutputLines
from dagster_slurm.policy import Policy, PolicyContext
from dagster_slurm.run_loop import PayloadRun
from dagster_slurm_tests.dagster.fakes import (
    CLOSED,
    EPOCH,
    OPENED,
    FakeSession,
    Notes,
    Step,
    failed,
    make_ticker,
    message,
    prints,
    running,
    says,
    succeeded,
    waits,
    works,
)


class Handler:
    """Stands in for Dagster's handler of messages: notes them."""

    def __init__(self) -> None:
        self.handled: list[str] = []
        self.errors = 0

    def handle_message(self, line: dict[str, str]) -> None:
        self.handled.append(line["method"])

    def report_pipes_framework_exception(self, origin: str, exc_info: object) -> None:
        self.errors += 1


@attrs.define
class Ran:
    """One followed payload."""

    session: FakeSession
    notes: Notes
    handler: Handler
    lines: list[str]
    run: Callable[[], object]


def follow(
    *script: Step,
    policy: Policy | None = None,
    wanted: Callable[[], str | None] = lambda: None,
    restarts: int = 0,
) -> Ran:
    session, notes, handler, lines = FakeSession(*script), Notes(), Handler(), list[str]()
    messages = FedMessageReader("/fake/messages")
    with messages.read_messages(handler):  # type: ignore[arg-type]
        pass
    run = PayloadRun(
        session,
        new_payload_id(session, "step"),
        messages=messages,
        output=OutputLines(lines.append),
        ticker=make_ticker(session, notes, policy),
        log=notes.logger,
        wanted=wanted,
        restarts_with_head=restarts,
        pace=session.pace(),
    )
    return Ran(
        session, notes, handler, lines, lambda: run.run(Path("main.py"), (), lambda payload_id: {"ID": payload_id})
    )


def one_worker(context: PolicyContext) -> WorkerIntent:
    return WorkerIntent(key=context.key, count=1)


def test_output_and_messages_arrive_while_it_runs() -> None:
    ran = follow(running, prints("one\ntwo"), says(OPENED), prints("+\n"), says(CLOSED), succeeded)
    ran.run()
    assert ran.lines == ["one", "two+"]
    assert ran.handler.handled == ["opened", "closed"]


def test_a_payload_id_begins_with_the_login_clock() -> None:
    first = new_payload_id(FakeSession(), "a step[1]")
    assert first.startswith(f"{EPOCH}-{step_part('a step[1]')}-")
    again = next_payload_id(FakeSession(), first)
    assert again != first
    assert again.rpartition("-")[0] == first.rpartition("-")[0], "one attempt, one step"


def test_what_a_killed_attempt_left_running_is_ended_first() -> None:
    session, notes = FakeSession(), Notes()
    session.earlier = [("1-a", "1-b"), ("1-b",), ()]
    end_earlier_attempts(session, "step", notes.logger, session.pace())
    assert len(notes.lines) == 1
    assert "1-a, 1-b" in notes.lines[0]
    (first, *rest) = session.called("replace_payloads")
    assert first["step"] == step_part("step")
    assert len(rest) == 2


def test_a_payload_whose_head_is_gone_is_not_waited_for_without_end() -> None:
    session, notes = FakeSession(), Notes()
    session.earlier = [("1-a",)] * 100
    end_earlier_attempts(session, "step", notes.logger, session.pace())
    assert EARLIER_LIMIT_SECONDS <= session.now < EARLIER_LIMIT_SECONDS + 5
    assert "has not ended" in notes.lines[-1]


def test_a_line_without_an_end_is_passed_on_at_the_end() -> None:
    ran = follow(running, prints("last words"), succeeded)
    ran.run()
    assert ran.lines == ["last words"]


def test_characters_cut_between_two_looks_are_put_together() -> None:
    text = "größe\n".encode()

    def half(session: FakeSession) -> None:
        session.log += text[:3]

    def rest(session: FakeSession) -> None:
        session.log += text[3:]

    ran = follow(running, half, rest, succeeded)
    ran.run()
    assert ran.lines == ["größe"]


def test_a_message_cut_between_two_looks_waits_for_its_rest() -> None:
    line = message("log", message="hello", level="INFO")
    ran = follow(running, says(OPENED + line[:10]), says(line[10:]), says(CLOSED), succeeded)
    ran.run()
    assert ran.handler.handled == ["opened", "log", "closed"]


def test_more_than_one_look_brings_is_fetched_before_the_end_is_believed() -> None:
    def much(session: FakeSession) -> None:
        session.chunk = 64
        session.log += b"".join(b"line %d\n" % number for number in range(100))
        session.messages += OPENED + message("log", message="x" * 500, level="INFO") + CLOSED
        succeeded(session)

    ran = follow(running, much)
    ran.run()
    assert ran.lines == [f"line {number}" for number in range(100)]
    assert ran.handler.handled == ["opened", "log", "closed"]
    # All of that at one moment: there was no pause between the pieces.
    assert ran.session.now < 3


def test_a_lost_reply_is_asked_for_again_and_nothing_is_delivered_twice() -> None:
    def lose(session: FakeSession) -> None:
        session.fail["poll_payload"] = [ReplyIncomplete("cut"), HostUnreachable("gone"), HostUnreachable("gone")]

    ran = follow(running, says(OPENED), prints("a\n"), lose, prints("b\n"), says(CLOSED), succeeded)
    ran.run()
    assert ran.handler.handled == ["opened", "closed"]
    assert ran.lines == ["a", "b"]
    assert len([line for line in ran.notes.lines if "cannot be asked" in line]) == 1
    assert len([line for line in ran.notes.lines if "answers again after" in line]) == 1


def test_a_cluster_that_stays_away_ends_the_step_after_a_bounded_time() -> None:
    def lose(session: FakeSession) -> None:
        session.fail["poll_payload"] = [HostUnreachable(f"gone {number}") for number in range(10_000)]

    ran = follow(running, lose)
    with pytest.raises(HostUnreachable, match="gone"):
        ran.run()
    assert LOST_LIMIT_SECONDS <= ran.session.now < LOST_LIMIT_SECONDS + 60
    assert ran.session.called("cancel_payload") != []


@pytest.mark.parametrize("error", [HostKeyRejected("another key"), SessionNotFound("gone")], ids=repr)
def test_what_asking_again_cannot_change_ends_the_step_at_once(error: RemoteError) -> None:
    def lose(session: FakeSession) -> None:
        session.fail["poll_payload"] = [error]

    ran = follow(running, lose)
    with pytest.raises(type(error)):
        ran.run()
    assert ran.session.now < 20


def test_a_start_whose_answer_was_lost_is_made_again_under_the_same_id() -> None:
    ran = follow(running, succeeded)
    ran.session.fail["start_payload"] = [ReplyIncomplete("cut")]
    ran.run()
    first, second = ran.session.called("start_payload")
    assert first == second


def test_a_failing_payload_fails_with_its_last_lines() -> None:
    ran = follow(running, prints("".join(f"line {n}\n" for n in range(100)) + "KeyError: 'x'\n"), failed)
    with pytest.raises(PayloadFailed) as caught:
        ran.run()
    text = str(caught.value)
    assert text.startswith("The payload exited with status 3.\nLast lines of its output:\nline 81\n")
    assert text.endswith("KeyError: 'x'")
    assert ran.session.called("cancel_payload") == []


def test_its_workers_are_released_when_it_succeeds_and_when_it_fails() -> None:
    for end in (succeeded, failed):
        ran = follow(running, waits(30), end, policy=one_worker)
        try:
            ran.run()
        except PayloadFailed:
            assert end is failed
        last = ran.session.called("reconcile_workers")[-1]
        assert [(i.key, i.count) for i in last["intents"]] == [("asset", 0)]


def test_the_policy_gets_what_the_payload_reports() -> None:
    seen: list[object] = []

    def policy(context: PolicyContext) -> None:
        seen.append(context.work)

    ran = follow(running, works(7), waits(30), works(3), waits(30), succeeded, policy=policy)
    ran.run()
    assert seen[0] is None
    assert {"remaining": 7} in seen
    assert seen[-1] == {"remaining": 3}


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit], ids=lambda kind: kind.__name__)
def test_Q_1_an_interrupt_stops_the_payload_and_releases_the_workers(interrupt: type[BaseException]) -> None:
    def stop(session: FakeSession) -> None:
        session.fail["poll_payload"] = [interrupt()]

    ran = follow(running, waits(31), stop, policy=one_worker)
    with pytest.raises(interrupt):
        ran.run()
    names = [call.name for call in ran.session.calls]
    assert names[-3:] == ["cancel_payload", "inspect", "reconcile_workers"]
    assert ran.session.called("reconcile_workers")[-1]["intents"][0].count == 0


def test_Q_1_an_interrupt_while_the_payload_is_brought_cancels_it() -> None:
    ran = follow()
    ran.session.fail["start_payload"] = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        ran.run()
    assert len(ran.session.called("cancel_payload")) == 1


def test_an_interrupt_surfaces_even_when_nothing_can_be_stopped() -> None:
    def stop(session: FakeSession) -> None:
        session.fail["poll_payload"] = [KeyboardInterrupt()]
        session.fail["cancel_payload"] = [HostUnreachable("gone")]
        session.fail["reconcile_workers"] = [HostUnreachable("gone")]

    ran = follow(running, waits(31), waits(1), stop, policy=one_worker)
    with pytest.raises(KeyboardInterrupt):
        ran.run()
    assert len([line for line in ran.notes.lines if "could not be" in line]) == 2


def test_Q_3_a_run_that_ended_in_dagster_submits_nothing_more() -> None:
    ended: list[str] = []

    def end(session: FakeSession) -> None:
        ended.append("its run is CANCELED in Dagster.")
        session.now += 20

    ran = follow(running, end, policy=one_worker, wanted=lambda: ended[0] if ended else None)
    with pytest.raises(PayloadFailed, match=r"stopped: its run is CANCELED in Dagster"):
        ran.run()
    assert len(ran.session.called("cancel_payload")) == 1
    assert [call["intents"][0].count for call in ran.session.called("reconcile_workers")] == [1, 0]


def test_a_head_that_ended_before_it_took_the_payload_fails_the_step_with_its_log() -> None:
    def end(session: FakeSession) -> None:
        session.head = attrs.evolve(session.head, state="FAILED", committed=False)

    ran = follow(end)
    with pytest.raises(PayloadFailed) as caught:
        ran.run()
    text = str(caught.value)
    assert "The head's job 1 ended (FAILED) before it took the payload." in text
    assert "No module named 'ray'" in text
    assert ran.session.now < 60


def test_a_head_that_ended_under_the_payload_fails_the_step_with_job_and_state() -> None:
    def end(session: FakeSession) -> None:
        session.head = attrs.evolve(session.head, state="NODE_FAIL", committed=False)

    ran = follow(running, prints("working\n"), end)
    with pytest.raises(PayloadFailed) as caught:
        ran.run()
    text = str(caught.value)
    assert "The head's job 1 ended (NODE_FAIL) under the payload." in text
    assert "working" in text
    assert "Last lines of the log of job 1:" in text


def test_the_last_words_of_a_payload_count_more_than_the_end_of_its_head() -> None:
    def end(session: FakeSession) -> None:
        session.head = attrs.evolve(session.head, state="COMPLETING", committed=False)
        session.now += 30

    ran = follow(running, end, waits(5), succeeded)
    ran.run()


def test_a_payload_that_ended_with_its_head_says_so() -> None:
    def end(session: FakeSession) -> None:
        failed(session)
        session.ended_with_head, session.message = True, "ended with its head: walltime"
        session.head = attrs.evolve(session.head, state="TIMEOUT", committed=False)

    ran = follow(running, end)
    with pytest.raises(PayloadFailed, match=r"ended with its head: walltime\. Head's job 1: TIMEOUT\."):
        ran.run()


def test_a_head_that_stays_pending_is_no_error_and_is_seen_with_its_reason() -> None:
    def queue(session: FakeSession) -> None:
        session.head = attrs.evolve(session.head, state="PENDING", reason="Priority")

    def start(session: FakeSession) -> None:
        session.head = attrs.evolve(session.head, state="RUNNING", reason=None)
        running(session)

    ran = follow(*[waits(60)] * 20, start, succeeded)
    queue(ran.session)
    ran.run()
    rows = [record.data for record in ran.notes.events[0][1]["slurm/allocations"].records]
    assert rows[0]["state"] == "PENDING"
    assert rows[0]["reason"] == "Priority"


def test_a_scheduler_that_is_silent_does_not_make_a_head_ended() -> None:
    def silence(session: FakeSession) -> None:
        session.certain = False
        session.head = attrs.evolve(session.head, state=None, committed=None)

    ran = follow(running, silence, waits(300), waits(300), succeeded)
    ran.run()


def test_a_session_that_ends_before_the_payload_started_fails_the_step() -> None:
    def close(session: FakeSession) -> None:
        session.closing = True

    ran = follow(close)
    with pytest.raises(PayloadFailed, match="session was ended before a head took the payload"):
        ran.run()


def test_a_payload_cancelled_on_the_cluster_fails_the_step() -> None:
    def cancel(session: FakeSession) -> None:
        session.state = "cancelled"

    ran = follow(running, cancel)
    with pytest.raises(PayloadFailed, match="cancelled on the cluster"):
        ran.run()


def test_Q_7_a_payload_that_died_before_its_first_message_fails_the_step() -> None:
    def die(session: FakeSession) -> None:
        session.state, session.message = "failed", "ended by signal 9"

    ran = follow(running, die)
    with pytest.raises(PayloadFailed, match=r"ended by signal 9\.\nIt printed nothing"):
        ran.run()


def test_a_message_that_makes_no_sense_is_reported_and_the_next_one_arrives() -> None:
    ran = follow(running, says(OPENED, b"{not json\n", b"[1]\n", b"\n"), says(CLOSED), succeeded)
    ran.run()
    assert ran.handler.handled == ["opened", "closed"]
    assert ran.handler.errors == 2


def test_a_last_message_that_was_cut_off_is_told() -> None:
    ran = follow(running, says(OPENED, CLOSED, b'{"method": "lo'), succeeded)
    ran.run()
    assert any("cut off in the middle" in line for line in ran.notes.lines)


def test_a_quiet_payload_is_asked_less_and_less_often() -> None:
    ran = follow(running, *[waits(0)] * 100, succeeded)
    ran.run()
    assert 400 < ran.session.now < 520
