"""The vocabulary of a decision: effects, plans, and what a commit answers. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

import attrs

from dagster_slurm.allocations.ledger import AllocationRecord, Ledger, Role
from dagster_slurm.allocations.observation import Fate, Observation
from dagster_slurm.slurm.replies import Ambiguous, Listing, Refused, Submitted


@attrs.frozen
class Submit:
    """Submit one job; its token is in the ledger of the same commit."""

    token: str
    role: Role
    intent: str | None
    shape: str


@attrs.frozen
class Cancel:
    """Cancel recorded jobs, filtered by our own job name and user; ``only_pending`` leaves one that started alone."""

    slurm_job_ids: tuple[str, ...]
    only_pending: bool


@attrs.frozen
class Drain:
    """Tell a running allocation to finish its work; ``deadline`` is the persisted one, on the login node's clock."""

    token: str
    slurm_job_id: str
    deadline: int
    remaining_seconds: int


@attrs.frozen
class Revoke:
    """Move a submission's fate file to ``revoked``; fails when the job has started."""

    token: str
    fate: Fate


@attrs.frozen
class Forget:
    """Remove the markers of submissions that are not open any more."""

    tokens: tuple[str, ...]


@attrs.frozen
class Archive:
    """Append ended records to the history, before the ledger that lacks them is put in place."""

    records: tuple[AllocationRecord, ...]


@attrs.frozen
class Close:
    """Mark the session as ending and cancel every job of our user that bears its name."""


Effect: TypeAlias = Submit | Cancel | Drain | Revoke | Forget | Archive | Close


@attrs.frozen
class HeldBack:
    """Something that was asked for and not done.

    Attributes:
        code: scheduler_silent, observation_stale, head_changed, no_head, budget, unresolved, refused, contended,
            closing or limit.
        sentence: The same for people, with the scheduler's own words where it said something.
    """

    code: str
    sentence: str

    def __str__(self) -> str:
        return self.sentence


#: Code and sentence of what a session that is ending holds back.
CLOSING = ("closing", "The session is ending: it starts no new work.")


def scheduler_silent(observation: Observation) -> HeldBack:
    """What an unanswered listing holds back, with what was said instead."""
    said = f" It said: {observation.listing.error}" if observation.listing.error else ""
    return HeldBack("scheduler_silent", f"The scheduler did not answer, so nothing is submitted or released.{said}")


def refusals(texts: tuple[str, ...]) -> tuple[HeldBack, ...]:
    """The scheduler's refusals."""
    return tuple(HeldBack("refused", f"The scheduler refused a submission: {text}") for text in texts)


class HeldBackReasons(tuple[HeldBack, ...]):
    """Why a call did less than it was asked to; empty (false) when nothing was held back."""

    __slots__ = ()

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes, in order."""
        return tuple(reason.code for reason in self)

    def __str__(self) -> str:
        return " ".join(reason.sentence for reason in self)


@attrs.frozen(kw_only=True)
class Plan:
    """A decision: the ledger to put in place, then the effects, in order.

    Attributes:
        ledger: The new ledger, without ``last_commit``.
        effects: What to do once it is in place.
        held_back: What was asked for and is not done.
        released: Job ids that this plan releases.
        expired: Job ids that this plan cancels because they were pending for too long.
        adopted: Job ids found for submissions whose id was not recorded.
        unresolved: Open submissions that stay open.
        live: Job ids counted by the intents once the plan has been carried out, new submissions not included.
    """

    ledger: Ledger
    effects: tuple[Effect, ...] = ()
    held_back: tuple[HeldBack, ...] = ()
    released: tuple[str, ...] = ()
    expired: tuple[str, ...] = ()
    adopted: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    live: tuple[str, ...] = ()

    def changes(self, before: Ledger | None) -> bool:
        """Whether there is anything to commit. Records of a session are only made together with an effect."""
        return bool(self.effects) or (before is not None and self.ledger != before)


@attrs.frozen
class NotTried:
    """A submission that the commit did not try; its fate file is revoked."""

    reason: str


@attrs.frozen
class SubmissionOutcome:
    """What became of one submission of a commit; ``submitted_at`` is the login node's clock right before it."""

    answer: Submitted | Refused | Ambiguous | NotTried
    submitted_at: int | None


@attrs.frozen(kw_only=True)
class CommitRequest:
    """One commit.

    Attributes:
        nonce: Its name, 128-bit hex.
        expected_sha256: Checksum of the ledger that was observed.
        observed_at: Login node's clock of the observation.
        ledger: The ledger to put in place, ``last_commit`` set.
        effects: What to do then.
        even_if_closing: Only the end of a session may commit to one that is closing.
    """

    nonce: str
    expected_sha256: str
    observed_at: int
    ledger: bytes
    effects: tuple[Effect, ...]
    even_if_closing: bool = False


@attrs.frozen(kw_only=True)
class Committed:
    """The ledger is in place and the effects were tried.

    Attributes:
        submissions: What became of each submission, by token.
        revoked: Whether each revocation succeeded, by token.
        skipped: Effects that were not begun because time ran out or the lock was lost.
    """

    submissions: Mapping[str, SubmissionOutcome] = attrs.field(factory=dict)
    revoked: Mapping[str, bool] = attrs.field(factory=dict)
    skipped: int = 0


@attrs.frozen(kw_only=True)
class CommitRefused:
    """Nothing was done.

    Attributes:
        code: changed (somebody else committed), stale (more than a minute since the observation), closing,
            scheduler_silent or locked.
        detail: What was seen: for ``locked`` the lock's path, owner, host and age.
        observation: A fresh look, taken after the refusal.
    """

    code: str
    detail: str
    observation: Observation


class Site(Protocol):
    """Where a session lives: the real cluster, or the simulated one."""

    def observe(self) -> Observation:
        """Look once.

        Raises:
            RemoteError: the login node could not be asked.
        """

    def commit(self, request: CommitRequest) -> Committed | CommitRefused:
        """Commit once.

        Raises:
            RemoteError: there was no complete answer; whether it was done is unknown.
        """

    def close_by_name(self) -> Listing:
        """Mark the session as ending and cancel every job of its name, whatever its records say; then look.

        Raises:
            RemoteError: the login node could not be asked.
        """
