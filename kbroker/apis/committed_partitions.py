"""The partitions of OffsetCommit and TxnOffsetCommit: which offsets are kept, and which are refused at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from kbroker.common.turns import Slice
from kbroker.coordinator.group.core.commits import OffsetCommit
from kbroker.coordinator.group.core.records import CommitDetail
from kbroker.metadata.metadata_cache import MetadataCache
from kclient.wire.errors import ErrorCode


class CommittedPartition(Protocol):
    """A partition of the request."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    committed_metadata: str | None


class CommittedTopic(Protocol):
    """A topic of the request."""

    name: str

    @property
    def partitions(self) -> Sequence[CommittedPartition]:
        """Its partitions."""


class PartitionAnswer(Protocol):
    """A partition of the response."""

    error_code: int


Answer = TypeVar("Answer", bound=PartitionAnswer)


async def known_partitions(
    topics: Iterable[CommittedTopic],
    metadata: MetadataCache,
    share: Slice,
    *,
    add_topic: Callable[[str, list[Answer]], None],
    answer_to: Callable[[int], Answer],
) -> tuple[list[tuple[str, int, OffsetCommit]], list[Answer]]:
    """Return the commits of partitions that *metadata* knows, and their answers; the other answers get an error.

    *add_topic* adds a topic to the response, with the list of its answers, which grows; *answer_to* makes the answer
    for a partition index.
    """
    commits: list[tuple[str, int, OffsetCommit]] = []
    answers: list[Answer] = []
    for topic in topics:
        answered: list[Answer] = []
        add_topic(topic.name, answered)
        known = metadata.topic(topic.name)
        for asked in topic.partitions:
            if share.is_over():
                await share.next()
            answer = answer_to(asked.partition_index)
            answered.append(answer)
            if known is None or asked.partition_index not in known.partitions:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif asked.committed_offset < 0:
                answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            else:
                detail = CommitDetail(asked.committed_leader_epoch, asked.committed_metadata or "")
                commit = OffsetCommit(asked.committed_offset, detail)
                commits.append((topic.name, asked.partition_index, commit))
                answers.append(answer)
    return commits, answers
