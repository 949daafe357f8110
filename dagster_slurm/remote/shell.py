"""The one gate to the login node: what a remote shell is, how a script is composed, and the local one."""

from __future__ import annotations

import contextlib
import importlib.resources
import os
import secrets
import signal
import subprocess
import tempfile
import time
from functools import lru_cache
from typing import IO, Protocol

import attrs

from dagster_slurm.errors import HostUnreachable, RemoteTimeout
from dagster_slurm.remote.frames import DONE, Reply, parse_reply, quote

TICK_SECONDS = 0.5  # how often a waiting run looks whether it is done although a stream is still held open
_LARGE_BYTES = 1 << 18
_COLLECT_SECONDS = 2.0
_HANGUP_SECONDS = 5.0  # how long an interrupted script may still need; a commit takes milliseconds


class RemoteShell(Protocol):
    """Runs POSIX sh scripts on the login node.

    Attributes:
        address: ``user@host:port`` or ``local``; for messages.
        round_trips: Scripts that were started so far.
    """

    address: str
    round_trips: int

    def run(self, body: str, *, timeout_seconds: float = 60.0) -> Reply:
        """Run a script once and return its reply.

        Args:
            body: POSIX sh; see ``prelude.sh`` for the functions it can use. What it leaves in the background must
                not hold standard output or standard error open.
            timeout_seconds: Hard limit for connecting, sending, running and reading together.

        Returns:
            The reply. ``complete`` is False when the script ended early or its output was damaged.

        Raises:
            HostUnreachable: No connection; nothing was run.
            HostKeyRejected: The host is not the known one; nothing was run.
            AuthenticationFailed: The host refused the user; nothing was run.
            ReplyIncomplete: The connection was lost after sending began; what ran is unknown.
            RemoteTimeout: The limit passed; what ran is unknown.
        """
        ...

    def close(self) -> None:
        """Close what is open; the next run opens it again."""
        ...


class Deadline:
    """A point in time on this process's monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def remaining(self) -> float:
        """Seconds left; zero or less when it has passed."""
        return self._at - time.monotonic()


@attrs.frozen
class Script:
    """A composed script: what goes to standard input of ``arguments``, and the nonce its frames carry."""

    nonce: str
    text: bytes

    @property
    def arguments(self) -> tuple[str, ...]:
        """The command that runs it."""
        # bash reads a script on standard input byte by byte: 7 s for 20 MB, against 2 s through cat.
        return ("/bin/sh", "-s") if len(self.text) < _LARGE_BYTES else ("/bin/sh", "-c", 'eval "$(cat)"')

    def parse(self, output: bytes, stderr: bytes) -> Reply:
        """Read what this script printed."""
        return parse_reply(output, self.nonce, stderr)


@lru_cache(maxsize=1)
def _prelude() -> str:
    text = importlib.resources.files("dagster_slurm.remote").joinpath("prelude.sh").read_text("utf-8")
    return "\n".join(line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def compose(body: str, *, remote_setup: str = "", slurm_bin: str | None = None, nonce: str | None = None) -> Script:
    """Make the whole script around a body.

    It is one compound command without a final newline: the shell knows that it is whole only at the very last
    byte, so a script cut anywhere is a syntax error and runs nothing.

    Args:
        body: The inside of the one function.
        remote_setup: The user's shell lines. Run first, in the same shell, with their output on standard error.
        slurm_bin: Directory put in front of PATH after the setup; None for none.
        nonce: For tests; None takes a fresh one.
    """
    nonce = secrets.token_hex(16) if nonce is None else nonce
    lines = ["{", _prelude(), f"main_{nonce}() {{", "settle_environment"]
    if remote_setup.strip():
        # eval keeps the user's text from closing our braces; some shells go on after text that they cannot parse.
        whole = remote_setup + "\n\nframe_setup=whole"
        lines += ["frame_setup=cut", f"eval {quote(whole)} >&2", "settle_environment"]
        lines += ['[ "$frame_setup" = whole ] || { echo "remote_setup cannot be parsed" >&2; exit 2; }']
    if slurm_bin is not None:
        lines += [f"PATH={quote(slurm_bin)}:$PATH", "export PATH"]
    lines += ["scrub_slurm_environment", f"frame_nonce={nonce}", "frame_number=0", body]
    lines += [f"emit {DONE} 0 ''", "}", f"main_{nonce} </dev/null", "}"]
    return Script(nonce, "\n".join(lines).encode("utf-8", "surrogateescape"))


class LocalShell:
    """Runs scripts on this host, for a Dagster that itself runs on the login node.

    Args:
        remote_setup: Shell lines before every script.
        slurm_bin: Directory of the Slurm commands; None when they are on the PATH.
    """

    def __init__(self, remote_setup: str = "", slurm_bin: str | None = None) -> None:
        self.address = "local"
        self.round_trips = 0
        self._remote_setup = remote_setup
        self._slurm_bin = slurm_bin

    def run(self, body: str, *, timeout_seconds: float = 60.0) -> Reply:
        """See RemoteShell.run. At the limit the script's process group is killed."""
        script = compose(body, remote_setup=self._remote_setup, slurm_bin=self._slurm_bin)
        deadline = Deadline(timeout_seconds)
        try:
            with _memory_file(script.text) as text:
                process = subprocess.Popen(
                    ["/bin/sh", "-s"],  # reads a file in blocks, also when it is bash
                    stdin=text,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=_home(),
                    start_new_session=True,
                )
        except OSError as error:
            raise HostUnreachable(f"/bin/sh cannot be started on this host: {error}") from error
        self.round_trips += 1
        try:
            return self._converse(process, script, deadline)
        except RemoteTimeout:
            _signal_group(process, signal.SIGKILL)
            raise
        except BaseException:
            # As with a lost connection: a script that has to go on ignores the hangup.
            _signal_group(process, signal.SIGHUP)
            try:
                process.wait(_HANGUP_SECONDS)
            except subprocess.TimeoutExpired:
                _signal_group(process, signal.SIGKILL)
            raise
        finally:
            _end(process)

    def close(self) -> None:
        """Nothing is kept open."""

    def _converse(self, process: subprocess.Popen[bytes], script: Script, deadline: Deadline) -> Reply:
        while True:
            remaining = deadline.remaining()
            try:
                output, errors = process.communicate(timeout=max(0.0, min(remaining, TICK_SECONDS)))
            except subprocess.TimeoutExpired as waiting:
                reply = script.parse(waiting.output or b"", waiting.stderr or b"")
                if reply.complete and process.poll() is not None:
                    return reply
                if remaining <= 0:
                    raise RemoteTimeout(
                        f"A script on this host did not finish within its time limit; what it did is unknown. "
                        f"It had answered {len(reply.sections)} sections.",
                        cluster_said=reply.noise,
                    ) from None
            else:
                return script.parse(output, errors)


def _home() -> str:
    # Where a login would start; the caller's own directory may be gone.
    home = os.path.expanduser("~")
    return home if os.path.isdir(home) else "/"


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _end(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    # One that hangs in the kernel, on a dead file server, cannot be collected now.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_COLLECT_SECONDS)


def _memory_file(data: bytes) -> IO[bytes]:
    # A file as standard input needs no writing while reading. In memory where the system can: /tmp may be full.
    if hasattr(os, "memfd_create"):
        file: IO[bytes] = os.fdopen(os.memfd_create("script"), "w+b")
    else:
        file = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    file.write(data)
    file.seek(0)
    return file
