"""Going round the sessions within one sensor tick: each in its turn, never longer than the tick may last."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

import attrs

T = TypeVar("T")


class TimeIsUp(Exception):
    """A call did not come back in time; it is left to itself."""


def call_within(seconds: float, function: Callable[[], T]) -> T:
    """Call a function in a thread, and wait for it no longer than that.

    Raises:
        TimeIsUp: it did not come back; what it does after that nobody hears.
    """
    call = _Call(function)
    # A daemon: a call that hangs must not keep the process alive.
    threading.Thread(target=call.run, name="sensor-visit", daemon=True).start()
    if not call.finished.wait(seconds):
        raise TimeIsUp(f"not finished within {seconds:.0f} s")
    if call.error is not None:
        raise call.error
    return call.results[0]


class _Call(Generic[T]):
    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self.finished = threading.Event()
        self.results: list[T] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.results.append(self._function())
        # Raised again by who waits.
        except BaseException as error:  # noqa: BLE001
            self.error = error
        finally:
            self.finished.set()


@attrs.frozen(kw_only=True)
class Cursor:
    """What one tick leaves for the next.

    Attributes:
        after: Whose turn it was last.
        said: What was last recorded of each, as a digest, and when, in epoch seconds of this host.
    """

    after: str = ""
    said: Mapping[str, tuple[str, float]] = attrs.field(factory=dict)

    @classmethod
    def read(cls, text: str | None) -> Cursor:
        """Read what ``write`` wrote; anything else is a beginning."""
        try:
            document = json.loads(text or "{}")
            said = {str(name): (str(what), float(at)) for name, (what, at) in document.get("said", {}).items()}
            return cls(after=str(document.get("after", "")), said=said)
        except (ValueError, TypeError, AttributeError):
            return cls()

    def write(self) -> str:
        """As text for Dagster."""
        return json.dumps({"after": self.after, "said": {name: list(value) for name, value in self.said.items()}})


class Round:
    """One tick's round.

    Args:
        names: Who is to be visited.
        cursor: What the last tick left.
        seconds: How long the round may last.
        repeat_seconds: The same is recorded again only after this long.
    """

    def __init__(self, names: Iterable[str], cursor: Cursor, seconds: float, repeat_seconds: float) -> None:
        self._names = sorted(names)
        self._after = cursor.after
        self._until = time.monotonic() + seconds
        self._repeat_seconds = repeat_seconds
        known = set(self._names)
        self._said = {what: value for what, value in cursor.said.items() if what.partition(" ")[0] in known}
        self.visited: list[str] = []
        self.left: list[str] = self._in_turn()

    def _in_turn(self) -> list[str]:
        later = [name for name in self._names if name > self._after]
        return later + [name for name in self._names if name <= self._after]

    @property
    def seconds_left(self) -> float:
        """Until the round has to end."""
        return max(0.0, self._until - time.monotonic())

    def next(self) -> str | None:
        """The next one to visit; None when all were visited or the time is up."""
        if not self.left or self.seconds_left <= 0:
            return None
        name = self.left.pop(0)
        # Noted before the visit: one that hangs does not keep the others waiting in the next tick as well.
        self._after = name
        self.visited.append(name)
        return name

    def is_news(self, name: str, what: Any) -> bool:
        """Whether that differs from what was last recorded of it, or was recorded long ago; it counts as recorded.

        Args:
            name: Whom it is about: one of the names, and a blank with more behind it if it is about a part.
            what: What is to be recorded.
        """
        digest, now = hashlib.sha256(repr(what).encode()).hexdigest()[:16], time.time()
        known, at = self._said.get(name, ("", 0.0))
        if known == digest and 0 <= now - at < self._repeat_seconds:
            return False
        self._said[name] = (digest, now)
        return True

    def cursor(self) -> Cursor:
        """What this tick leaves for the next."""
        return Cursor(after=self._after, said=self._said)
