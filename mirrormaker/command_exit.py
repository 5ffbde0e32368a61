"""How a command that changes topics ends: with an exit code, or refused with the reason."""

from __future__ import annotations

DONE = 0
REFUSED = 5


class Refused(Exception):
    """The command cannot go on; the text has the reason and what to do."""
