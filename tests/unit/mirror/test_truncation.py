"""How far a truncation of a mirror is, from the marks and topic ids of both clusters and the export."""

from __future__ import annotations

from uuid import UUID

import pytest

from mirrormaker.command_exit import Refused
from mirrormaker.export_manifest import ExportedPartition, Manifest
from mirrormaker.failback_stage import Stage
from mirrormaker.lineage import SOURCE_TOPIC_ID, text_of
from mirrormaker.topics import MARK, Topic, TopicPair
from mirrormaker.truncation import stage_of

NOW, EARLIER, COPY, AGAIN = (UUID(int=each) for each in (1, 2, 3, 4))


def source(policy: str = "delete") -> Topic:
    return Topic(1, NOW, {}, {"cleanup.policy": policy}, 1)


def mirror(
    copied: UUID | None = NOW, topic_id: UUID = COPY, mark: str = "E", policy: str = "delete"
) -> Topic:
    stated = {} if copied is None else {SOURCE_TOPIC_ID: text_of(copied)}
    return Topic(1, topic_id, {MARK: mark, **stated}, {"cleanup.policy": policy}, 1)


def exported(first_unequal: int | None = 5) -> Manifest:
    """Return the manifest of the topic id `COPY`; None: it is a prefix of the source."""
    partition = ExportedPartition(0, 0, 9, 0, 5, first_unequal, 1, 0, ())
    return Manifest("t", text_of(COPY), "W", "E", text_of(NOW), 1, 1, (partition,))


def stage(
    target: Topic | None, manifest: Manifest | None, at_source: Topic | None = None
) -> Stage | None:
    pair = TopicPair(
        name="t",
        source=at_source or source(),
        target=target,
        copy="t",
        source_id="E",
        target_id="W",
    )
    return stage_of(pair, manifest)


@pytest.mark.parametrize(
    ("target", "manifest", "expected"),
    [
        (mirror(), None, Stage.FENCED),
        (mirror(EARLIER), None, Stage.FENCED),
        (mirror(), exported(), Stage.FENCED),
        (mirror(EARLIER), exported(), Stage.FENCED),
        (None, exported(), Stage.DELETED),
        (mirror(topic_id=AGAIN), exported(), Stage.MIRROR),
        (None, None, None),
        # A prefix stays; it is marked again only if it states an earlier topic.
        (mirror(), exported(None), Stage.MIRROR),
        (mirror(EARLIER), exported(None), Stage.FENCED),
    ],
)
def test_a_command_that_was_killed_continues_where_it_was(
    target: Topic | None, manifest: Manifest | None, expected: Stage | None
) -> None:
    assert stage(target, manifest) is expected


@pytest.mark.parametrize(
    ("target", "at_source", "reason"),
    [
        (mirror(mark="N"), None, "only a mirror is truncated"),
        (mirror(mark=""), None, "only a mirror is truncated"),
        (mirror(None), None, "only a mirror is truncated"),
        (mirror(policy="compact"), None, "is compacted"),
        (mirror(), source("compact"), "is compacted"),
    ],
)
def test_what_is_no_mirror_or_compacted_is_refused(
    target: Topic, at_source: Topic | None, reason: str
) -> None:
    with pytest.raises(Refused, match=reason):
        stage(target, None, at_source)


def test_a_topic_that_was_created_again_after_its_export_needs_another_directory() -> None:
    with pytest.raises(Refused, match="another directory"):
        stage(mirror(EARLIER, topic_id=AGAIN), exported())
