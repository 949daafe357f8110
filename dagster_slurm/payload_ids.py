"""Names of payloads: when, for which step, by which attempt of it; and what an attempt owes to those before it."""

from __future__ import annotations

import hashlib
import logging
import secrets

from dagster_slurm.patience import Pace, Patience
from dagster_slurm.ticks import DrivenSession

#: A step's attempt is the process it runs in: a killed one leaves its payload to the next.
_ATTEMPT = secrets.token_hex(4)

#: A cancelled payload is terminated at once and killed ten seconds later, if its head lives.
EARLIER_LIMIT_SECONDS = 30.0
_LOOK_SECONDS = 1.0


def step_part(step: str) -> str:
    """The part of a payload's id that names its step, whatever characters the step's name has."""
    return hashlib.sha256(step.encode()).hexdigest()[:12]


def new_payload_id(session: DrivenSession, step: str) -> str:
    """An id for a step's next payload. Ids begin with the login node's clock, so the greatest is the newest."""
    return f"{session.inspect().observed_at}-{step_part(step)}-{_ATTEMPT}-{secrets.token_hex(4)}"


def next_payload_id(session: DrivenSession, payload_id: str) -> str:
    """An id for another run of the same attempt's payload."""
    _, middle = payload_id.split("-", 1)
    return f"{session.inspect().observed_at}-{middle.rpartition('-')[0]}-{secrets.token_hex(4)}"


def messages_path(session: DrivenSession, payload_id: str) -> str:
    """Where a payload's Pipes messages go on the cluster."""
    return f"{session.session_dir}/payloads/{payload_id}/messages"


def end_earlier_attempts(session: DrivenSession, step: str, log: logging.Logger, pace: Pace) -> None:
    """Cancel what a killed attempt of the step left running, and wait for its end: two of them must not run at once.

    Raises:
        RemoteError: the cluster could not be reached for too long.
    """
    patience = Patience(log, pace)
    until = pace.clock() + EARLIER_LIMIT_SECONDS
    told = False
    while running := patience.ask(lambda: session.replace_payloads(step_part(step), _ATTEMPT)):
        if not told:
            log.warning(f"An earlier attempt of this step left its payload running; it is ended: {', '.join(running)}.")
            told = True
        if pace.clock() >= until:
            log.warning(f"It has not ended within {EARLIER_LIMIT_SECONDS:g} s: its head is gone, or does not answer.")
            return
        pace.sleep(_LOOK_SECONDS)
