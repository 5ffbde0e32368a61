r"""The text of contexts.toml: a change of one context keeps the comments and the layout of the others. Pure.

A change edits lines: it removes the lines of a table ``[contexts.NAME]``, or adds a table at the end. The lines of a
multi-line string can look like a table, so the caller parses the result and compares it with what it wanted
(`kclient.contexts`).
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping

_CURRENT = re.compile(
    r"""^[ \t]*current[ \t]*=[ \t]*(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*')""", re.MULTILINE
)


def toml(value: object) -> str:
    """Return *value* in TOML: a string of JSON is one, except for DEL."""
    if not isinstance(value, str | int | float):
        value = str(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def table_of(name: str, entries: Mapping[str, object]) -> str:
    """Return the table of the context *name*, after an empty line."""
    lines = [f"{_key(key)} = {toml(value)}\n" for key, value in entries.items()]
    return f"\n[contexts.{_key(name)}]\n{''.join(lines)}"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml(name)


def with_table(text: str, name: str, entries: Mapping[str, object]) -> str:
    """Return *text* with another table at its end."""
    return (text if not text or text.endswith("\n") else f"{text}\n") + table_of(name, entries)


def without_table(text: str, name: str) -> str:
    """Return *text* without the table of the context *name*, the empty line before it, and its sub-tables.

    Comments between the table's last value and the next table stay.
    """
    kept: list[str] = []
    removing = False
    tail: list[str] = []
    for line in text.splitlines(keepends=True):
        path = _table_path(line)
        if path is not None:
            was, removing = removing, path[:2] == ("contexts", name)
            kept += tail
            tail = []
            if removing and not was and kept and not kept[-1].strip():
                kept.pop()
        if not removing:
            kept.append(line)
        elif path is None and (not line.strip() or line.lstrip().startswith("#")):
            tail.append(line)
        else:
            tail = []
    return "".join([*kept, *tail])


def with_current(text: str, name: str | None) -> str:
    """Return *text* with *name* as the current context; None: there is no current one."""
    border = _first_table(text)
    head, rest = text[:border], text[border:]
    found = _CURRENT.search(head)
    if found is None:
        if name is None:
            return text
        lines = head.splitlines(keepends=True)
        comments = next((n for n, line in enumerate(lines) if not line.startswith("#")), len(lines))
        if comments == len(lines) and rest:
            comments = 0  # These comments belong to the first table.
        return "".join([*lines[:comments], f"current = {toml(name)}\n", *lines[comments:], rest])
    if name is None:
        end = head.find("\n", found.end()) + 1 or len(head)
        return head[: found.start()] + head[end:] + rest
    return f"{head[: found.start()]}current = {toml(name)}{head[found.end() :]}{rest}"


def _first_table(text: str) -> int:
    at = 0
    for line in text.splitlines(keepends=True):
        if _table_path(line) is not None:
            return at
        at += len(line)
    return at


def _table_path(line: str) -> tuple[str, ...] | None:
    """Return the names in the head of a table, None for another line."""
    if not line.lstrip().startswith("["):
        return None
    try:
        value: object = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    names = []
    while isinstance(value, dict) and value:
        ((name, value),) = value.items()
        names.append(name)
    return tuple(names)
