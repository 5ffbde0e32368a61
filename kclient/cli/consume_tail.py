"""`kclient consume --tail N`: the last N records of topics, over all partitions, in the order of their timestamps.

The offsets before the log end may belong to transaction markers, to records that compaction removed, or to records that
a filter does not accept. So each partition is read from further and further back, until it has N records or is read
from its start. N records of each partition are enough to know the last N of all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from kclient.cli.record_filter import Accept
from kclient.types import AnyRecord, TopicPartition

_FURTHER = 8

Poll = Callable[[], Any]


async def last_records(
    consumer: Any,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    count: int,
    accept: Accept | None,
    *,
    read: Callable[[int], None] = lambda _: None,
) -> list[AnyRecord]:
    """Return the last *count* accepted records below *ends*; the consumer's positions are *ends* then.

    *read* is called with the number of records of each poll.
    """
    kept: dict[TopicPartition, deque[AnyRecord]] = {}
    wanted = {tp for tp in ends if count and starts[tp] < ends[tp]}
    back = count
    consumer.pause(*(ends.keys() - wanted))
    while wanted:
        firsts = {tp: max(starts[tp], ends[tp] - back) for tp in wanted}
        for tp, first in firsts.items():
            kept[tp] = deque(maxlen=count)
            consumer.seek(tp, first)
        consumer.resume(*wanted)
        left = set(wanted)
        while left:
            for tp, records in (await consumer.poll(timeout=0.2)).items():
                read(len(records))
                kept[tp].extend(
                    each
                    for each in records
                    if each.offset < ends[tp] and (accept is None or accept(each))
                )
            for tp in list(left):
                position = consumer.next_offset(tp)
                if position is not None and position >= ends[tp]:
                    consumer.pause(tp)
                    left.discard(tp)
        wanted = {tp for tp in wanted if len(kept[tp]) < count and firsts[tp] > starts[tp]}
        back *= _FURTHER
    for tp, end in ends.items():
        consumer.seek(tp, end)
    consumer.resume(*ends)
    found = [record for records in kept.values() for record in records]
    found.sort(key=lambda record: (record.timestamp, record.topic, record.partition, record.offset))
    return found[-count:] if count else []
