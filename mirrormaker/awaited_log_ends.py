"""The log ends of both clusters for a comparison that ends a command: leaders that fail get time to come back.

A link reads the ends again later, so `mirrormaker.log_ends` gives up after seconds. A command reads them after hours of
an audit; an error here would undo these.
"""

from __future__ import annotations

from collections.abc import Mapping

from kclient.errors import KafkaError
from kclient.net.cluster import Cluster
from kclient.net.waiting import sleep
from kclient.types import TopicPartition
from mirrormaker.link_state import LogEnds
from mirrormaker.log_ends import read_log_ends

_PAUSE = 0.1
"""Seconds between two readings."""


async def awaited_log_ends(
    source: Cluster,
    target: Cluster,
    pairs: Mapping[TopicPartition, TopicPartition],
    *,
    timeout: float,
) -> dict[TopicPartition, LogEnds | KafkaError]:
    """Return the `LogEnds` of every pair (source partition -> target partition), or its KafkaError.

    Partitions with an error that may pass are read again; after *timeout* seconds not any more.
    """
    give_up_at = source.reactor.seconds() + timeout
    answers = await read_log_ends(source, target, pairs)
    while True:
        left = {
            tp: pairs[tp]
            for tp, answer in answers.items()
            if isinstance(answer, KafkaError) and answer.retriable
        }
        if not left or source.reactor.seconds() >= give_up_at:
            return answers
        source.update_soon()
        target.update_soon()
        await sleep(source.reactor, _PAUSE)
        answers |= await read_log_ends(source, target, left)
