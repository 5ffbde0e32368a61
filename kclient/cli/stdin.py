"""Lines of standard input or files, read concurrently with the reactor: records are sent before the input ends.

A thread reads available data, up to 900 KB at a time, and passes them on in batches of lines; only a few batches wait.
It is a daemon thread, so that Ctrl-C does not wait for a read of the terminal. It reads the file descriptor, not
`sys.stdin`: the interpreter cannot end while another thread holds the lock of that buffer, and aborts.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from io import FileIO
from stat import S_ISREG
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

_PIECE = 900_000
"""Lines of 100 bytes and more are one batch of a producer then."""
_AHEAD = 4


class LineBatches:
    """The bytes of *paths* ("-" is standard input), in lists of whole lines (or of whole files)."""

    def __init__(self, reactor: Any, paths: Sequence[str], *, whole_files: bool = False) -> None:
        self._reactor = reactor
        self._paths = paths
        self._whole_files = whole_files
        self._room = threading.Semaphore(_AHEAD)
        self._pieces: deque[list[bytes] | Failure | None] = deque()
        self._waiter: Deferred[None] | None = None
        self._is_ended = False

    async def __aiter__(self) -> AsyncIterator[list[bytes]]:
        if not self._whole_files and all(map(_is_file, self._paths)):
            for path in self._paths:
                with _opened(path) as stream:
                    for lines in _lines(stream):
                        await self._turn()
                        if self._is_ended:
                            return
                        yield lines
            return
        self._start()
        while True:
            while not self._pieces and not self._is_ended:
                self._waiter = Deferred()
                await self._waiter
            if self._is_ended:
                return
            piece = self._pieces.popleft()
            self._room.release()
            if piece is None:
                return
            if isinstance(piece, Failure):
                piece.raiseException()
            else:
                yield piece

    def end(self) -> None:
        """End the iteration, also one that waits for a line."""
        self._is_ended = True
        self._wake()

    def _turn(self) -> Deferred[None]:
        """Fire when the reactor has had a turn, in which the records before are sent."""
        turn: Deferred[None] = Deferred()
        self._reactor.callLater(0, turn.callback, None)
        return turn

    def _start(self) -> None:
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    # --- in the thread

    def _read(self) -> None:
        try:
            for path in self._paths:
                with _opened(path) as stream:
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
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.called:
            waiter.callback(None)


def _is_file(path: str) -> bool:
    return S_ISREG((os.fstat(0) if path == "-" else os.stat(path)).st_mode)


def _opened(path: str) -> FileIO:
    return FileIO(0 if path == "-" else path, closefd=path != "-")


def _lines(stream: FileIO) -> Iterator[list[bytes]]:
    """Yield lines without their ends, as soon as they are available."""
    rest = b""
    while piece := stream.read(_PIECE):
        has_returns = b"\r" in piece or rest.endswith(b"\r")
        lines = piece.split(b"\n")
        if rest:
            lines[0] = rest + lines[0]
        rest = lines.pop()
        if lines:
            yield [line.removesuffix(b"\r") for line in lines] if has_returns else lines
    if rest:
        yield [rest]
