r"""Java `.properties` text to keys and values, as `java.util.Properties` reads it.

Users paste the server.properties they already have, so the format is Java's to the letter. `=`, `:` or blanks separate
a key from its value, a backslash escapes (`\t \n \r \f \uXXXX`) or continues the line, `#` and `!` begin comments. Text
is UTF-8 (with or without a byte order mark); bytes that are not UTF-8 are read as Latin-1, as Java does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

MAX_FILE_BYTES = 1 << 20
"""No server.properties is larger; what is larger is some other file."""

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANK = " \t\f"


@dataclass(slots=True)
class Properties:
    """The content of one file: the last value of every key, and remarks about the text itself."""

    values: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read(path: Path) -> Properties:
    """Read the file at *path*; a file that cannot be read is a problem, not an exception."""
    found = Properties()
    try:
        if path.is_dir():
            found.problems.append(f"{path}: is a directory, a .properties file is needed")
            return found
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        found.problems.append(f"{path}: no such file")
        return found
    except OSError as error:
        found.problems.append(f"{path}: cannot be read: {error.strerror}")
        return found
    if len(raw) > MAX_FILE_BYTES:
        found.problems.append(f"{path}: larger than {MAX_FILE_BYTES} bytes, not a .properties file")
        return found
    return parse(decode(raw))


def decode(raw: bytes) -> str:
    """Return the text of *raw*: UTF-8 without its byte order mark, else Latin-1."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def parse(text: str) -> Properties:
    """Split *text* into keys and values; the last one of equal keys wins, with a warning."""
    found = Properties()
    for number, line in _logical_lines(text):
        try:
            key, value = _split(line)
        except ValueError as error:
            found.problems.append(f"line {number}: {error}")
            continue
        if not key:
            found.problems.append(f"line {number}: a value without a key")
            continue
        if key in found.values:
            found.warnings.append(
                f"line {number}: {key} is set more than once, the last one counts"
            )
        found.values[key] = value
    return found


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Join continued lines; drop comments and blank lines. Yields (first line number, line)."""
    lines: list[tuple[int, str]] = []
    held: str | None = None
    started = 0
    for number, natural in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        line = natural.lstrip(_BLANK)
        if held is None:
            if not line or line[0] in "#!":
                continue
            held, started = line, number
        else:
            held += line
        if _continues(held):
            held = held[:-1]
            continue
        lines.append((started, held))
        held = None
    if held is not None:
        lines.append((started, held))
    return lines


def _continues(line: str) -> bool:
    """Return whether *line* ends in an odd number of backslashes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    """Cut at the first unescaped separator and unescape both sides."""
    end = 0
    while end < len(line) and line[end] not in "=:" + _BLANK:
        end += 2 if line[end] == "\\" else 1
    key, rest = line[:end], line[end:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    return _unescape(key), _unescape(rest)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    at = 0
    while at < len(text):
        char = text[at]
        if char != "\\" or at + 1 == len(text):
            out.append(char)
            at += 1
            continue
        escaped = text[at + 1]
        at += 2
        if escaped == "u":
            digits = text[at : at + 4]
            if len(digits) != 4 or not all(d in "0123456789abcdefABCDEF" for d in digits):
                raise ValueError("malformed \\uXXXX escape")
            out.append(chr(int(digits, 16)))
            at += 4
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    return "".join(out)
