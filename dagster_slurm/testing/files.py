"""A session directory in memory: what the scripts and the jobs of a session share."""

from __future__ import annotations

import hashlib

import attrs

from dagster_slurm.allocations.observation import NO_LEDGER, Fate, SubmissionTrace
from dagster_slurm.testing.scheduler import SimulatedJob


@attrs.define(kw_only=True)
class SimulatedFiles:
    """A session directory.

    Attributes:
        ledger: Content of ``allocation.json``; None when there is none.
        prepared: Ledgers that commits want to put in place, by nonce.
        unsynced: Contents that a power cut would lose.
        open: Tokens that have a marker.
        fates: Files of each submission, by token.
        drains: Deadlines in drain files, by token.
        closing: Whether the session is ending.
        lock_owner: Nonce of the commit that holds the lock, or None.
        lock_taken_at: When it took it.
        owner_alive: Whether its process lives.
    """

    ledger: bytes | None = None
    prepared: dict[str, bytes] = attrs.field(factory=dict)
    unsynced: set[bytes] = attrs.field(factory=set)
    open: set[str] = attrs.field(factory=set)
    fates: dict[str, SubmissionTrace] = attrs.field(factory=dict)
    drains: dict[str, int] = attrs.field(factory=dict)
    closing: bool = False
    lock_owner: str | None = None
    lock_taken_at: int = 0
    owner_alive: bool = False

    def ledger_sum(self) -> str:
        """Checksum of the ledger."""
        return NO_LEDGER if self.ledger is None else hashlib.sha256(self.ledger).hexdigest()

    def move_fate(self, token: str, expected: Fate, to: Fate, *, job_id: str | None = None) -> bool:
        """Rename a fate file; False when it does not have the expected name."""
        trace = self.fates.get(token)
        if trace is None or trace.fate is not expected:
            return False
        self.fates[token] = attrs.evolve(trace, fate=to, started_job_id=job_id)
        return True

    def claim(self, job: SimulatedJob) -> bool:
        """The first act of a job: whether it goes on."""
        if not self.move_fate(job.token, Fate.SENT, Fate.STARTED, job_id=job.slurm_job_id):
            trace = self.fates.get(job.token)
            if trace is None or trace.fate is not Fate.STARTED or trace.started_job_id != job.slurm_job_id:
                return False
        return not self.closing

    def could_claim(self, job: SimulatedJob) -> bool:
        """Whether the job works, or would when it starts."""
        trace = self.fates.get(job.token)
        if trace is None:
            return False
        return trace.fate is Fate.SENT or (trace.fate is Fate.STARTED and trace.started_job_id == job.slurm_job_id)

    def cut_power(self) -> None:
        """The file server loses what was not synced: the names are there, their contents are not."""
        if self.ledger in self.unsynced:
            self.ledger = b""
        for nonce in [nonce for nonce, content in self.prepared.items() if content in self.unsynced]:
            self.prepared[nonce] = b""
