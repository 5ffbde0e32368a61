"""Which partitions of OffsetCommit and TxnOffsetCommit are kept, and how the response is made."""

from __future__ import annotations

from uuid import uuid4

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from kbroker.apis.committed_partitions import known_partitions
from kbroker.common.turns import THINGS_PER_SLICE, SharedTurns, WithoutTurns
from kbroker.coordinator.group.core.commits import OffsetCommit
from kbroker.coordinator.group.core.records import CommitDetail
from kbroker.metadata.metadata_cache import MetadataCache, PartitionMetadata, TopicMetadata
from kclient.wire.error_codes import ErrorCode
from kclient.wire.schema.offset_commit import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponsePartition,
)

E = ErrorCode


def asked(name: str, *partitions: tuple[int, int]) -> OffsetCommitRequestTopic:
    rows = [OffsetCommitRequestPartition(p, at, 3, None) for p, at in partitions]
    return OffsetCommitRequestTopic(name, rows)


class Answered:
    """The call of `known_partitions`, and the response as it grows. The metadata have t-0 and t-1."""

    def __init__(
        self, *topics: OffsetCommitRequestTopic, turns: SharedTurns | WithoutTurns
    ) -> None:
        self.response: list[tuple[str, list[OffsetCommitResponsePartition]]] = []
        metadata = MetadataCache("cluster")
        known = {p: PartitionMetadata(p, 1, 0, (1,), (1,), (), 0, 1) for p in (0, 1)}
        metadata.topics["t"] = TopicMetadata("t", uuid4(), known)
        self.done = Deferred.fromCoroutine(
            known_partitions(
                topics,
                metadata,
                turns.slice(),
                add_topic=lambda name, answers: self.response.append((name, answers)),
                answer_to=OffsetCommitResponsePartition,
            )
        )


def test_each_partition_is_answered_and_those_that_exist_are_committed() -> None:
    found = Answered(
        asked("t", (1, 8), (2, 7), (0, -1)),
        asked("none"),
        asked("u", (0, 7)),
        asked("t", (0, 0)),
        turns=WithoutTurns(),
    )
    commits, answers = found.done.result
    detail = CommitDetail(3, "")
    assert commits == [("t", 1, OffsetCommit(8, detail)), ("t", 0, OffsetCommit(0, detail))]
    assert [
        (topic, [(each.partition_index, each.error_code) for each in partitions])
        for topic, partitions in found.response
    ] == [
        ("t", [(1, E.NONE), (2, E.UNKNOWN_TOPIC_OR_PARTITION), (0, E.OFFSET_OUT_OF_RANGE)]),
        ("none", []),
        ("u", [(0, E.UNKNOWN_TOPIC_OR_PARTITION)]),
        ("t", [(0, E.NONE)]),
    ]
    assert answers[0] is found.response[0][1][0]
    assert answers[1] is found.response[3][1][0]


def test_a_large_request_leaves_room_for_others() -> None:
    clock = Clock()
    found = Answered(asked("t", *[(0, 1)] * THINGS_PER_SLICE), turns=SharedTurns(clock))
    assert len(found.response[0][1]) == THINGS_PER_SLICE - 1
    clock.advance(0)
    assert len(found.done.result[0]) == THINGS_PER_SLICE
