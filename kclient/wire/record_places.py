"""Where the fields of records are: batches as columns of numbers, without an object per key or value.

`RecordPlaces` joins the decompressed records of consecutive batches to one buffer. For each record it has offset,
timestamp, and the first byte and the end of key and value in that buffer. Arrow gathers columns of bytes from
such places (`kclient.consumer.arrow`).

It accepts and rejects the same batches as `record_reader.decode_columns`; a property test compares them. mypyc compiles
the module (`COMPILED` of the package's build).
"""

from __future__ import annotations

from array import array
from struct import pack
from typing import TYPE_CHECKING

from kclient.wire.batches import BatchInfo, Buffer
from kclient.wire.errors import InvalidRecord
from kclient.wire.record_cursor import RecordCursor
from kclient.wire.record_reader import check_timestamp, decompressed, read_headers

if TYPE_CHECKING:
    from mypy_extensions import i64


class RecordPlaces:
    """Consecutive records. What is not null has a place in `keys` or `values`: first byte, and end."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        """The buffer, in pieces."""
        self.size = 0
        self.offsets = array("q")
        self.timestamps = array("q")
        self.keys = array("q")
        self.values = array("q")
        self.null_keys: list[int] = []
        """The numbers of records without a key."""
        self.null_values: list[int] = []
        self.with_headers: list[int] = []
        """The numbers of records with headers."""
        self.headers: list[list[tuple[str, bytes | None]]] = []
        """The headers of each record of `with_headers`."""
        self.runs: list[tuple[int, int, int]] = []
        """(records, timestamp type, leader epoch) of consecutive records with the same of both."""

    def __len__(self) -> int:
        return len(self.offsets)

    def add(  # noqa: C901, PLR0915  # one loop
        self, buf: Buffer, info: BatchInfo, from_offset: int, most: int
    ) -> bool:
        """Add up to *most* records of a batch at *from_offset* and above; return whether none is left out by *most*.

        An invalid batch raises InvalidRecord or another error, and adds nothing.
        """
        raw = decompressed(buf, info)
        before = len(self.offsets)
        # Lists of one batch only: their numbers are packed at its end, so their memory is used again by the next.
        offsets: list[int] = []
        timestamps: list[int] = []
        keys: list[int] = []
        values: list[int] = []
        null_keys: list[int] = []
        null_values: list[int] = []
        with_headers: list[int] = []
        all_headers: list[list[tuple[str, bytes | None]]] = []
        cursor = RecordCursor(raw)
        shift: i64 = self.size
        base_offset: i64 = info.base_offset
        base_timestamp: i64 = info.base_timestamp
        append_time: i64 = info.max_timestamp
        has_append_time = info.log_append_time
        first: i64 = from_offset
        last_delta: i64 = -1
        row: i64 = before
        stop: i64 = before + most
        is_whole = True
        for _ in range(info.record_count):
            cursor.next()
            if cursor.offset_delta <= last_delta:
                raise InvalidRecord(
                    f"offset delta {cursor.offset_delta} does not follow {last_delta}"
                )
            last_delta = cursor.offset_delta
            delta: i64 = cursor.timestamp_delta
            if not has_append_time or delta > 8191 or delta < -8192:
                check_timestamp(base_timestamp, delta)
            value_start: i64 = cursor.value_start
            value_end: i64 = value_start
            if cursor.value_size > 0:
                value_end += cursor.value_size
            headers: list[tuple[str, bytes | None]] | None = None
            if raw[value_end]:
                headers = []
                read_headers(raw, value_end, headers)
            if base_offset + last_delta < first:
                continue
            if row >= stop:
                is_whole = False  # and the rest of the batch is only checked
                continue
            offsets.append(base_offset + last_delta)
            timestamps.append(append_time if has_append_time else base_timestamp + delta)
            if cursor.key_size < 0:
                null_keys.append(row)
            else:
                keys.append(shift + cursor.key_start)
                keys.append(shift + cursor.key_start + cursor.key_size)
            if cursor.value_size < 0:
                null_values.append(row)
            else:
                values.append(shift + value_start)
                values.append(shift + value_end)
            if headers is not None:
                with_headers.append(row)
                all_headers.append(headers)
            row += 1
        if not cursor.at_end():
            raise InvalidRecord(f"the records end at byte {cursor.end} of {len(raw)}")
        if last_delta > info.last_offset_delta:
            raise InvalidRecord(
                f"the last record's offset delta is {last_delta}, "
                f"the batch header has {info.last_offset_delta} for {info.record_count} records"
            )
        if offsets:
            self.pieces.append(raw)
            self.size += len(raw)
            self.offsets.frombytes(pack(f"{len(offsets)}q", *offsets))
            self.timestamps.frombytes(pack(f"{len(timestamps)}q", *timestamps))
            self.keys.frombytes(pack(f"{len(keys)}q", *keys))
            self.values.frombytes(pack(f"{len(values)}q", *values))
            self.null_keys.extend(null_keys)
            self.null_values.extend(null_values)
            self.with_headers.extend(with_headers)
            self.headers.extend(all_headers)
            self._count_run(len(offsets), int(info.log_append_time), info.leader_epoch)
        return is_whole

    def _count_run(self, added: int, kind: int, leader_epoch: int) -> None:
        runs = self.runs
        if runs and runs[-1][1] == kind and runs[-1][2] == leader_epoch:
            runs[-1] = (runs[-1][0] + added, kind, leader_epoch)
        else:
            runs.append((added, kind, leader_epoch))
