"""Decodes fetched batches to records, and handles records that cannot be decoded.

An invalid record does not affect earlier ones, and is not skipped. The records before it are returned, and the position
stops at it. From then on every poll raises its error, until the caller seeks past it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from kclient.consumer.partitions import FetchedBatch, PartitionState
from kclient.errors import KafkaError, RecordDeserializationError
from kclient.types import AnyRecord, Record, TopicPartition
from kclient.wire.records import decode_columns

Deserializer = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class Deserializers:
    """Convert keys and values from bytes to objects; None leaves bytes. Nulls stay None."""

    key: Deserializer | None = None
    value: Deserializer | None = None

    def __post_init__(self) -> None:
        """Raise TypeError for what is no function, before the first record does."""
        for name, given in (("key", self.key), ("value", self.value)):
            if given is not None and not callable(given):
                raise TypeError(f"{name}_deserializer={given!r} is no function of bytes")


def decode(
    tp: TopicPartition,
    batch: FetchedBatch,
    from_offset: int,
    deserializers: Deserializers = Deserializers(),
) -> tuple[list[AnyRecord], KafkaError | None]:
    """Return the records of *batch* at *from_offset* and above, and the error that stopped decoding, if any.

    A corrupt batch returns no records and an error with its offset. A failed deserializer returns the records before
    that one, and a RecordDeserializationError with its offset.
    """
    info, data, hidden = batch
    if hidden:
        return [], None
    try:
        offsets, timestamps, keys, values, headers = decode_columns(data, info)
    except KafkaError as broken:
        broken.message = f"{tp}, batch at offset {info.base_offset}: {broken.message}"
        return [], broken
    if offsets and offsets[0] < from_offset:
        first = next((n for n, offset in enumerate(offsets) if offset >= from_offset), len(offsets))
        offsets, timestamps = offsets[first:], timestamps[first:]
        keys, values, headers = keys[first:], values[first:], headers[first:]
    key_sizes, value_sizes = _sizes(keys), _sizes(values)
    problem: KafkaError | None = None
    for which, deserializer in (("key", deserializers.key), ("value", deserializers.value)):
        if deserializer is None:
            continue
        done, failed = _deserialized(
            tp, offsets, keys if which == "key" else values, deserializer, which
        )
        if which == "key":
            keys = done
        else:
            values = done
        if failed is not None:
            # zip stops at the shortest column: at the first record that failed.
            problem = failed
            offsets = offsets[: len(done)]
    rows = zip(
        repeat(tp.topic),
        repeat(tp.partition),
        offsets,
        timestamps,
        repeat(int(info.log_append_time)),
        keys,
        values,
        headers,
        repeat(info.leader_epoch if info.leader_epoch >= 0 else None),
        key_sizes,
        value_sizes,
        strict=False,
    )
    # Twice as fast as calling the class; the eleven fields are those of Record, in order.
    return list(map(tuple.__new__, repeat(Record), rows)), problem


def take_records(
    state: PartitionState, most: int, deserializers: Deserializers = Deserializers()
) -> list[AnyRecord]:
    """Return up to *most* next records of *state* and move its position past them.

    Raise the error of the record at the position only if there is no record before it.
    """
    with _collector_paused():
        return _taken(state, most, deserializers)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Disable the garbage collector while records are created by the ten thousand.

    Records form no cycles. Yet every 700 of them would trigger a collection of the youngest generation, and every
    70,000 a full one. That is a quarter of the time of consuming.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _taken(state: PartitionState, most: int, deserializers: Deserializers) -> list[AnyRecord]:
    taken: list[AnyRecord] = []
    while len(taken) < most:
        if state.decoded_from < len(state.decoded):
            part = _next_decoded(state, most - len(taken))
            taken = taken + part if taken else part
        elif state.problem is not None:
            if taken:
                break
            raise state.problem.with_traceback(None)
        elif (batch := state.take()) is not None:
            assert state.position is not None, "a partition without a position buffers nothing"
            state.decoded, state.problem = decode(state.tp, batch, state.position, deserializers)
            state.decoded_from = 0
            state.decoded_end = batch.info.next_offset
            if isinstance(state.problem, RecordDeserializationError):
                state.decoded_end = state.problem.offset
            elif state.problem is not None:
                state.decoded_end = max(state.position, batch.info.base_offset)
            if not state.decoded:
                state.position = state.decoded_end
        else:
            break
    return taken


def _next_decoded(state: PartitionState, room: int) -> list[AnyRecord]:
    """Return up to *room* of the decoded records."""
    first, records = state.decoded_from, state.decoded
    part = records if first == 0 and len(records) <= room else records[first : first + room]
    if first + len(part) < len(records):
        state.decoded_from = first + len(part)
        state.position = records[state.decoded_from].offset
    else:
        state.decoded, state.decoded_from = [], 0
        state.position = state.decoded_end
    epoch = part[-1].leader_epoch
    state.leader_epoch = -1 if epoch is None else epoch
    return part


def _sizes(fields: list[bytes | None]) -> list[int]:
    if None in fields:
        return [-1 if field is None else len(field) for field in fields]
    return list(map(len, fields))  # type: ignore[arg-type]


def _deserialized(
    tp: TopicPartition,
    offsets: list[int],
    fields: list[bytes | None],
    deserializer: Deserializer,
    what: str,
) -> tuple[list[Any], RecordDeserializationError | None]:
    done: list[Any] = []
    for offset, field in zip(offsets, fields, strict=False):
        try:
            done.append(None if field is None else deserializer(field))
        except Exception as cause:
            problem = RecordDeserializationError(tp, offset, what, cause)
            problem.__cause__ = cause
            return done, problem
    return done, None
