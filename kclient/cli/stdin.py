"""Lines of standard input or files, read concurrently with the reactor: records are sent before the input ends.

A thread reads available data and passes them on in batches of lines; only a few batches wait. It is a daemon thread, so
that Ctrl-C does not wait for a read of the terminal.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import IO, Any

import click
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

_PIECE = 1 << 16
_AHEAD = 8


class LineBatches:
    """The bytes of *paths* ("-" is standard input), in lists of whole lines (or of whole files)."""

    def __init__(self, reactor: Any, paths: Sequence[str], *, whole_files: bool = False) -> None:
        self._reactor = reactor
        self._paths = paths
        self._whole_files = whole_files
        self._room = threading.Semaphore(_AHEAD)
        self._pieces: deque[list[bytes] | Failure | None] = deque()
        self._waiter: Deferred[None] | None = None

    async def __aiter__(self) -> AsyncIterator[list[bytes]]:
        threading.Thread(target=self._read, name="stdin", daemon=True).start()
        while True:
            while not self._pieces:
                self._waiter = Deferred()
                await self._waiter
            piece = self._pieces.popleft()
            self._room.release()
            if piece is None:
                return
            if isinstance(piece, Failure):
                piece.raiseException()
            else:
                yield piece

    # --- in the thread

    def _read(self) -> None:
        try:
            for path in self._paths:
                with click.open_file(path, "rb") as stream:
                    for piece in [[stream.read()]] if self._whole_files else _lines(stream):
                        self._pass_on(piece)
        except Exception:
            self._pass_on(Failure())
        self._pass_on(None)

    def _pass_on(self, piece: list[bytes] | Failure | None) -> None:
        self._room.acquire()
        self._reactor.callFromThread(self._lines_read, piece)

    # --- on the reactor's thread

    def _lines_read(self, piece: list[bytes] | Failure | None) -> None:
        self._pieces.append(piece)
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.called:
            waiter.callback(None)


def _lines(stream: IO[bytes]) -> Iterator[list[bytes]]:
    """Yield lines without their ends, as soon as they are available."""
    read = getattr(stream, "read1", stream.read)
    rest = b""
    while piece := read(_PIECE):
        *whole, rest = (rest + piece).split(b"\n")
        if whole:
            yield [line.removesuffix(b"\r") for line in whole]
    if rest:
        yield [rest]
