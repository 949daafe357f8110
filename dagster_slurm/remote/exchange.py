"""Sending one script through an open channel and collecting the reply."""

from __future__ import annotations

from typing import Protocol

from dagster_slurm.remote.frames import Reply
from dagster_slurm.remote.shell import TICK_SECONDS, Deadline, Script

_PIECE_BYTES = 32768  # the channel cuts larger pieces anyway


class Channel(Protocol):
    """The part of an SSH channel that an exchange uses; waits end with TimeoutError."""

    def settimeout(self, timeout: float) -> None: ...
    def send(self, s: bytes) -> int: ...
    def shutdown_write(self) -> None: ...
    def recv(self, nbytes: int) -> bytes: ...
    def recv_ready(self) -> bool: ...
    def recv_stderr(self, nbytes: int) -> bytes: ...
    def recv_stderr_ready(self) -> bool: ...
    def exit_status_ready(self) -> bool: ...
    def recv_exit_status(self) -> int: ...


class Exchange:
    """Sends one script and collects what comes back, in one thread: reads whenever sending has to wait."""

    def __init__(self, channel: Channel, script: Script, deadline: Deadline) -> None:
        self._channel = channel
        self._script = script
        self._deadline = deadline
        self._output = bytearray()
        self._errors = bytearray()

    def reply(self) -> Reply:
        return self._script.parse(bytes(self._output), bytes(self._errors))

    def finish(self) -> bool:
        """True when the remote shell ended by itself; False when the time limit passed or the connection broke."""
        self._send()
        while self._deadline.remaining() > 0:
            self._channel.settimeout(min(TICK_SECONDS, max(0.01, self._deadline.remaining())))
            try:
                piece = self._channel.recv(_PIECE_BYTES)
            except TimeoutError:
                self._drain()
                # Something in the background still holds the stream open.
                if self._channel.exit_status_ready() and self.reply().complete:
                    return True
                continue
            if not piece:
                self._drain()
                return self.reply().complete or self._channel.recv_exit_status() != -1
            self._output += piece
        return False

    def _send(self) -> None:
        text, sent = self._script.text, 0
        while sent < len(text) and self._deadline.remaining() > 0:
            self._channel.settimeout(min(TICK_SECONDS, max(0.01, self._deadline.remaining())))
            self._drain()
            try:
                sent += self._channel.send(text[sent : sent + _PIECE_BYTES])
            except TimeoutError:
                continue
            except OSError:
                return  # the far end reads no more; what it says tells why
        if sent == len(text):
            self._channel.shutdown_write()

    def _drain(self) -> None:
        while self._channel.recv_ready():
            self._output += self._channel.recv(_PIECE_BYTES)
        while self._channel.recv_stderr_ready():
            self._errors += self._channel.recv_stderr(_PIECE_BYTES)
