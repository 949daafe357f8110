"""Follow one payload from its start to its end: its output and messages as they come, a tick now and then."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import attrs

from dagster_slurm.errors import DagsterSlurmError, HostKeyRejected, PayloadFailed, RemoteError
from dagster_slurm.pipes import FedMessageReader, OutputLines
from dagster_slurm.remote.payload_scripts import PayloadPoll
from dagster_slurm.ticks import DrivenSession, Ticker

T = TypeVar("T")

#: Between two looks at a payload that prints or reports; a quiet one is asked less and less often.
POLL_SECONDS = 1.0
QUIET_POLL_SECONDS = 5.0
#: A cluster that cannot be reached for this long ends the step.
LOST_LIMIT_SECONDS = 600.0
#: Between the end of a head in Slurm's words and the conclusion that its payload will say nothing more.
LAST_WORDS_SECONDS = 10.0


@attrs.frozen(kw_only=True)
class Pace:
    """Time as the loop sees it; tests have their own."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def new_payload_id(session: DrivenSession) -> str:
    """An id for the next payload. Ids begin with the login node's clock, so the greatest is the newest."""
    return f"{session.inspect().observed_at}-{secrets.token_hex(4)}"


class Patience:
    """Asks the cluster again while it cannot be reached, for a bounded time, and says so once."""

    def __init__(self, log: logging.Logger, pace: Pace) -> None:
        self._log = log
        self._pace = pace

    def ask(self, question: Callable[[], T]) -> T:
        """The answer; a question may be put several times, so it has to be one that can be.

        Raises:
            HostKeyRejected: at once.
            RemoteError: the last one, when the limit has passed.
        """
        began: float | None = None
        pause = POLL_SECONDS
        while True:
            try:
                answer = question()
            except HostKeyRejected:
                raise
            except RemoteError as error:
                now = self._pace.clock()
                if began is None:
                    began = now
                    self._log.warning(
                        f"The cluster cannot be asked; the payload is not affected. Trying again for up to "
                        f"{LOST_LIMIT_SECONDS / 60:g} minutes. {error}"
                    )
                if now - began >= LOST_LIMIT_SECONDS:
                    raise
                self._pace.sleep(pause)
                pause = min(2 * pause, 30.0)
            else:
                if began is not None:
                    self._log.info(f"The cluster answers again after {self._pace.clock() - began:.0f} s.")
                return answer


class PayloadRun:
    """One payload: started, followed, and given up when the step is interrupted.

    Args:
        session: The session that runs it.
        payload_id: Its id, made with ``new_payload_id``.
        messages: Takes its Pipes messages.
        output: Takes its output.
        ticker: Makes the ticks.
        log: The run's log.
        wanted: Whether the run still wants it; None or a sentence why not.
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
        pace: Pace | None = None,
    ) -> None:
        self._session = session
        self._payload_id = payload_id
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

    def run(self, payload: Path, argv: Sequence[str], env: Mapping[str, str]) -> PayloadPoll:
        """Run it to its good end and return the last look at it; its workers are released before that.

        Raises:
            PayloadFailed: it failed, was cancelled, or its head ended.
            RemoteError: the cluster could not be reached for too long.
            SessionError: the session's directory is gone.
        """
        try:
            self._started = True
            self._patience.ask(
                lambda: self._session.start_payload(payload, argv=argv, env=env, payload_id=self._payload_id)
            )
            last = self._follow()
            if last.state != "succeeded":
                raise PayloadFailed(self._failure(last))
        except BaseException as error:
            # An interrupt by Dagster is no Exception; whatever it is, nothing of this step goes on running.
            self._give_up(error)
            raise
        self._release()
        return last

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
            self._pause(news)

    def _look(self) -> PayloadPoll:
        return self._session.poll_payload(
            self._payload_id,
            messages_offset=self._messages.offset,
            log_offset=self._output.offset,
            mark=self._ticker.mark,
        )

    def _forward(self, poll: PayloadPoll) -> bool:
        if poll.head_job_id is not None and not self._taken:
            self._taken = True
            self._log.info(f"The head's job {poll.head_job_id} runs the payload {self._payload_id}.")
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
        self._pace.sleep(max(0.1, min(self._quiet, self._ticker.seconds_to_next)))

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
            raise PayloadFailed(lost + self._tails(poll.head_job_id))

    def _head_loss(self, poll: PayloadPoll) -> str | None:
        snapshot = self._ticker.snapshot
        if poll.state == "waiting" and poll.closing:
            return "The session was ended before a head took the payload."
        if snapshot is None or not snapshot.certain:
            return None
        if poll.head_job_id is None:
            head = snapshot.head
            if head.committed is False and snapshot.successor is None:
                said = f" It says: {head.message}." if head.message else ""
                return f"The head's job {head.slurm_job_id} ended ({head.state}) before it took the payload.{said}"
            return None
        for allocation in snapshot.allocations:
            if allocation.slurm_job_id == poll.head_job_id and allocation.committed is False:
                return f"The head's job {poll.head_job_id} ended ({allocation.state}) under the payload."
        return None

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
        self._ticker.stop_asking()
        try:
            if self._started and not self._ended:
                self._log.info(f"Stopping the payload {self._payload_id} ({type(error).__name__}).")
                self._session.cancel_payload(self._payload_id)
        except DagsterSlurmError as failed:
            self._log.warning(f"The payload {self._payload_id} could not be stopped: {failed}")
        self._release()

    def _release(self) -> None:
        try:
            self._ticker.release()
        except DagsterSlurmError as failed:
            self._log.warning(f"The step's workers could not be released; the end of the session will: {failed}")
