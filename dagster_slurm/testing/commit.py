"""One commit on a simulated site, step for step as ``commit.sh`` makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import attrs

from dagster_slurm.allocations.ledger import Ledger, read_ledger
from dagster_slurm.allocations.observation import Fate, Observation, SubmissionTrace, comment_for
from dagster_slurm.allocations.plan import (
    Archive,
    Cancel,
    Close,
    CommitRefused,
    CommitRequest,
    Committed,
    Drain,
    Effect,
    Forget,
    NotTried,
    Revoke,
    SubmissionOutcome,
    Submit,
)
from dagster_slurm.errors import LockTimeout
from dagster_slurm.remote.scripts import FEW_SUBMISSIONS, MANY_AT_ONCE
from dagster_slurm.slurm.replies import Ambiguous, Submitted
from dagster_slurm.testing.files import SimulatedFiles
from dagster_slurm.testing.scheduler import SimulatedScheduler

LOCK_STALE_SECONDS = 75
EFFECT_LIMIT_SECONDS = 40
OBSERVATION_LIMIT_SECONDS = 60

#: Labels of the steps right after an effect has looked at its lock.
BEGINNINGS = frozenset({"before-sent", "before-cancel", "before-drain", "before-revoke"})

_Step: TypeAlias = "tuple[str, Effect | None]"


@attrs.define(kw_only=True)
class SimulatedCommit:
    """A commit in the making: other processes can act between any two of its steps.

    Attributes:
        files: The session directory.
        scheduler: The scheduler.
        request: What is to be committed.
        look: Takes the fresh look of a refusal.
        answer: What it answered; None while it goes on.
    """

    files: SimulatedFiles
    scheduler: SimulatedScheduler
    request: CommitRequest
    look: Callable[[], Observation]
    answer: Committed | CommitRefused | None = None
    agenda: list[_Step] = attrs.field(init=False)
    _former: str | None = None
    _locked_at: int = 0
    _stop: str | None = None
    _submissions: dict[str, SubmissionOutcome] = attrs.field(factory=dict)
    _revoked: dict[str, bool] = attrs.field(factory=dict)

    @agenda.default
    def _first_agenda(self) -> list[_Step]:
        return self.steps()

    # -- the order of things -----------------------------------------------------------------------

    def steps(self) -> list[_Step]:
        """Every step, in order."""
        recording = [*self.entering(), ("put_in_place", None)]
        return [*recording, *self.acting(), ("release", None)]

    def entering(self) -> list[_Step]:
        """Until everything was checked."""
        return [(name, None) for name in ("prepare", "lock", "check", "mark", "look_at_lock")]

    def acting(self) -> list[_Step]:
        """The effects."""
        begun: list[Submit] = []
        steps: list[_Step] = []
        at_once = MANY_AT_ONCE if len(self._tokens()) > FEW_SUBMISSIONS else 1
        for effect in self.request.effects:
            if isinstance(effect, Submit):
                if len(begun) == at_once:
                    steps += _finishing(begun.pop(0))
                begun.append(effect)
            steps += [(name, effect) for name in _steps_of(effect)]
        return [*steps, *(step for submit in begun for step in _finishing(submit))]

    def step(self) -> str | None:
        """Make the next step that others can see, and return its label; None when it is over.

        Raises:
            LockTimeout: somebody else holds the lock, and may do so.
        """
        while self.answer is None:
            if not self.agenda:
                self.answer = Committed(submissions=self._submissions, revoked=self._revoked)
                break
            name, effect = self.agenda.pop(0)
            label: str | None = getattr(self, f"do_{name}")(effect)
            if label is not None:
                return label
        return None

    @property
    def next_step(self) -> str | None:
        """Name of the next step; None when it is over."""
        return self.agenda[0][0] if self.answer is None and self.agenda else None

    # -- until the ledger is in place --------------------------------------------------------------

    def do_prepare(self, _: None) -> str | None:
        """Write and sync what will be put in place, before the lock is taken."""
        if self.scheduler.silent and any(isinstance(effect, Submit | Cancel) for effect in self.request.effects):
            return self.refuse("scheduler_silent")
        self.files.prepared[self.request.nonce] = self.request.ledger
        for token in self._tokens():
            self.files.fates[token] = SubmissionTrace(fate=Fate.READY)
        return "prepared"

    def do_lock(self, _: None) -> str | None:
        """Take the lock, or begin to take it over."""
        holder, now = self.files.lock_owner, self.scheduler.now
        if holder is None:
            return self._own_lock()
        if self.files.owner_alive and now - self.files.lock_taken_at < LOCK_STALE_SECONDS:
            raise LockTimeout(f"the session lock stayed taken by {holder}")
        self._former = holder
        self.do_fence(holder)
        self.agenda.insert(0, ("take_over", None))
        return "takeover-fenced"

    def do_fence(self, holder: str) -> None:
        """The old owner finds nothing to put in place."""
        self.files.prepared.pop(holder, None)

    def do_take_over(self, _: None) -> str | None:
        """Rename the old owner's file; somebody may have been faster."""
        return self._own_lock() if self.files.lock_owner == self._former else self.do_lock(None)

    def _own_lock(self) -> str:
        files, now = self.files, self.scheduler.now
        files.lock_owner, files.lock_taken_at, files.owner_alive = self.request.nonce, now, True
        self._locked_at = now
        return "locked"

    def do_check(self, _: None) -> str | None:
        """Is everything still as it was observed?"""
        if self.files.ledger_sum() != self.request.expected_sha256:
            return self.refuse("changed")
        if not 0 <= self._locked_at - self.request.observed_at <= OBSERVATION_LIMIT_SECONDS:
            return self.refuse("stale")
        if self.files.closing and not self.request.even_if_closing:
            return self.refuse("closing")
        return "checked"

    def do_mark(self, _: None) -> str | None:
        """Mark the submissions as open."""
        self.files.open |= set(self._tokens())
        return "before-ledger"

    def do_look_at_lock(self, _: None) -> str | None:
        """Looking at the owner and renaming are two acts: what keeps a late rename from doing harm is the fence."""
        return "owner-checked" if self.files.lock_owner == self.request.nonce else self.refuse("changed")

    def do_put_in_place(self, _: None) -> str | None:
        """Rename the prepared ledger."""
        prepared = self.files.prepared.pop(self.request.nonce, None)
        if prepared is None:
            return self.refuse("changed")
        self.files.ledger = prepared
        return "ledger-in-place"

    def refuse(self, code: str) -> str | None:
        """Clear away, release, look again."""
        self.files.prepared.pop(self.request.nonce, None)
        for token in self._tokens():
            self.files.fates.pop(token, None)
        self._let_go()
        self.answer = CommitRefused(code=code, detail=code, observation=self.look())
        return None

    def do_release(self, _: None) -> str | None:
        """Remove one's own owner file."""
        self._let_go()
        return "released"

    def _let_go(self) -> None:
        if self.files.lock_owner == self.request.nonce:
            self.files.lock_owner = None

    def _tokens(self) -> list[str]:
        return [effect.token for effect in self.request.effects if isinstance(effect, Submit)]

    # -- effects -----------------------------------------------------------------------------------

    def may_act(self) -> bool:
        """Every effect looks at its own lock and at the time first."""
        held = self.files.lock_owner == self.request.nonce
        return held and 0 <= self.scheduler.now - self._locked_at < EFFECT_LIMIT_SECONDS

    def _skip(self, effect: Effect) -> str | None:
        self.agenda = [step for step in self.agenda if step[1] is not effect]
        return None

    def do_begin_submission(self, effect: Submit) -> str | None:
        """May it be submitted?"""
        blocked = self.files.closing and not self.request.even_if_closing
        if self._stop in ("all", effect.shape) or blocked or not self.may_act():
            self._submissions[effect.token] = SubmissionOutcome(NotTried("stopped"), None)
            self._skip(effect)
            self.agenda[:0] = [("bar", effect), ("withdraw", effect)]
            return None
        return "before-sent"

    def do_send(self, effect: Submit) -> str | None:
        """Whoever took over may have barred it: then this marker cannot be made and nothing is submitted."""
        if not self.files.move_fate(effect.token, Fate.READY, Fate.SENT):
            self._submissions[effect.token] = SubmissionOutcome(NotTried("revoked"), None)
            return self._skip(effect)
        return "before-sbatch"

    def do_sbatch(self, effect: Submit) -> str | None:
        """Submit; the answer is in hand but not written."""
        ledger = self._ledger()
        shape = ledger.shapes[effect.shape]
        answer = self.scheduler.submit(
            ledger.job_name,
            effect.token,
            comment_for(ledger.session_id, effect.token),
            shape.time_limit_seconds or 86_400,
            held="--hold" in shape.extra_options,
        )
        self._submissions[effect.token] = SubmissionOutcome(answer, self.scheduler.now)
        return "after-sbatch"

    def do_note_result(self, effect: Submit) -> str | None:
        """Write the answer down."""
        outcome = self._submissions[effect.token]
        answer = outcome.answer
        assert not isinstance(answer, NotTried)
        trace = self.files.fates[effect.token]
        self.files.fates[effect.token] = attrs.evolve(trace, outcome=answer, submitted_at=outcome.submitted_at)
        if not isinstance(answer, Submitted):
            self._stop = "all" if isinstance(answer, Ambiguous) else effect.shape
        return "after-result"

    def do_begin(self, effect: Effect) -> str | None:
        """May it be done?"""
        return f"before-{_word(effect)}" if self.may_act() else self._skip(effect)

    def do_bar(self, effect: Submit | Revoke) -> str | None:
        """What was never sent is barred from being sent; until it is revoked it looks sent."""
        if self.files.move_fate(effect.token, Fate.READY, Fate.SENT):
            return "revoke-barred"
        if isinstance(effect, Revoke):
            self._revoked[effect.token] = False
        return self._skip(effect)

    def do_withdraw(self, effect: Submit | Revoke) -> str | None:
        """Take the claim away; fails when a job was faster."""
        done = self.files.move_fate(effect.token, Fate.SENT, Fate.REVOKED)
        if isinstance(effect, Revoke):
            self._revoked[effect.token] = done
            return "after-revoke"
        return "withdrawn"

    def do_act(self, effect: Effect) -> str | None:
        """Cancel or drain."""
        if isinstance(effect, Cancel):
            self.scheduler.cancel(effect.slurm_job_ids, self._ledger().job_name, only_pending=effect.only_pending)
        elif isinstance(effect, Drain):
            self.files.drains[effect.token] = effect.deadline
        return f"after-{_word(effect)}"

    def do_forget(self, effect: Forget) -> str | None:
        """Remove markers."""
        self.files.open -= set(effect.tokens)
        return "forgotten"

    def do_close(self, _: Close) -> str | None:
        """Mark the session as ending."""
        self.files.closing = True
        return "closing-marked"

    def do_cancel_named(self, _: Close) -> str | None:
        """Cancel everything of the session's name."""
        self.scheduler.cancel_named(self._ledger().job_name)
        return "cancelled"

    def _ledger(self) -> Ledger:
        return read_ledger(self.request.ledger, path="the new ledger")


def _word(effect: Effect) -> str:
    return type(effect).__name__.lower()


def _finishing(effect: Submit) -> list[_Step]:
    return [("sbatch", effect), ("note_result", effect)]


def _steps_of(effect: Effect) -> Iterable[str]:
    if isinstance(effect, Submit):
        return ("begin_submission", "send")
    if isinstance(effect, Revoke):
        return ("begin", "bar", "withdraw") if effect.fate is Fate.READY else ("begin", "withdraw")
    if isinstance(effect, Forget):
        return ("forget",)
    if isinstance(effect, Close):
        return ("close", "cancel_named")
    return () if isinstance(effect, Archive) else ("begin", "act")
