"""Follow one payload from its start to its end: its output and messages as they come, a tick now and then.

A payload that ends only because its head did is run again on the next head, a bounded number of times.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from dagster_slurm.allocations.snapshot import AllocationSnapshot
from dagster_slurm.errors import DagsterSlurmError, PayloadEndedWithHead, PayloadFailed
from dagster_slurm.head_keeper import HeadKeeper
from dagster_slurm.patience import POLL_SECONDS, Pace, Patience
from dagster_slurm.payload_ids import messages_path, next_payload_id
from dagster_slurm.pipes import FedMessageReader, OutputLines
from dagster_slurm.remote.payload_scripts import PayloadPoll
from dagster_slurm.ticks import DrivenSession, Ticker

T = TypeVar("T")

#: A payload that prints or reports is looked at every POLL_SECONDS; a quiet one less and less often.
QUIET_POLL_SECONDS = 5.0
#: Between the end of a head in Slurm's words and the conclusion that its payload will say nothing more.
LAST_WORDS_SECONDS = 10.0
#: How a head may have ended before it took the payload so that another one is worth a try: nothing of its own failed.
WORTH_ANOTHER_HEAD = frozenset({"NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "TIMEOUT", "DEADLINE", "REVOKED"})

#: Environment of a payload, by its id: each attempt writes its messages to a file of its own.
PayloadEnvironment = Callable[[str], Mapping[str, str]]


class PayloadRun:
    """One payload: started, followed, run again after the end of its head, given up when the step is interrupted.

    Attributes:
        payload_id: The id of the newest attempt.
        restarts: How often it was run again because its head had ended.

    Args:
        session: The session that runs it.
        payload_id: Its id, made with ``payload_ids.new_payload_id``.
        messages: Takes its Pipes messages.
        output: Takes its output.
        ticker: Makes the ticks.
        log: The run's log.
        wanted: Whether the run still wants it; None or a sentence why not.
        restarts_with_head: How often it may be run again because its head has ended.
        keeper: Keeps the session with a head; None: one that queues no successor.
        pace: For tests.
    """

    def __init__(
        self,
        session: DrivenSession,
        payload_id: str,
        *,
        messages: FedMessageReader,
        output: OutputLines,
        ticker: Ticker,
        log: logging.Logger,
        wanted: Callable[[], str | None],
        restarts_with_head: int = 0,
        keeper: HeadKeeper | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._session = session
        self.payload_id = payload_id
        self.restarts = 0
        self._restarts_allowed = restarts_with_head
        self._keeper = keeper or HeadKeeper(session, log)
        self._former_heads: set[str | None] = set()
        self._messages = messages
        self._output = output
        self._ticker = ticker
        self._log = log
        self._wanted = wanted
        self._pace = pace or Pace()
        self._patience = Patience(log, self._pace)
        self._started = False
        self._ended = False
        self._taken = False
        self._quiet = POLL_SECONDS
        self._head_lost_at: float | None = None
        self._wanted_at = self._pace.clock()

    def run(self, payload: Path, argv: Sequence[str], env: PayloadEnvironment) -> PayloadPoll:
        """Run it to its good end and return the last look at it; its workers are released before that.

        Raises:
            PayloadEndedWithHead: its head ended, more often than it may be run again.
            PayloadFailed: it failed, was cancelled, or no head took it.
            RemoteError: the cluster could not be reached for too long.
            SessionError: the session's directory is gone.
        """
        try:
            last = self._run_on_heads(payload, argv, env)
        except BaseException as error:
            # An interrupt by Dagster is no Exception; whatever it is, nothing of this step goes on running.
            self._give_up(error)
            raise
        self._messages.finish()
        self._release()
        return last

    def _run_on_heads(self, payload: Path, argv: Sequence[str], env: PayloadEnvironment) -> PayloadPoll:
        while True:
            try:
                return self._run_once(payload, argv, env(self.payload_id))
            except PayloadEndedWithHead as ended:
                if self.restarts >= self._restarts_allowed:
                    raise
                self._begin_again(ended)

    def _run_once(self, payload: Path, argv: Sequence[str], env: Mapping[str, str]) -> PayloadPoll:
        self._started = True
        self._patience.ask(lambda: self._session.start_payload(payload, argv=argv, env=env, payload_id=self.payload_id))
        last = self._follow()
        if last.state != "succeeded":
            kind = PayloadEndedWithHead if last.ended_with_head else PayloadFailed
            raise kind(self._failure(last))
        return last

    def _begin_again(self, ended: PayloadEndedWithHead) -> None:
        """The next attempt has an id of its own: no head ever runs one that another head had claimed."""
        self.restarts += 1
        self._log.warning(
            f"The payload is run again on the next head ({self.restarts} of at most {self._restarts_allowed} times). "
            f"{ended.message}"
        )
        # Should its head live after all, it stops there.
        self._patience.ask(lambda: self._session.cancel_payload(self.payload_id))
        self.payload_id = self._patience.ask(lambda: next_payload_id(self._session, self.payload_id))
        self._messages.begin_again(messages_path(self._session, self.payload_id))
        self._output.begin_again()
        self._started = self._ended = self._taken = False
        self._head_lost_at = None
        self._ticker.hurry()

    # -- following ---------------------------------------------------------------------------------

    def _follow(self) -> PayloadPoll:
        while True:
            poll = self._patience.ask(self._look)
            news = self._forward(poll)
            if poll.messages_left or poll.log_left:
                continue
            if poll.ended:
                self._finish_output()
                return poll
            self._ticker.step(poll.work)
            self._check_run()
            self._check_head(poll)
            self._keep_head(poll)
            self._pause(news)

    def _look(self) -> PayloadPoll:
        return self._session.poll_payload(
            self.payload_id,
            messages_offset=self._messages.offset,
            log_offset=self._output.offset,
            mark=self._ticker.mark,
        )

    def _forward(self, poll: PayloadPoll) -> bool:
        if poll.head_job_id is not None and not self._taken:
            self._taken = True
            self._former_heads.add(poll.head_job_id)
            self._log.info(f"The head's job {poll.head_job_id} runs the payload {self.payload_id}.")
            self._ticker.hurry()
        self._output.feed(poll.log)
        self._messages.feed(poll.messages)
        self._ended = self._ended or poll.ended
        return bool(poll.log or poll.messages)

    def _finish_output(self) -> None:
        self._output.finish()
        if self._messages.unfinished:
            self._log.warning("The payload's last message is cut off in the middle; it was not delivered.")

    def _pause(self, news: bool) -> None:
        self._quiet = POLL_SECONDS if news else min(1.25 * self._quiet, QUIET_POLL_SECONDS)
        longest = POLL_SECONDS if self._keeper.electing else self._quiet
        self._pace.sleep(max(0.1, min(longest, self._ticker.seconds_to_next)))

    def _check_run(self) -> None:
        """A run that ended in Dagster while this process lives wants nothing more."""
        if self._pace.clock() < self._wanted_at:
            return
        self._wanted_at = self._pace.clock() + 10.0
        reason = self._wanted()
        if reason is not None:
            raise PayloadFailed(f"The payload was stopped: {reason}")

    def _check_head(self, poll: PayloadPoll) -> None:
        """Give up when nobody will run it, or go on running it, any more."""
        lost = self._head_loss(poll)
        if lost is None:
            self._head_lost_at = None
        elif self._head_lost_at is None:
            self._head_lost_at = self._pace.clock()
        elif self._pace.clock() - self._head_lost_at >= LAST_WORDS_SECONDS:
            kind = PayloadFailed if poll.head_job_id is None else PayloadEndedWithHead
            raise kind(lost + self._tails(poll.head_job_id))

    def _keep_head(self, poll: PayloadPoll) -> None:
        """Elect or submit another head where one is needed, unless this payload is being given up for want of one."""
        given_up = self._head_lost_at is not None and poll.head_job_id is None
        if not given_up and self._keeper.step(self._ticker.snapshot, self._pace.clock()):
            self._ticker.hurry()

    def _head_loss(self, poll: PayloadPoll) -> str | None:
        snapshot = self._ticker.snapshot
        if poll.state == "waiting" and poll.closing:
            return "The session was ended before a head took the payload."
        if snapshot is None or not snapshot.certain:
            return None
        if poll.head_job_id is None:
            head, next_one = snapshot.head, snapshot.successor
            succeeded = next_one is not None and next_one.committed is not False
            if head.committed is False and not succeeded and not self._is_replaced(head):
                said = f" It says: {head.message}." if head.message else ""
                return f"The head's job {head.slurm_job_id} ended ({head.state}) before it took the payload.{said}"
            return None
        for allocation in snapshot.allocations:
            if allocation.slurm_job_id == poll.head_job_id and allocation.committed is False:
                return f"The head's job {poll.head_job_id} ended ({allocation.state}) under the payload."
        return None

    def _is_replaced(self, head: AllocationSnapshot) -> bool:
        """Whether another head follows one that ended without this attempt, so that waiting makes sense.

        One that failed by itself would fail again: nobody is helped by a queue of them.
        """
        worth = head.slurm_job_id in self._former_heads or head.state in WORTH_ANOTHER_HEAD
        return worth and self._restarts_allowed > 0 and not self._keeper.found_none

    # -- ends --------------------------------------------------------------------------------------

    def _failure(self, last: PayloadPoll) -> str:
        if last.state == "cancelled":
            return "The payload was cancelled on the cluster." + self._output_tail()
        if not last.ended_with_head:
            return f"The payload {last.message or 'failed'}." + self._output_tail()
        state = self._state_of(last.head_job_id)
        return f"The payload {last.message}. Head's job {last.head_job_id}: {state}." + self._tails(last.head_job_id)

    def _state_of(self, job_id: str | None) -> str:
        try:
            allocations = self._session.inspect().allocations
        except DagsterSlurmError as error:
            return f"state not observed ({error.message})"
        return next((a.state for a in allocations if a.slurm_job_id == job_id and a.state), "state not known")

    def _tails(self, head_job_id: str | None) -> str:
        snapshot = self._ticker.snapshot
        job_id = head_job_id or (None if snapshot is None else snapshot.head.slurm_job_id)
        if job_id is None:
            return self._output_tail()
        try:
            log = self._session.logs(job_id)
        except DagsterSlurmError as error:
            return f"{self._output_tail()}\nThe log of job {job_id} could not be read: {error.message}"
        lines = log.rstrip().splitlines()[-20:]
        return f"{self._output_tail()}\nLast lines of the log of job {job_id}:\n" + "\n".join(lines or ["(empty)"])

    def _output_tail(self) -> str:
        lines = list(self._output.tail)
        return "\nLast lines of its output:\n" + "\n".join(lines) if lines else "\nIt printed nothing."

    def _give_up(self, error: BaseException) -> None:
        """Best effort: what cannot be done here is done by the end of the session."""
        self._output.finish()
        self._messages.finish()
        self._ticker.stop_asking()
        try:
            if self._started and not self._ended:
                self._log.info(f"Stopping the payload {self.payload_id} ({type(error).__name__}).")
                self._session.cancel_payload(self.payload_id)
        except DagsterSlurmError as failed:
            self._log.warning(f"The payload {self.payload_id} could not be stopped: {failed}")
        self._release()

    def _release(self) -> None:
        try:
            self._ticker.release()
        except DagsterSlurmError as failed:
            self._log.warning(f"The step's workers could not be released; the end of the session will: {failed}")
