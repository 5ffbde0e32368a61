"""Reads every change of ZooKeeper in order from its transaction logs.

A client that watches sees states, not changes: two quick ones look like one. The journal has them all, with zxid, time
and the session that asked. ``version-2/log.<hex zxid>`` holds a header (``ZKLG``, version, database id), then per
transaction its Adler-32, its length, its bytes and ``B``; zeros, preallocated, are the end. The bytes are a header
(session, cxid, zxid, time in ms, type) and a record in Jute, big-endian. A multi holds a record per operation; in one
that failed, the operations before the one at fault still look as if they had been done. The end of a session takes its
ephemeral znodes away, which we do here as the server does.

A server may purge old files, and one that was behind may lack some: `keep_files` puts files aside by hard links, and
`read_journal` takes what a majority of the servers has.
"""

from __future__ import annotations

import os
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_HEADER = struct.Struct(">4siq")
_TRANSACTION = struct.Struct(">qiqqi")
_CREATES = {1: True, 15: True, 19: False, 21: False}
"""Types that create, and whether an ephemeral flag follows: create, create2, createContainer, createTTL."""
_DELETES = (2, 20)
_SET, _MULTI, _CLOSE_SESSION, _ERROR = 5, 14, -11, -1


class Change(NamedTuple):
    """One znode after one operation."""

    zxid: int
    time_ms: int
    """The server's wall clock."""
    session: int
    path: str
    data: bytes | None
    """None: it is gone."""
    created: bool = False
    ephemeral: bool = False


class _Reader:
    """Jute: numbers, strings and buffers one after another."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, form: struct.Struct) -> tuple[int, ...]:
        found = form.unpack_from(self._data, self._at)
        self._at += form.size
        return found

    def number(self) -> int:
        return self._take(_INT)[0]

    def flag(self) -> bool:
        return self._take(_BYTE)[0] != 0

    def header(self) -> tuple[int, ...]:
        return self._take(_TRANSACTION)

    def buffer(self) -> bytes:
        size = max(0, self.number())
        self._at += size
        return self._data[self._at - size : self._at]

    def text(self) -> str:
        return self.buffer().decode()

    def skip_acl(self) -> None:
        for _ in range(max(0, self.number())):
            self.number()
            self.text()
            self.text()


_INT = struct.Struct(">i")
_BYTE = struct.Struct(">b")


class _Transaction(NamedTuple):
    session: int
    zxid: int
    time_ms: int
    type: int
    body: bytes


def keep_files(data_directory: Path, shelf: Path) -> None:
    """Link the journal's files to *shelf*, where no purge takes them away; call before each start of a server."""
    shelf.mkdir(parents=True, exist_ok=True)
    for path in (data_directory / "version-2").glob("log.*"):
        with suppress(FileExistsError):
            os.link(path, shelf / path.name)


def _transactions(path: Path) -> Iterator[_Transaction]:
    content = path.read_bytes()
    if len(content) < _HEADER.size or _HEADER.unpack_from(content)[0] != b"ZKLG":
        return
    at = _HEADER.size
    while at + 12 <= len(content):
        (size,) = _INT.unpack_from(content, at + 8)
        end = at + 12 + size
        if size <= 0 or end >= len(content) or content[end : end + 1] != b"B":
            return  # preallocated zeros, or what a killed server had begun to write
        body = content[at + 12 : end]
        session, _, zxid, time_ms, kind = _TRANSACTION.unpack_from(body)
        yield _Transaction(session, zxid, time_ms, kind, body[_TRANSACTION.size :])
        at = end + 1


def read_journal(shelves: Iterable[Path]) -> Iterator[Change]:
    """Yield the changes of the ensemble; each server has its files in one of *shelves*."""
    copies: Counter[int] = Counter()
    found: dict[int, _Transaction] = {}
    servers = 0
    for shelf in shelves:
        servers += 1
        own = {one.zxid: one for path in shelf.glob("log.*") for one in _transactions(path)}
        copies.update(own.keys())
        found.update(own)
    owned: defaultdict[int, dict[str, None]] = defaultdict(dict)
    for zxid in sorted(found):
        if copies[zxid] * 2 > servers:
            yield from _changes(found[zxid], owned)


def _changes(
    transaction: _Transaction, owned: defaultdict[int, dict[str, None]]
) -> Iterator[Change]:
    session, zxid, time_ms, kind, body = transaction
    if kind == _CLOSE_SESSION:
        for path in owned.pop(session, {}):
            yield Change(zxid, time_ms, session, path, None)
        return
    for change in _operations(kind, _Reader(body), zxid, time_ms, session):
        if change.ephemeral:
            owned[session][change.path] = None
        elif change.data is None:
            for paths in owned.values():
                paths.pop(change.path, None)
        yield change


def _operations(
    kind: int, reader: _Reader, zxid: int, time_ms: int, session: int
) -> Iterator[Change]:
    if kind == _MULTI:
        inner = [(reader.number(), reader.buffer()) for _ in range(reader.number())]
        if any(one == _ERROR for one, _ in inner):
            return
        for one, record in inner:
            yield from _operations(one, _Reader(record), zxid, time_ms, session)
    elif kind in _CREATES:
        path, data = reader.text(), reader.buffer()
        reader.skip_acl()
        ephemeral = _CREATES[kind] and reader.flag()
        yield Change(zxid, time_ms, session, path, data, True, ephemeral)
    elif kind == _SET:
        yield Change(zxid, time_ms, session, reader.text(), reader.buffer())
    elif kind in _DELETES:
        yield Change(zxid, time_ms, session, reader.text(), None)
