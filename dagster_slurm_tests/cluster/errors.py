"""The one error of the box."""

from __future__ import annotations


class BoxError(RuntimeError):
    """The box could not do what was asked; the message says what happened and what to do."""
