"""The cleaner in a process of its own, so that its work per record does not hold the interpreter lock of the broker.

Theory of operation
===================
`CleanerProcess` is the broker's end: it starts ``python -m kbroker.log.cleaner_process`` and has it do one round after
the other. The process reads segments by name and sends what stays through a pipe; it opens nothing for writing. So a
process that outlives its broker cannot disturb the recovery of the next one. It ends when it finds its standard input
closed, which it looks at before each read of a segment.

    broker to process    a line of JSON: a round (its segments, limits and sizes), or a group of its segments
    process to broker    for a round: a line, the end of the map. For a group: frames of whole batches, each behind its
                         length (4 bytes), and a frame of length 0; then as many frames of what stays of the
                         transaction indexes, in their format. For an error in the place of any of these: a frame of
                         length -1, and a line, the error

An error of the disk is raised as OSError in the broker, too, damage as KafkaError. A process that ends by itself or by
`kill` raises UnknownServerError: the round is over, and the next one starts another process. So does a process that
cannot be started: that is no fault of the disk.

Owner: a thread of the pool, one call at a time; `kill`, `end` and `close` may be called on any thread.
"""

from __future__ import annotations

import json
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import IO, Any, Final, NoReturn

from kbroker.log.cleaner import Cleaner, CleanerSizes, RoundLimits, SourceSegment
from kbroker.log.core.cleaned_transactions import AbortedTransaction
from kbroker.log.core.record_filter import LastBatch
from kbroker.log.disk import OS_DISK, Buffer
from kbroker.log.transaction_index import ENTRY_BYTES, LaterIndexes, packed, unpacked
from kclient.wire.errors import CorruptMessage, KafkaError, UnknownServerError

_LENGTH: Final = struct.Struct(">i")
_ERROR: Final = -1
_PIECE_BYTES: Final = 1 << 16
"""A frame has about as many bytes: the pool's thread holds the interpreter lock for the headers of one frame."""


class CleanerProcess:
    """A process that cleans, with memory of *sizes*, at up to *max_bytes_per_second*; started when it is needed."""

    def __init__(self, sizes: CleanerSizes, max_bytes_per_second: float = float("inf")) -> None:
        self._sizes = sizes
        self._max_bytes_per_second = max_bytes_per_second
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ended = False

    @property
    def pid(self) -> int | None:
        """The process's id; None while there is none."""
        return self._process.pid if self._process is not None else None

    def round(self, segments: Sequence[SourceSegment], limits: RoundLimits) -> RemoteCleaner:
        """Return the cleaner of a new round."""
        return RemoteCleaner(self, segments, limits)

    def kill(self) -> None:
        """End the process at once; the round at which it is fails."""
        process = self._process
        if process is not None:
            process.kill()

    def end(self) -> None:
        """End the process at once, for good: every round fails from now on."""
        self._is_ended = True
        self.kill()

    def close(self) -> None:
        """End the process and wait for its end. Slow."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # a request that was not sent

    # For `RemoteCleaner`

    def begin(self, segments: Sequence[SourceSegment], limits: RoundLimits) -> int:
        """Have the process read the dirty part of a log; return the end of the map."""
        if self._process is None and not self._is_ended:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __name__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    process_group=0,  # Ctrl-C at a terminal is for the broker, which ends this one
                )
            except OSError as error:
                raise UnknownServerError(
                    f"the process of the log cleaner cannot be started: {error}"
                ) from error
        if self._is_ended:  # after the start: `end` kills the process that it finds
            self._ended()
        self._send(
            {
                "segments": segments,
                "limits": limits._replace(last_batches={}),
                "last_batches": dict(limits.last_batches),
                "sizes": self._sizes,
                "max_bytes_per_second": self._max_bytes_per_second,
            }
        )
        self._check(self._length())
        return int(self._line())

    def group(
        self, first: int, count: int, kept_aborted: list[AbortedTransaction]
    ) -> Iterator[bytes]:
        """Yield what stays of the segments of the round from *first* on. If it is not read to its end, close.

        Then *kept_aborted* has what stays of their transaction indexes.
        """
        self._send({"first": first, "count": count})
        is_over = False
        try:
            while (size := self._length()) > 0:
                yield self._read(size)
            if size == 0:
                while (size := self._length()) > 0:
                    kept_aborted += unpacked(self._read(size), "what the log cleaner sent")
            is_over = True
            self._check(size)
        finally:
            if not is_over:
                self.close()

    def _check(self, size: int) -> None:
        """Raise the error behind a frame of length -1."""
        if size == _ERROR:
            error = json.loads(self._line())
            if "errno" in error:
                raise OSError(error["errno"], error["text"])
            raise CorruptMessage(error["text"])

    def _send(self, request: dict[str, Any]) -> None:
        pipe = self._pipe("stdin")
        try:
            pipe.write(json.dumps(request).encode() + b"\n")
            pipe.flush()
        except BrokenPipeError:
            self._ended()

    def _length(self) -> int:
        size: int = _LENGTH.unpack(self._read(_LENGTH.size))[0]
        return size

    def _line(self) -> bytes:
        return self._pipe("stdout").readline() or self._ended()

    def _read(self, size: int) -> bytes:
        data = self._pipe("stdout").read(size)
        return data if len(data) == size else self._ended()

    def _pipe(self, name: str) -> IO[bytes]:
        pipe: IO[bytes] | None = getattr(self._process, name, None)
        return self._ended() if pipe is None else pipe

    def _ended(self) -> NoReturn:
        self.close()
        raise UnknownServerError("the process of the log cleaner ended within a round")


class RemoteCleaner:
    """A round that a `CleanerProcess` does."""

    def __init__(
        self, process: CleanerProcess, segments: Sequence[SourceSegment], limits: RoundLimits
    ) -> None:
        self._process = process
        self._segments = list(segments)
        self._limits = limits
        self._kept_aborted: list[AbortedTransaction] = []
        self.map_end = limits.first_dirty_offset

    def build_offset_map(self) -> int:
        """Have the dirty records read; return the first offset that the round does not clean."""
        self.map_end = self._process.begin(self._segments, self._limits)
        return self.map_end

    def cleaned(self, group: Sequence[SourceSegment]) -> Iterator[bytes]:
        """Yield what stays of *group*: buffers of whole batches, in order."""
        bases = [each.base_offset for each in self._segments]
        self._kept_aborted = []
        return self._process.group(
            bases.index(group[0].base_offset), len(group), self._kept_aborted
        )

    def kept_aborted(self) -> Sequence[AbortedTransaction]:
        """Return what stays of the transaction indexes of the last group, of which all was yielded."""
        return self._kept_aborted


# In the process


class Throttle:
    """Waits so that no more than *max_bytes_per_second* are read and written; ends the process if its broker ended."""

    def __init__(self, max_bytes_per_second: float) -> None:
        self._rate = max_bytes_per_second
        self._due = time.monotonic()
        self._broker = select.poll()
        self._broker.register(sys.stdin, 0)

    def __call__(self, count: int) -> None:
        """Count *count* bytes, and wait until they are due."""
        self._due = max(self._due, time.monotonic()) + count / self._rate
        while True:
            wait = self._due - time.monotonic()
            if self._broker.poll(min(max(wait, 0) * 1000, 60_000)):
                sys.exit("the broker of this log cleaner ended")
            if wait <= 0:
                return


def main() -> None:
    """Do what comes through standard input until its end."""
    out = sys.stdout.buffer
    round_: tuple[Cleaner, list[SourceSegment]] | None = None
    for line in sys.stdin.buffer:
        request = json.loads(line)
        try:
            if "limits" in request:
                round_ = None  # its map, before the next one takes as much
                round_ = _new_round(request)
                end = round_[0].build_offset_map()
                _write(out, _LENGTH.pack(0), b"%d\n" % end)
            elif round_ is not None:
                cleaner, segments = round_
                first = request["first"]
                group = segments[first : first + request["count"]]
                for piece in cleaner.cleaned(group, piece_bytes=_PIECE_BYTES):
                    _write(out, _LENGTH.pack(len(piece)), piece)
                _write(out, _LENGTH.pack(0))
                for entries in _in_frames(cleaner.kept_aborted()):
                    _write(out, _LENGTH.pack(len(entries)), entries)
                _write(out, _LENGTH.pack(0))
        except KafkaError as error:
            _write_error(out, {"text": error.message})
        except OSError as error:
            _write_error(out, {"errno": error.errno, "text": str(error)})


def _new_round(request: dict[str, Any]) -> tuple[Cleaner, list[SourceSegment]]:
    segments = [SourceSegment(*each) for each in request["segments"]]
    last_batches = {int(key): LastBatch(*each) for key, each in request["last_batches"].items()}
    limits = RoundLimits(*request["limits"])
    later = LaterIndexes(*limits.later_indexes)
    newest = [AbortedTransaction(*each) for each in later.newest]
    limits = limits._replace(last_batches=last_batches, later_indexes=later._replace(newest=newest))
    sizes = CleanerSizes(*request["sizes"])
    throttle = Throttle(request["max_bytes_per_second"])
    return Cleaner(OS_DISK, segments, limits, sizes, throttle=throttle), segments


def _in_frames(entries: Sequence[AbortedTransaction]) -> Iterator[bytes]:
    at_once = _PIECE_BYTES // ENTRY_BYTES
    for start in range(0, len(entries), at_once):
        yield b"".join(map(packed, entries[start : start + at_once]))


def _write_error(out: IO[bytes], error: dict[str, Any]) -> None:
    _write(out, _LENGTH.pack(_ERROR), json.dumps(error).encode() + b"\n")


def _write(out: IO[bytes], *parts: Buffer) -> None:
    try:
        for part in parts:
            out.write(part)
        out.flush()
    except BrokenPipeError:
        os._exit(1)  # the broker ended: nothing is left to do, and the buffer cannot be flushed


if __name__ == "__main__":
    main()
