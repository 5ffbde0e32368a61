"""The column `batch` of the data source `kbroker`: the header of the record batch in which a record is stored.

Spark's Kafka connector does not have it. Each record has the header of its batch as a struct. The bytes of a struct are
copied by Arrow, without a Python object per record. Memory: one header per batch of the chunks that are not yet rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from kclient.wire.batches import BatchInfo
from kclient.wire.compression import codec_name
from spark_jobs.reader import Fetched, Unread
from spark_jobs.record_arrays import RecordArrays

if TYPE_CHECKING:
    import pyarrow as pa

FIELDS = (
    ("baseOffset", "long"),
    ("lastOffset", "long"),
    ("leaderEpoch", "int"),
    ("crc", "long"),
    ("codec", "string"),
    ("producerId", "long"),
    ("producerEpoch", "int"),
    ("baseSequence", "int"),
    ("isTransactional", "boolean"),
    ("records", "int"),
    ("size", "int"),
)
"""Names and types; `docs/spark.md` has the meaning."""


class BatchHeaders:
    """The headers of the batches that were fetched, until their records are rows."""

    def __init__(self) -> None:
        self._of_range: dict[int, list[BatchInfo]] = {}
        """By the number of the range; ascending by offset."""

    def noted(self, fetched: Iterable[Fetched | Unread]) -> Iterator[Fetched | Unread]:
        """Yield *fetched*, and keep the headers."""
        for each in fetched:
            if isinstance(each, Fetched):
                self._of_range.setdefault(each.number, []).append(each.info)
            yield each

    def column(self, records: RecordArrays, kind: pa.StructType) -> pa.Array:
        """Return the header of each record's batch; forget the batches before them."""
        held: list[BatchInfo] = []
        places = np.empty(records.offsets.size, np.int64)
        for number in np.unique(records.groups).tolist():
            infos = self._of_range[number]
            inside = records.groups == number
            starts = np.array([info.base_offset for info in infos], np.int64)
            found = np.searchsorted(starts, records.offsets[inside], side="right") - 1
            places[inside] = found + len(held)
            held += infos
            # Offsets ascend, so later records have the last of these batches or a later one.
            self._of_range[number] = infos[int(found.max()) :]
        return _structs(held, kind).take(places)


def _structs(infos: list[BatchInfo], kind: pa.StructType) -> pa.Array:
    """Return the values of `FIELDS` of each batch."""
    import pyarrow as pa

    columns: list[list[object]] = [
        [info.base_offset for info in infos],
        [info.last_offset for info in infos],
        [info.leader_epoch for info in infos],
        [info.crc for info in infos],
        [codec_name(info.codec) for info in infos],
        [info.producer_id for info in infos],
        [info.producer_epoch for info in infos],
        [info.base_sequence for info in infos],
        [info.is_transactional for info in infos],
        [info.record_count for info in infos],
        [info.size for info in infos],
    ]
    arrays = [pa.array(values, kind.field(n).type) for n, values in enumerate(columns)]
    return pa.StructArray.from_arrays(arrays, fields=list(kind))
