"""A decision of ``reconcile_workers`` in the making: every step takes one and returns the next."""

from __future__ import annotations

import attrs

from dagster_slurm.allocations.bookkeeping import Books
from dagster_slurm.allocations.conditions import Condition, may_be_live
from dagster_slurm.allocations.ledger import AllocationRecord, Ledger, OpenSubmission
from dagster_slurm.allocations.observation import Observation
from dagster_slurm.allocations.plan import Effect, HeldBack, Submit
from dagster_slurm.allocations.request import WorkerRequest


@attrs.frozen(kw_only=True)
class Decision:
    """The decision so far.

    Attributes:
        books: The ledger as this decision changes it, and the condition of each record.
        observation: What was observed.
        request: What was asked for.
        effects: Releases, in order.
        submits: Submissions, in order.
        released: Job ids released by name or by a count.
        expired: Job ids released because they were pending for too long.
        held_back: What is not done.
    """

    books: Books
    observation: Observation
    request: WorkerRequest
    effects: tuple[Effect, ...] = ()
    submits: tuple[Submit, ...] = ()
    released: tuple[str, ...] = ()
    expired: tuple[str, ...] = ()
    held_back: tuple[HeldBack, ...] = ()

    @property
    def ledger(self) -> Ledger:
        """The ledger so far."""
        return self.books.ledger

    @property
    def now(self) -> int:
        """Login node's clock of the observation."""
        return self.observation.login_clock

    def condition(self, record: AllocationRecord) -> Condition:
        """What the observation says about a record."""
        return self.books.conditions[record.slurm_job_id]

    def counted(self, key: str) -> list[AllocationRecord]:
        """Allocations of an intent that are live, or not known to have ended, and not released."""
        return [
            record
            for record in self.ledger.records()
            if record.intent == key and record.drain_deadline is None and may_be_live(record, self.condition(record))
        ]

    def open_submissions(self, key: str) -> list[OpenSubmission]:
        """Open submissions of an intent that were there before this decision."""
        new = {submit.token for submit in self.submits}
        return [s for s in self.ledger.worker_submissions.values() if s.intent == key and s.token not in new]

    def attempted(self) -> int:
        """How many submissions earlier attempts of this call put into the ledger."""
        return len(self.ledger.known_tokens & self.request.own_tokens)

    def holding(self, code: str, sentence: str) -> Decision:
        """The same, with one more thing held back."""
        return attrs.evolve(self, held_back=(*self.held_back, HeldBack(code, sentence)))

    def with_ledger(self, ledger: Ledger) -> Decision:
        """The same with a changed ledger."""
        return attrs.evolve(self, books=attrs.evolve(self.books, ledger=ledger))
