"""What stops the demo with one clear message."""

from __future__ import annotations


class DemoError(Exception):
    """The demo cannot go on; the message says why and what to do."""


class Stopped(BaseException):
    """The demo was asked to end by a signal. Not an error: nothing but the main program catches it."""
