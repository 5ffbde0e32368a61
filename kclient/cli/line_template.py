r"""The input format of `kclient produce -f`: the fields of a line, as '%k\t%v' (letters of kcat and rpk).

%k key, %v or %s value, %p partition, %T or %d timestamp in ms, %% a percent sign. Anything else, including \t, must
occur in the line. The last field is the rest of the line.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import click

from kclient.cli.formats import unescaped

_FIELDS = {
    "k": "key",
    "v": "value",
    "s": "value",
    "p": "partition",
    "T": "timestamp",
    "d": "timestamp",
}


class Line(NamedTuple):
    """The fields of one line; None for those that the template lacks."""

    key: bytes | None = None
    value: bytes | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


class LineTemplate:
    """A parsed template; calling it parses a line, and raises ValueError if the line does not match."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts: list[tuple[str, bytes]] = []  # (field or "", the literal after it)
        literal = ""
        field = ""
        for piece in re.split(
            r"(%.)", text.removesuffix("\\n").removesuffix("\n"), flags=re.DOTALL
        ):
            if len(piece) == 2 and piece[0] == "%" and piece[1] != "%":
                if piece[1] not in _FIELDS:
                    raise click.BadParameter(
                        f"-f {text!r}: {piece} is unknown, known are {_known()}"
                    )
                if self._parts and not literal:
                    raise click.BadParameter(f"-f {text!r}: two fields need a separator")
                self._add(field, literal)
                field, literal = _FIELDS[piece[1]], ""
            else:
                literal += "%" if piece == "%%" else piece
        self._add(field, literal)

    def _add(self, field: str, literal: str) -> None:
        if field or literal or not self._parts:
            self._parts.append((field, unescaped(literal)))

    def __call__(self, line: bytes) -> Line:
        """Return the fields of *line*, which has no line end."""
        found: dict[str, bytes] = {}
        rest = line
        for number, (field, literal) in enumerate(self._parts, 1):
            if not literal and number == len(self._parts):
                content, rest = rest, b""
            else:
                content, given, rest = rest.partition(literal) if literal else (b"", b"", rest)
                if literal and not given:
                    raise ValueError(f"{line[:60]!r} does not match {self.text!r}")
            if field:
                found[field] = content
            elif content:
                raise ValueError(f"{line[:60]!r} does not match {self.text!r}")
        return Line(
            found.get("key"),
            found.get("value"),
            _number(found, "partition"),
            _number(found, "timestamp"),
        )


def _number(found: dict[str, bytes], field: str) -> int | None:
    if field not in found:
        return None
    try:
        return int(found[field])
    except ValueError:
        raise ValueError(f"{field} {found[field]!r} is not a number") from None


def _known() -> str:
    return ", ".join(f"%{letter}" for letter in _FIELDS)
