"""A session's site in memory: observe and commit step for step as the shell scripts do, with faults between steps."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dagster_slurm.allocations.conditions import unanswered_ids, with_absent
from dagster_slurm.allocations.ledger import Ledger, read_ledger
from dagster_slurm.allocations.observation import Fate, Observation, SubmissionTrace
from dagster_slurm.allocations.plan import CommitRefused, CommitRequest, Committed
from dagster_slurm.allocations.settings import job_name_for
from dagster_slurm.errors import LockTimeout, ReplyIncomplete
from dagster_slurm.slurm.replies import Listing
from dagster_slurm.testing.commit import BEGINNINGS, SimulatedCommit
from dagster_slurm.testing.files import SimulatedFiles
from dagster_slurm.testing.scheduler import SimulatedJob, SimulatedScheduler


@attrs.define
class SimulatedSite:
    """One session on a simulated scheduler.

    Several processes are several callers of the same site. A fault is armed for the next commit: at its step of that
    number it is killed ("die"), killed together with everything that was not synced ("power"), suspended until
    ``wake`` ("pause"), or finishes with its reply lost ("lose").

    Attributes:
        scheduler: The scheduler.
        session_id: Name of the session.
        files: The session directory.
        fault: (kind, step) for the next commit, or None.
        steps: Labels of every step that was made, for tests.
        unguarded: Labels of effects that began without their lock; nothing ever should.
        commit_type: How commits are made; tests plant bugs here.
        watch: Called after every step, for checks that must hold at any moment.
    """

    scheduler: SimulatedScheduler
    session_id: str = "sim"
    files: SimulatedFiles = attrs.field(factory=SimulatedFiles)
    fault: tuple[str, int] | None = None
    steps: list[str] = attrs.field(factory=list)
    unguarded: list[str] = attrs.field(factory=list)
    commit_type: type[SimulatedCommit] = SimulatedCommit
    watch: Callable[[], None] = lambda: None
    _paused: list[SimulatedCommit] = attrs.field(factory=list)

    # -- the site ----------------------------------------------------------------------------------

    def observe(self) -> Observation:
        """Look once: ledger, open submissions, listing, then everything else."""
        ledger = self.read()
        return self.look(ledger, self.files.ledger_sum(), self.traces(), self.listing(ledger))

    def traces(self) -> dict[str, SubmissionTrace]:
        """Files of the submissions that have a marker."""
        missing = SubmissionTrace(fate=Fate.MISSING)
        return {token: self.files.fates.get(token, missing) for token in self.files.open}

    def listing(self, ledger: Ledger | None) -> Listing:
        """The scheduler's answer."""
        return self.scheduler.listing(job_name_for(self.session_id) if ledger is None else ledger.job_name)

    def look(
        self, ledger: Ledger | None, ledger_sum: str, traces: dict[str, SubmissionTrace], listing: Listing
    ) -> Observation:
        """The look that has read these, and reads the rest now."""
        observation = Observation(
            login_clock=self.scheduler.now,
            ledger=ledger,
            ledger_sha256=ledger_sum,
            traces=traces,
            listing=listing,
            closing=self.files.closing,
            drains=frozenset(self.files.drains),
        )
        gone = unanswered_ids(observation)
        if not gone:
            return observation
        found = with_absent(observation, self.scheduler.listing_by_id(gone))
        return attrs.evolve(found, accounting=self.scheduler.account(gone))

    def begin(self, request: CommitRequest) -> SimulatedCommit:
        """A commit that has not made its first step."""
        return self.commit_type(files=self.files, scheduler=self.scheduler, request=request, look=self.observe)

    def commit(self, request: CommitRequest) -> Committed | CommitRefused:
        """Commit once, meeting the armed fault."""
        kind, at = self.fault or ("none", -1)
        self.fault = None
        commit = self.begin(request)
        number = 0
        while True:
            if number == at and kind in ("die", "pause", "power"):
                self._stop(commit, kind)
                raise ReplyIncomplete("the reply was cut")
            if not self._advance(commit):
                break
            number += 1
        if kind == "lose" or commit.answer is None:
            raise ReplyIncomplete("the reply was cut")
        return commit.answer

    def _stop(self, commit: SimulatedCommit, kind: str) -> None:
        if self.files.lock_owner == commit.request.nonce:
            self.files.owner_alive = kind == "pause"
        if kind == "pause":
            self._paused.append(commit)
        if kind == "power":
            self.files.cut_power()

    def _advance(self, commit: SimulatedCommit) -> bool:
        label = commit.step()
        if label is None:
            return False
        self.steps.append(label)
        if label in BEGINNINGS and self.files.lock_owner != commit.request.nonce:
            self.unguarded.append(label)
        self.watch()
        return True

    def close_by_name(self) -> Listing:
        """Mark the session as ending, cancel every job of its name, and look."""
        self.files.closing = True
        self.scheduler.cancel_named(job_name_for(self.session_id))
        return self.listing(None)

    # -- the world ---------------------------------------------------------------------------------

    def wake(self) -> None:
        """Commits that were suspended go on to their end; nobody hears them."""
        paused, self._paused = self._paused, []
        for commit in paused:
            try:
                while self._advance(commit):
                    pass
            except LockTimeout:
                continue

    def start_job(self, job_id: str) -> None:
        """Start a job: its first act is to claim its fate file."""
        self.scheduler.start(job_id, self.files.claim)

    def working(self) -> list[SimulatedJob]:
        """Jobs that do work, or will when they start."""
        return [job for job in self.scheduler.jobs.values() if job.live and self.files.could_claim(job)]

    def on_their_way(self) -> list[SimulatedJob]:
        """Jobs whose submission the scheduler has not taken yet, and that would work when they come."""
        return [job for job in self.scheduler.late if self.files.could_claim(job)]

    def read(self) -> Ledger | None:
        """The ledger."""
        return None if self.files.ledger is None else read_ledger(self.files.ledger, path="simulated ledger")
