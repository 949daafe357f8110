"""The remote shell over SSH.

One connection is kept and shared by the threads of one process. A run opens a channel, sends its script to
``/bin/sh`` and reads the reply. Two clocks bound it: the run's own waits, and a watchdog that breaks the
connection when a call into paramiko does not come back, as happens when the network vanishes without a word.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import paramiko

from dagster_slurm.errors import HostUnreachable, RemoteTimeout, ReplyIncomplete
from dagster_slurm.remote.exchange import Exchange
from dagster_slurm.remote.frames import Reply, quote
from dagster_slurm.remote.shell import TICK_SECONDS, Deadline, Script, compose
from dagster_slurm.remote.ssh_login import LOST, LoggedIn, SshAddress, connect

__all__ = ["SshAddress", "SshShell"]

CHANNEL_LIMIT = 4  # at once on one connection; sshd allows 10 (MaxSessions) unless a site lowers it
_REFUSED_SECONDS = 5.0  # how long a lone refused channel is asked for again: sshd frees a slot a little late


class _SessionRefused(Exception):
    """The host keeps the connection and opens no further session on it."""


class SshShell:
    """A RemoteShell over SSH; see ``RemoteShell`` for what ``run`` promises. Safe to use from several threads.

    Nothing is opened before the first run. A process forked from this one gets a connection of its own.

    Args:
        address: Where to log in.
        remote_setup: Shell lines before every script.
        slurm_bin: Directory of the Slurm commands; None when they are on the PATH.
    """

    def __init__(self, address: SshAddress, remote_setup: str = "", slurm_bin: str | None = None) -> None:
        self.address = str(address)
        self.round_trips = 0
        self._target = address
        self._remote_setup = remote_setup
        self._slurm_bin = slurm_bin
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._pid = os.getpid()
        self._state = threading.Condition()  # guards everything below, and round_trips
        self._connecting = threading.Lock()
        self._connection: _Connection | None = None
        self._open_channels = 0
        self._channel_limit = CHANNEL_LIMIT

    def _leave_parent(self) -> None:
        """In a forked child: the parent's locks and connection are not ours."""
        if self._pid != os.getpid():
            if self._connection is not None:
                self._connection.disown()
            self._start_afresh()

    def run(self, body: str, *, timeout_seconds: float = 60.0) -> Reply:
        """See RemoteShell.run."""
        self._leave_parent()
        deadline = Deadline(timeout_seconds)
        script = compose(body, remote_setup=self._remote_setup, slurm_bin=self._slurm_bin)
        refused_since: float | None = None
        while True:
            with self._slot(deadline):
                try:
                    connection, channel = self._open_channel(script, deadline)
                except _SessionRefused as refusal:
                    refused_since = self._note_refusal(refusal, refused_since, deadline)
                else:
                    try:
                        return self._converse(connection, channel, script, deadline)
                    finally:
                        connection.leave()
            time.sleep(0.02)

    def close(self) -> None:
        """Close the connection; runs of other threads on it end first."""
        self._leave_parent()
        with self._state:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.retire()

    @contextlib.contextmanager
    def _slot(self, deadline: Deadline) -> Iterator[None]:
        with self._state:
            if not self._state.wait_for(lambda: self._open_channels < self._channel_limit, deadline.remaining()):
                raise RemoteTimeout(f"{self.address}: other scripts kept the connection busy; nothing was run.")
            self._open_channels += 1
        try:
            yield
        finally:
            with self._state:
                self._open_channels -= 1
                self._state.notify_all()

    def _note_refusal(self, refusal: _SessionRefused, refused_since: float | None, deadline: Deadline) -> float | None:
        """The host allows fewer sessions than we hold: queue behind our own, or wait a little when there are none."""
        with self._state:
            if self._open_channels > 1:
                self._channel_limit = max(1, self._open_channels - 1)
                return None
        now = time.monotonic()
        if deadline.remaining() <= 0 or (refused_since is not None and now - refused_since > _REFUSED_SECONDS):
            raise HostUnreachable(
                f"{self.address} lets this user log in but refuses to start a session; nothing was run.",
                cluster_said=str(refusal),
            ) from refusal
        return now if refused_since is None else refused_since

    def _open_channel(self, script: Script, deadline: Deadline) -> tuple[_Connection, paramiko.Channel]:
        """A channel with a shell that waits for its script. A kept connection found dead is replaced once."""
        command = " ".join(quote(word) for word in script.arguments)
        while True:
            connection, kept = self._enter_connection(deadline)
            # A kept connection may have died silently: leave time for a new one.
            share = deadline.remaining() / 2 if kept else deadline.remaining()
            opening = Deadline(min(share, self._target.connect_timeout_seconds))
            channel: paramiko.Channel | None = None
            try:
                with connection.watchdog(opening.remaining()):
                    channel = connection.transport.open_session(timeout=max(0.0, opening.remaining()))
                    channel.exec_command(command)
                with self._state:
                    self.round_trips += 1
                return connection, channel
            except LOST as error:
                if channel is None and connection.transport.is_active() and opening.remaining() > 0:
                    connection.leave()
                    raise _SessionRefused(str(error)) from error
                self._drop(connection)
                connection.leave()
                if not kept:
                    raise HostUnreachable(
                        f"{self.address} closed the connection before a script could start: {error}. Nothing was run.",
                    ) from error
            except BaseException:
                self._drop(connection)
                connection.leave()
                raise

    def _enter_connection(self, deadline: Deadline) -> tuple[_Connection, bool]:
        """The connection to use, and whether it was kept from an earlier run."""
        if not self._connecting.acquire(timeout=max(0.0, deadline.remaining())):
            raise RemoteTimeout(f"{self.address}: no connection within the time limit; nothing was run.")
        try:
            with self._state:
                if self._connection is not None and self._connection.enter():
                    return self._connection, True
            fresh = _Connection(connect(self._target, deadline))
            fresh.enter()
            with self._state:
                self._connection = fresh
            return fresh, False
        finally:
            self._connecting.release()

    def _drop(self, connection: _Connection) -> None:
        with self._state:
            if self._connection is connection:
                self._connection = None
        connection.retire()

    def _converse(
        self, connection: _Connection, channel: paramiko.Channel, script: Script, deadline: Deadline
    ) -> Reply:
        exchange = Exchange(channel, script, deadline)
        try:
            with connection.watchdog(deadline.remaining() + TICK_SECONDS):
                try:
                    ended = exchange.finish()
                finally:
                    channel.close()
        except LOST as error:
            ended, cause = False, str(error)
        except BaseException:
            self._drop(connection)
            raise
        else:
            cause = "no exit status arrived"
        reply = exchange.reply()
        if reply.complete or ended:
            return reply
        self._drop(connection)
        what = f"{self.address}: what the script did is unknown; {len(reply.sections)} sections had been answered."
        if deadline.remaining() <= 0:
            raise RemoteTimeout(f"No answer within the time limit from {what}", cluster_said=reply.noise)
        raise ReplyIncomplete(f"Connection lost ({cause}) to {what}", cluster_said=reply.noise)


class _Connection:
    """A logged-in transport and the count of runs on it. Retired, it closes when the last one leaves."""

    def __init__(self, login: LoggedIn) -> None:
        self._login = login
        self.transport = login.transport
        self._lock = threading.Lock()
        self._users = 0
        self._retired = False

    def enter(self) -> bool:
        """False when it is no longer usable."""
        with self._lock:
            if self._retired or not self.transport.is_active():
                return False
            self._users += 1
            return True

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            closing = self._retired and self._users == 0
        if closing:
            self._login.close()

    def retire(self) -> None:
        with self._lock:
            self._retired = True
            closing = self._users == 0
        if closing:
            self._login.close()

    def disown(self) -> None:
        """In a forked child: close our copy of the socket, so that nothing here can write into the parent's stream."""
        self._login.sock.close()

    @contextlib.contextmanager
    def watchdog(self, seconds: float) -> Iterator[None]:
        """Break the connection when the block takes longer; calls that hang in it then fail."""
        timer = threading.Timer(max(0.0, seconds), self._break)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _break(self) -> None:
        with contextlib.suppress(OSError):
            self._login.sock.shutdown(socket.SHUT_RDWR)
