"""Payloads of a session: bring one to its head, look at it, end it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dagster_slurm.remote.payload_scripts import (
    Mark,
    PayloadPoll,
    cancel_script,
    poll_script,
    read_poll,
    read_running,
    read_start,
    replace_script,
    start_script,
)
from dagster_slurm.remote.transfer import pack
from dagster_slurm.session.base import SessionBase


class PayloadCalls(SessionBase):
    """What a session does with payloads."""

    def start_payload(
        self,
        payload: Path,
        *,
        argv: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        payload_id: str | None = None,
    ) -> str:
        """Bring a file or directory to the cluster and have the head run it.

        Args:
            payload: A Python file, or a directory.
            argv: Command and arguments, run beside the directory ``files`` that holds what was brought; ``{python}``
                stands for the cluster's Python. Empty runs the file itself.
            env: Environment variables added for it.
            payload_id: A fresh id that begins with the login node's clock (``"<epoch seconds>-<anything>"``): then the
                payload's directory is known beforehand, and a call whose answer was lost can be made again. None: made
                here.

        Returns:
            The payload's id. It waits until the head runs.

        Raises:
            ConfigurationError: the payload does not exist or is too large; nothing was sent.
            RemoteError, SessionError: it was not brought.
        """
        words = list(argv) or ["{python}", "-u", f"files/{payload.name}"]
        script = start_script(self.session_dir, payload_id, pack(payload), words, env or {})
        return read_start(self._shell.run(script, timeout_seconds=120), self.session_dir, self.address)

    def poll_payload(
        self, payload_id: str, *, messages_offset: int = 0, log_offset: int = 0, mark: Mark | None = None
    ) -> PayloadPoll:
        """Look at a payload: its state, messages and output from the byte offsets on; ``mark`` says who follows it."""
        script = poll_script(self.session_dir, payload_id, messages_offset, log_offset, mark)
        return read_poll(self._shell.run(script), self.session_dir, self.address)

    def replace_payloads(self, step: str, attempt: str) -> tuple[str, ...]:
        """Cancel what other attempts of a step left running, such as one whose process was killed.

        Args:
            step: The part of payload ids that names the step.
            attempt: The part that names this attempt; its own payloads are left alone.

        Returns:
            Ids of those that have not ended yet.
        """
        script = replace_script(self.session_dir, step, attempt)
        return read_running(self._shell.run(script), self.address)

    def cancel_payload(self, payload_id: str) -> None:
        """Ask for the payload's end: its processes are terminated, and killed ten seconds later."""
        self._shell.run(cancel_script(self.session_dir, payload_id))
