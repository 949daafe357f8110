"""Keeps a session with a head while a payload runs: takes the steps of an election, and says what changed."""

from __future__ import annotations

import logging
from typing import Protocol

from dagster_slurm.allocations.snapshot import SessionSnapshot
from dagster_slurm.allocations.succession import HeadResult
from dagster_slurm.errors import DagsterSlurmError

#: Between two steps of an election that is under way; Ray's head takes some seconds to come up.
STEP_SECONDS = 2.0
#: So many successors are queued for one head: those that end before they lead are not followed without end.
SUCCESSORS_ALLOWED = 3


class Elector(Protocol):
    """The part of a session that this needs."""

    def ensure_head(self) -> HeadResult: ...

    def submit_successor(self) -> HeadResult: ...


class HeadKeeper:
    """One step for each new snapshot in which the head needs something, and quick ones while an election is under way.

    Attributes:
        found_none: Whether the last step left the session without a head and without one to come, such as one that the
            scheduler refused.

    Args:
        session: The session.
        log: The run's log; an answer that says the same as the one before is not repeated.
        successor_before_seconds: The next head is queued when the head's walltime has no more left than this; None:
            never.
    """

    def __init__(self, session: Elector, log: logging.Logger, successor_before_seconds: float | None = None) -> None:
        self._session = session
        self._log = log
        self._window = successor_before_seconds
        self._successors = 0
        self._successors_of: str | None = None
        self._snapshot: SessionSnapshot | None = None
        self._next_step_at: float | None = None
        self._said = ""
        self.found_none = False

    @property
    def electing(self) -> bool:
        """Whether an election is under way."""
        return self._next_step_at is not None

    def step(self, snapshot: SessionSnapshot | None, now: float) -> bool:
        """Do what is due.

        Args:
            snapshot: The newest one.
            now: The loop's clock, seconds.

        Returns:
            Whether an election has just come to its end, so that looking again pays off.
        """
        new = snapshot is not self._snapshot
        self._snapshot = snapshot
        if new and snapshot is not None:
            self._queue_successor(snapshot)
        needed = new and snapshot is not None and snapshot.head_needs is not None
        if not needed and (self._next_step_at is None or now < self._next_step_at):
            return False
        was_electing = self.electing
        try:
            result = self._session.ensure_head()
        except DagsterSlurmError as error:
            self._say(f"The head could not be seen to; trying again. {error.message}")
            return False
        self._next_step_at = now + STEP_SECONDS if result.standing == "claimed" else None
        self.found_none = result.standing == "none"
        self._say(head_sentence(result))
        return was_electing and not self.electing

    def _queue_successor(self, snapshot: SessionSnapshot) -> None:
        left, next_one = snapshot.head.time_left_seconds, snapshot.successor
        if snapshot.head.slurm_job_id != self._successors_of:
            self._successors, self._successors_of = 0, snapshot.head.slurm_job_id
        due = self._window is not None and left is not None and left <= self._window and not snapshot.closing
        if not due or self._successors >= SUCCESSORS_ALLOWED:
            return
        if next_one is not None and next_one.committed is not False:
            return
        try:
            result = self._session.submit_successor()
        except DagsterSlurmError as error:
            self._say(f"The next head could not be queued; trying again. {error.message}")
            return
        self._successors += bool(result.submitted or "refused" in result.held_back.codes)
        if result.submitted or result.held_back:
            told = f"job {', '.join(result.submitted)}" if result.submitted else "not submitted"
            self._say(f"The next head: {told}. {result.held_back}".rstrip())

    def _say(self, sentence: str) -> None:
        if sentence != self._said:
            self._said = sentence
            self._log.warning(sentence)


def head_sentence(result: HeadResult) -> str:
    """Where the head stands, for people."""
    reasons = f" {result.held_back}" if result.held_back else ""
    if result.standing == "claimed":
        return f"Job {result.claimed} is to be the next head: Ray's head starts there.{reasons}"
    if result.submitted:
        return f"A new head was submitted: job {', '.join(result.submitted)}.{reasons}"
    if result.standing == "leads":
        return f"The head is job {result.head_job_id}.{reasons}"
    return f"The head's job {result.head_job_id} needs a successor: {result.standing}.{reasons}"
