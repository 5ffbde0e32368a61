"""What an audit found wrong."""

from __future__ import annotations

from typing import NamedTuple


class Problem(NamedTuple):
    """A broken rule: its name, where, and what was found there."""

    rule: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.where}: {self.text}"
