"""Looks up the leader epoch of an offset (KIP-101): another one than before shows that the log was truncated."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kclient import AdminClient, TopicPartition
from kclient.net.leader_epochs import EpochEnd
from kclient.wire.errors import KafkaError
from spark_jobs.snapshot import ClusterSnapshot

MOST_EPOCHS = 100
"""Epochs behind the offset after which the search ends: its epoch is then unknown."""

Lookup = Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, EpochEnd | KafkaError]]
"""Returns the largest epoch of each log up to the given one, and its end."""


def epochs_before(
    cluster: ClusterSnapshot, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the leader epoch of the offset before each of *offsets*; none where it is unknown or 0 is given.

    Partitions with an error have none, and so has a cluster that does not answer.
    """
    wanted = {
        TopicPartition(cluster.topic_of(tp.topic), tp.partition): tp
        for tp, end in offsets.items()
        if end > 0
    }
    named = {there: offsets[tp] for there, tp in wanted.items()}
    if not named:
        return {}
    try:
        with AdminClient({"bootstrap.servers": cluster.bootstrap}) as admin:
            described = admin.describe_topics({tp.topic for tp in named}, raise_errors=False)
            latest = {}
            for tp in named:
                topic = described[tp.topic]
                if not isinstance(topic, KafkaError) and tp.partition in topic.partitions:
                    latest[tp] = topic.partitions[tp.partition].leader_epoch
            found = search(
                lambda asked: admin.list_epoch_ends(asked, raise_errors=False), named, latest
            )
    except KafkaError:
        return {}
    return {wanted[there]: epoch for there, epoch in found.items()}


def search(
    look_up: Lookup, ends: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the epoch of the offset before each of *ends*, from the leader's epoch *latest* downwards."""
    asked = {tp: epoch for tp, epoch in latest.items() if epoch >= 0}
    reaching: dict[TopicPartition, int] = {}
    """The lowest epoch so far that ends at or behind the offset."""
    found: dict[TopicPartition, int] = {}
    for _ in range(MOST_EPOCHS):
        if not asked:
            break
        lower: dict[TopicPartition, int] = {}
        for tp, answer in look_up(asked).items():
            if isinstance(answer, KafkaError):
                continue
            epoch, end = answer
            if epoch >= 0 and end >= ends[tp]:
                reaching[tp] = epoch
                next_lower = epoch - 1
            elif epoch >= 0 or tp in reaching:
                # The epoch below ends before the offset. Without one above it, the log does.
                next_lower = -1
            else:
                next_lower = asked[tp] - 1  # A leader's epoch without records.
            if next_lower >= 0:
                lower[tp] = next_lower
            elif tp in reaching:
                found[tp] = reaching[tp]
        asked = lower
    return found
