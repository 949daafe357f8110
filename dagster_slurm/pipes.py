"""Dagster Pipes over polling: a message reader that is fed with bytes, and output cut into lines."""

from __future__ import annotations

import codecs
import contextlib
import json
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg

#: Lines of the payload's output that an error message repeats.
TAIL_LINES = 20
#: A line longer than this is passed on in pieces.
LONGEST_LINE = 64 * 1024


class FedMessageReader(dg.PipesMessageReader):
    """Reads the payload's messages from bytes that somebody else brings.

    Args:
        path: The file on the cluster that the payload writes its messages to.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._handler: dg.PipesMessageHandler | None = None
        self._rest = b""
        self._closed: Any = None
        self.offset = 0
        self.messages = 0

    @contextlib.contextmanager
    def read_messages(self, handler: dg.PipesMessageHandler) -> Iterator[dict[str, Any]]:
        """See PipesMessageReader; what is fed while the context is open is handled at once."""
        self._handler = handler
        yield {"path": self._path}

    def begin_again(self, path: str) -> None:
        """Read another file from its start: the payload is run again, and writes its messages there."""
        self._path = path
        self._rest = b""
        self._closed = None
        self.offset = 0

    def finish(self) -> None:
        """The payload is not run again: hand on that it closed its messages."""
        closed, self._closed = self._closed, None
        if closed is not None and self._handler is not None:
            self._handler.handle_message(closed)

    @property
    def expected_writer_count(self) -> int:
        """See PipesMessageReader, whose own property warns that it is a preview."""
        return 1

    def no_messages_debug_text(self) -> str:
        """See PipesMessageReader."""
        return (
            f"Attempted to read messages from {self._path} on the cluster. A payload that reports to Dagster calls "
            "open_dagster_pipes() of the package dagster-pipes. "
            "Without any message its exit status alone tells how it went."
        )

    def feed(self, piece: bytes) -> int:
        """Handle the whole lines of the next bytes of the file; an unfinished last line waits for its rest.

        Returns:
            How many messages were handled.
        """
        *lines, self._rest = (self._rest + piece).split(b"\n")
        before = self.messages
        for line in lines:
            if line.strip():
                self._handle(line)
        # Only now: a piece whose handling was interrupted is not asked for again, it was counted line by line.
        self.offset += len(piece)
        return self.messages - before

    @property
    def unfinished(self) -> bool:
        """Whether the file ends in the middle of a message."""
        return bool(self._rest.strip())

    def _handle(self, line: bytes) -> None:
        assert self._handler is not None, "messages arrive while the Pipes session is open"
        self.messages += 1
        try:
            message = json.loads(line)
            if message["method"] == "closed":
                # Kept until ``finish``: a payload that is run again goes on with the same Pipes session.
                self._closed = message
            else:
                self._handler.handle_message(message)
        # The boundary to what the payload wrote: one bad message is reported and does not end the step.
        except Exception:  # noqa: BLE001
            self._handler.report_pipes_framework_exception("the messages of the payload", sys.exc_info())


class OutputLines:
    """The payload's output, passed on line by line.

    Args:
        write: Takes one line without its end.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""
        self.offset = 0
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)

    def feed(self, piece: bytes) -> None:
        """Pass on the whole lines of the next bytes."""
        self.offset += len(piece)
        self._rest += self._decode(piece)
        # Line ends only: a progress bar's carriage returns stay inside of their line.
        *lines, self._rest = self._rest.split("\n")
        if len(self._rest) > LONGEST_LINE:
            lines.append(self._rest)
            self._rest = ""
        for line in lines:
            self._pass_on(line)

    def begin_again(self) -> None:
        """Pass on what is left, then read another file from its start."""
        self.finish()
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.offset = 0

    def finish(self) -> None:
        """Pass on what is left without a line end."""
        rest, self._rest = self._rest + self._decode(b"", True), ""
        if rest:
            self._pass_on(rest)

    def _pass_on(self, line: str) -> None:
        self.tail.append(line.rstrip("\r")[:2000])
        self._write(line.rstrip("\r"))


def print_line(line: str) -> None:
    """To the step's compute log, which is this process's standard output."""
    print(line, flush=True)
