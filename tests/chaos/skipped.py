"""A scenario that this machine does not allow."""

from __future__ import annotations


class Skipped(Exception):
    """The text is the reason."""
