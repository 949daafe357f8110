"""A session's site in memory: observe and commit step for step as the shell scripts do, with faults between steps."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable

import attrs

from dagster_slurm.allocations.conditions import unanswered_ids
from dagster_slurm.allocations.ledger import Ledger, read_ledger
from dagster_slurm.allocations.observation import NO_LEDGER, Fate, Observation, SubmissionTrace, comment_for
from dagster_slurm.allocations.plan import (
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
from dagster_slurm.errors import LockTimeout, ReplyIncomplete
from dagster_slurm.slurm.replies import Ambiguous, Submitted
from dagster_slurm.testing.scheduler import SimulatedJob, SimulatedScheduler

LOCK_STALE_SECONDS = 75
EFFECT_LIMIT_SECONDS = 40
OBSERVATION_LIMIT_SECONDS = 60

_Steps = Generator[str, None, "Committed | CommitRefused"]


@attrs.define(kw_only=True)
class SimulatedFiles:
    """A session directory: what the scripts and the jobs of a session share."""

    ledger: bytes | None = None
    prepared: dict[str, bytes] = attrs.field(factory=dict)
    open: set[str] = attrs.field(factory=set)
    fates: dict[str, SubmissionTrace] = attrs.field(factory=dict)
    drains: dict[str, int] = attrs.field(factory=dict)
    closing: bool = False
    lock_owner: str | None = None
    lock_taken_at: int = 0
    owner_alive: bool = False


@attrs.define
class SimulatedSite:
    """One session on a simulated scheduler.

    Several processes are several callers of the same site. A fault is armed for the next commit: at its step of that
    number it is killed ("die"), suspended until ``wake`` ("pause"), or finishes with its reply lost ("lose").

    Attributes:
        scheduler: The scheduler.
        session_id: Name of the session.
        files: The session directory.
        fault: (kind, step) for the next commit, or None.
        steps: Labels of every step that was made, for tests.
    """

    scheduler: SimulatedScheduler
    session_id: str = "sim"
    files: SimulatedFiles = attrs.field(factory=SimulatedFiles)
    fault: tuple[str, int] | None = None
    steps: list[str] = attrs.field(factory=list)
    _paused: list[tuple[str, _Steps]] = attrs.field(factory=list)

    # -- the site ----------------------------------------------------------------------------------

    def observe(self) -> Observation:
        """Look once."""
        ledger = self.read()
        listing = self.scheduler.listing(self._job_name(ledger))
        observation = Observation(
            login_clock=self.scheduler.now,
            ledger=ledger,
            ledger_sha256=self._sum(),
            traces={
                token: self.files.fates.get(token, SubmissionTrace(fate=Fate.MISSING)) for token in self.files.open
            },
            listing=listing,
            closing=self.files.closing,
            drains=frozenset(self.files.drains),
        )
        gone = unanswered_ids(observation)
        return attrs.evolve(observation, accounting=self.scheduler.account(gone)) if gone else observation

    def commit(self, request: CommitRequest) -> Committed | CommitRefused:
        """Commit once, meeting the armed fault."""
        kind, at = self.fault or ("none", -1)
        self.fault = None
        steps = self._commit(request)
        number = 0
        while True:
            if number == at and kind in ("die", "pause"):
                if self.files.lock_owner == request.nonce:
                    self.files.owner_alive = kind == "pause"
                if kind == "pause":
                    self._paused.append((request.nonce, steps))
                raise ReplyIncomplete("the reply was cut")
            try:
                self.steps.append(next(steps))
            except StopIteration as done:
                if kind == "lose":
                    raise ReplyIncomplete("the reply was cut") from None
                reply: Committed | CommitRefused = done.value
                return reply
            number += 1

    # -- the world ---------------------------------------------------------------------------------

    def wake(self) -> None:
        """Commits that were suspended go on to their end; nobody hears them."""
        paused, self._paused = self._paused, []
        for _, steps in paused:
            try:
                self.steps.extend(steps)
            except LockTimeout:
                continue

    def start_job(self, job_id: str) -> None:
        """Start a job: its first act is to claim its fate file."""
        self.scheduler.start(job_id, self._claim)

    def working(self) -> list[SimulatedJob]:
        """Jobs that do work, or will when they start."""
        return [job for job in self.scheduler.jobs.values() if job.live and self._could_work(job)]

    def on_their_way(self) -> list[SimulatedJob]:
        """Jobs whose submission the scheduler has not taken yet, and that would work when they come."""
        return [job for job in self.scheduler.late if self._could_work(job)]

    def read(self) -> Ledger | None:
        """The ledger."""
        return None if self.files.ledger is None else read_ledger(self.files.ledger, path="simulated ledger")

    # -- parts -------------------------------------------------------------------------------------

    def _job_name(self, ledger: Ledger | None) -> str:
        return f"dagster-{self.session_id}" if ledger is None else ledger.job_name

    def _sum(self) -> str:
        return NO_LEDGER if self.files.ledger is None else hashlib.sha256(self.files.ledger).hexdigest()

    def _claim(self, job: SimulatedJob) -> bool:
        trace = self.files.fates.get(job.token)
        if trace is None or self.files.closing:
            return False
        if trace.fate is Fate.SENT:
            started = attrs.evolve(trace, fate=Fate.STARTED, started_job_id=job.slurm_job_id)
            self.files.fates[job.token] = started
            return True
        return trace.fate is Fate.STARTED and trace.started_job_id == job.slurm_job_id

    def _could_work(self, job: SimulatedJob) -> bool:
        trace = self.files.fates.get(job.token)
        if trace is None:
            return False
        return trace.fate is Fate.SENT or (trace.fate is Fate.STARTED and trace.started_job_id == job.slurm_job_id)

    def _refused(self, request: CommitRequest, code: str) -> CommitRefused:
        files = self.files
        files.prepared.pop(request.nonce, None)
        for token in _tokens(request.effects):
            files.fates.pop(token, None)
        if files.lock_owner == request.nonce:
            files.lock_owner = None
        return CommitRefused(code=code, detail=code, observation=self.observe())

    def _commit(self, request: CommitRequest) -> _Steps:
        files, scheduler, me = self.files, self.scheduler, request.nonce
        if scheduler.silent and any(isinstance(effect, Submit | Cancel) for effect in request.effects):
            return self._refused(request, "scheduler_silent")
        files.prepared[me] = request.ledger
        for token in _tokens(request.effects):
            files.fates[token] = SubmissionTrace(fate=Fate.READY)
        yield "prepared"
        self._take_lock(me)
        locked_at = scheduler.now
        yield "locked"
        if self._sum() != request.expected_sha256:
            return self._refused(request, "changed")
        if not 0 <= locked_at - request.observed_at <= OBSERVATION_LIMIT_SECONDS:
            return self._refused(request, "stale")
        if files.closing and not request.even_if_closing:
            return self._refused(request, "closing")
        yield "checked"
        files.open |= set(_tokens(request.effects))
        yield "marked"
        if files.lock_owner != me:
            return self._refused(request, "changed")
        # Looking at the owner and renaming are two acts: what keeps a late rename from doing harm is the fence.
        yield "owner-checked"
        if me not in files.prepared:
            return self._refused(request, "changed")
        files.ledger = files.prepared.pop(me)
        yield "in-place"
        effects = _Effects(self, request, locked_at)
        for effect in request.effects:
            yield from effects.perform(effect)
        if files.lock_owner == me:
            files.lock_owner = None
        yield "released"
        return effects.reply()

    def _take_lock(self, me: str) -> None:
        files, now = self.files, self.scheduler.now
        if files.lock_owner is not None:
            if files.owner_alive and now - files.lock_taken_at < LOCK_STALE_SECONDS:
                raise LockTimeout(f"the session lock stayed taken by {files.lock_owner}")
            # The fence of a takeover: the old owner finds nothing to put in place.
            files.prepared.pop(files.lock_owner, None)
        files.lock_owner, files.lock_taken_at, files.owner_alive = me, now, True


def _tokens(effects: Iterable[Effect]) -> list[str]:
    return [effect.token for effect in effects if isinstance(effect, Submit)]


class _Effects:
    """The effects of one commit, each after a look at the lock and the time."""

    def __init__(self, site: SimulatedSite, request: CommitRequest, locked_at: int) -> None:
        self._site = site
        self._request = request
        self._locked_at = locked_at
        self._ledger = read_ledger(request.ledger, path="the new ledger")
        self._stop: str | None = None
        self._submissions: dict[str, SubmissionOutcome] = {}
        self._revoked: dict[str, bool] = {}

    def reply(self) -> Committed:
        """What became of them."""
        return Committed(submissions=self._submissions, revoked=self._revoked)

    def _may_act(self) -> bool:
        held = self._site.files.lock_owner == self._request.nonce
        return held and 0 <= self._site.scheduler.now - self._locked_at < EFFECT_LIMIT_SECONDS

    def perform(self, effect: Effect) -> Generator[str, None, None]:
        """One effect, a step before each act that others can see."""
        files, scheduler = self._site.files, self._site.scheduler
        if isinstance(effect, Submit):
            yield from self._submit(effect)
        elif isinstance(effect, Forget):
            files.open -= set(effect.tokens)
            yield "forgotten"
        elif isinstance(effect, Close):
            files.closing = True
            yield "closing"
            scheduler.cancel_named(self._ledger.job_name)
        elif self._may_act():
            yield "acting"
            if isinstance(effect, Cancel):
                scheduler.cancel(effect.slurm_job_ids, self._ledger.job_name, only_pending=effect.only_pending)
            elif isinstance(effect, Drain):
                files.drains[effect.token] = effect.deadline
            elif isinstance(effect, Revoke):
                self._revoked[effect.token] = self._revoke(effect.token, effect.fate)
            yield "acted"

    def _revoke(self, token: str, fate: Fate) -> bool:
        trace = self._site.files.fates.get(token)
        if trace is None or trace.fate is not fate:
            return False
        self._site.files.fates[token] = attrs.evolve(trace, fate=Fate.REVOKED)
        return True

    def _submit(self, effect: Submit) -> Generator[str, None, None]:
        fates, token = self._site.files.fates, effect.token
        blocked = self._site.files.closing and not self._request.even_if_closing
        if self._stop in ("all", effect.shape) or blocked or not self._may_act():
            self._revoke(token, Fate.READY)
            self._submissions[token] = SubmissionOutcome(NotTried("stopped"), None)
            return
        yield "before-sent"
        if fates[token].fate is not Fate.READY:
            self._submissions[token] = SubmissionOutcome(NotTried("revoked"), None)
            return
        fates[token] = SubmissionTrace(fate=Fate.SENT)
        yield "before-sbatch"
        shape = self._ledger.shapes[effect.shape]
        now = self._site.scheduler.now
        answer = self._site.scheduler.submit(
            self._ledger.job_name,
            token,
            comment_for(self._ledger.session_id, token),
            shape.time_limit_seconds or 86_400,
        )
        yield "after-sbatch"
        fates[token] = attrs.evolve(fates[token], outcome=answer, submitted_at=now)
        self._submissions[token] = SubmissionOutcome(answer, now)
        yield "after-result"
        if not isinstance(answer, Submitted):
            self._stop = "all" if isinstance(answer, Ambiguous) else effect.shape
