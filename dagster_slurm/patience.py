"""Asking a cluster that may be out of reach for a while."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

import attrs

from dagster_slurm.errors import HostKeyRejected, RemoteError

T = TypeVar("T")

POLL_SECONDS = 1.0
#: A cluster that cannot be reached for this long ends the step.
LOST_LIMIT_SECONDS = 600.0


@attrs.frozen(kw_only=True)
class Pace:
    """Time as the loop sees it; tests have their own."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Patience:
    """Asks the cluster again while it cannot be reached, for a bounded time, and says so once."""

    def __init__(self, log: logging.Logger, pace: Pace) -> None:
        self._log = log
        self._pace = pace

    def ask(self, question: Callable[[], T]) -> T:
        """The answer; a question may be put several times, so it has to be one that can be.

        Raises:
            HostKeyRejected: at once.
            RemoteError: the last one, when the limit has passed.
        """
        began: float | None = None
        pause = POLL_SECONDS
        while True:
            try:
                answer = question()
            except HostKeyRejected:
                raise
            except RemoteError as error:
                now = self._pace.clock()
                if began is None:
                    began = now
                    self._log.warning(
                        f"The cluster cannot be asked; the payload is not affected. Trying again for up to "
                        f"{LOST_LIMIT_SECONDS / 60:g} minutes. {error}"
                    )
                if now - began >= LOST_LIMIT_SECONDS:
                    raise
                self._pace.sleep(pause)
                pause = min(2 * pause, 30.0)
            else:
                if began is not None:
                    self._log.info(f"The cluster answers again after {self._pace.clock() - began:.0f} s.")
                return answer
