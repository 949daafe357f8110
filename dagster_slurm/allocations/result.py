"""What a call did, as values that callers branch on."""

from __future__ import annotations

import attrs

from dagster_slurm.allocations.plan import HeldBackReasons


@attrs.frozen(kw_only=True)
class ReconcileResult:
    """What one ``reconcile_workers`` call did. Tuples hold Slurm job ids.

    Attributes:
        submitted: Submitted by this call.
        released: Released by this call: given a deadline, then cancelled or drained.
        expired: Cancelled by this call because they stayed pending for longer than ``pending_timeout``.
        recovered: Found for submissions of earlier, interrupted calls, and recorded by this one.
        live: Allocations that the intents count after this call.
        held_back: What was asked for and not done, with the reason; empty (false) when there is nothing.
    """

    submitted: tuple[str, ...] = ()
    released: tuple[str, ...] = ()
    expired: tuple[str, ...] = ()
    recovered: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    held_back: HeldBackReasons = attrs.field(factory=HeldBackReasons)


@attrs.frozen(kw_only=True)
class EndResult:
    """How far the end of a session has come.

    Attributes:
        complete: A listing showed no live job of the session and no submission is open.
        live: Jobs that were still seen.
        unresolved: Submissions whose outcome is not known yet.
        by_name: The records could not be read, so the name of the jobs alone decided what is cancelled.
    """

    complete: bool
    live: tuple[str, ...] = ()
    unresolved: int = 0
    by_name: bool = False
