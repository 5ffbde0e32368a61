"""A line at a terminal while a command waits for the cluster: until the command writes anything itself.

Its first write, of data, of an error or of progress of its own, removes the line for good. To notice it, stdout and
stderr are replaced until then; a caller that has kept a replacement writes through it to the stream.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from kclient.cli.progress import Progress

_EVERY_S = 0.5


class _Noticed:
    """A text stream that calls *noticed* before anything is written."""

    def __init__(self, stream: Any, noticed: Callable[[], None]) -> None:
        self._stream = stream
        self._noticed = noticed

    def write(self, text: str) -> int:
        """Write *text* to the stream."""
        self._noticed()
        written: int = self._stream.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            self._noticed()
        return getattr(self._stream, name)


class WaitingLine:
    """The line of one command, with the seconds since its start; *reactor* has a monotonic clock."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._began = reactor.seconds()
        self._progress = Progress(reactor.seconds, quiet=False)
        self._streams = sys.stdout, sys.stderr
        self._call: Any = None

    def start(self) -> None:
        """Watch what the command writes, and show the line from the third second on."""
        sys.stdout, sys.stderr = (_Noticed(each, self.end) for each in self._streams)
        self._call = self._reactor.callLater(_EVERY_S, self._show)

    def _show(self) -> None:
        self._call = self._reactor.callLater(_EVERY_S, self._show)
        waited = self._reactor.seconds() - self._began
        watched = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = self._streams
        self._progress.show(f"waiting for the cluster, {waited:.0f} s")
        sys.stdout, sys.stderr = watched

    def end(self) -> None:
        """Remove the line, and watch no more."""
        if self._call is None:
            return
        self._call.cancel()
        self._call = None
        sys.stdout, sys.stderr = self._streams
        self._progress.clear()
