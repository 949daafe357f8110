"""Clients of a session that are processes of their own, so that they can be killed and can act at the same moment.

``python -m dagster_slurm_tests.clients`` is the far end: pickled values on standard input, pickled answers back.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any, BinaryIO

from dagster_slurm_tests.sessions import Place


class Client:
    """One process with a connection of its own to a session.

    Args:
        place: The session.
        faults: Shell lines that every one of its scripts runs first.
    """

    def __init__(self, place: Place, *, faults: str = "") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dagster_slurm_tests.clients"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._send((place, faults))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def ready(self) -> None:
        """Wait until it is connected."""
        assert self._receive() == "connected"

    def begin(self, method: str, *arguments: Any, **options: Any) -> None:
        """Call a method of the session; ``result`` waits for it."""
        self._send((method, arguments, options))

    def result(self) -> Any:
        """What the call returned; raises what it raised."""
        answer = self._receive()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method and wait."""
        self.begin(method, *arguments, **options)
        return self.result()

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self._process.kill()
        self._process.wait()

    def _send(self, value: object) -> None:
        assert self._process.stdin is not None
        pickle.dump(value, self._process.stdin)
        self._process.stdin.flush()

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        return pickle.load(self._process.stdout)


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    def answer(value: object) -> None:
        pickle.dump(value, answers)
        answers.flush()

    place, faults = pickle.load(requests)
    shell = place.shell(faults=faults)
    shell.run(":")
    session = place.session_on(shell)
    answer("connected")
    while True:
        try:
            method, arguments, options = pickle.load(requests)
        except EOFError:
            return
        try:
            answer(getattr(session, method)(*arguments, **options))
        except Exception as error:  # noqa: BLE001 - goes to the parent, which raises it
            answer(error)


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
