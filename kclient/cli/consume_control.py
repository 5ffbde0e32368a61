"""Transaction markers among the records of `kclient consume --print-control`.

Applications do not see the control records that end transactions; `poll` leaves them out. So the batches are read, and
decoded here. A control record has its type as key, and the epoch of the coordinator that wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kclient.cli.decoders import Decoder
from kclient.cli.formats import Formatter, envelope
from kclient.consumer.partitions import FetchedBatch
from kclient.consumer.records import Deserializers, decode
from kclient.types import AnyRecord, Record, TopicPartition
from kclient.wire.records import control_type, transaction_marker

_TYPES = {0: "ABORT", 1: "COMMIT"}


class ControlRecord(Record[Any, Any]):
    """A control record; its key is its type."""

    coordinator_epoch: int = -1


def with_control(write: Formatter, *, as_json: bool) -> Formatter:
    """Return *write* for records among which are control records."""
    if not as_json:
        return write

    def written(record: AnyRecord) -> bytes:
        if not isinstance(record, ControlRecord):
            return write(record)
        import json

        fields = {
            **envelope(record),
            "control": record.key,
            "coordinator_epoch": record.coordinator_epoch,
        }
        return (json.dumps(fields) + "\n").encode()

    return written


class ControlPoll:
    """Polls a consumer for records and control records, from *firsts* on."""

    def __init__(
        self, consumer: Any, firsts: Mapping[TopicPartition, int], decoders: Mapping[str, Decoder]
    ) -> None:
        self._consumer = consumer
        self._next = dict(firsts)
        self._deserializers = Deserializers(decoders.get("key"), decoders.get("value"))

    async def poll(self, *, timeout: float) -> dict[TopicPartition, list[AnyRecord]]:
        """Return the records of the next batches; raise the error of the first that cannot be decoded."""
        found: dict[TopicPartition, list[AnyRecord]] = {}
        for tp, batches in (await self._consumer.poll_batches(timeout=timeout)).items():
            records = found.setdefault(tp, [])
            for info, data in batches:
                plain = Deserializers() if info.is_control else self._deserializers
                batch = FetchedBatch(info, data, hidden=False)
                decoded, problem = decode(tp, batch, self._next.get(tp, 0), plain)
                if problem is not None:
                    raise problem
                records += _marked(decoded, info, data) if info.is_control else decoded
                self._next[tp] = info.next_offset
        return found


def _marked(records: list[AnyRecord], info: Any, data: Any) -> list[AnyRecord]:
    marker = transaction_marker(data, info)
    marked: list[AnyRecord] = []
    for record in records:
        kind = control_type(record.key)
        each = ControlRecord(*record._replace(key=_TYPES.get(kind, str(kind)), value=None))
        each.coordinator_epoch = -1 if marker is None else marker.coordinator_epoch
        marked.append(each)
    return marked
