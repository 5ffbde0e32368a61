"""Which mirror topics may be deleted because their source topic was."""

from __future__ import annotations

from uuid import UUID

import pytest

from mirrormaker.deletions import OrphanTimes, orphans
from mirrormaker.lineage import SOURCE_TOPIC_ID, text_of
from mirrormaker.settings import LinkSettings
from mirrormaker.topics import MARK, Selection, Topic

EAST = "id-of-east"
OLD, NEW = UUID(int=1), UUID(int=2)


def mirror_of(topic_id: UUID | None, cluster: str = EAST) -> Topic:
    stated = {} if topic_id is None else {SOURCE_TOPIC_ID: text_of(topic_id)}
    return Topic(1, UUID(int=9), {MARK: cluster, **stated})


def test_a_mirror_of_a_topic_id_that_is_gone_is_an_orphan() -> None:
    assert orphans([NEW], {"t": mirror_of(OLD)}, EAST) == {"t": text_of(OLD)}


@pytest.mark.parametrize(
    ("source", "target"),
    [
        pytest.param([OLD], mirror_of(OLD), id="the source topic is there"),
        pytest.param([NEW], mirror_of(OLD, "id-of-north"), id="it mirrors another cluster"),
        pytest.param([NEW], mirror_of(OLD, ""), id="it was promoted"),
        pytest.param([NEW], mirror_of(None), id="it states no topic id"),
        pytest.param([NEW], Topic(1), id="it is no mirror"),
        pytest.param([], mirror_of(OLD), id="the source has no topic ids"),
    ],
)
def test_any_other_topic_is_none(source: list[UUID], target: Topic) -> None:
    assert orphans(source, {"t": target}, EAST) == {}


def test_an_orphan_is_due_after_the_delay_without_interruption() -> None:
    times, gone = OrphanTimes(10), {"t": "old"}
    assert times.compared(gone, 0.0) == (gone, {})
    assert times.compared(gone, 9.0) == ({}, {})
    assert times.compared({}, 9.5) == ({}, {})
    assert times.compared(gone, 12.0) == (gone, {}), "the delay starts again"
    assert times.compared({"t": "another"}, 21.0) == ({"t": "another"}, {}), "of another topic"
    assert times.compared({"t": "another"}, 31.0) == ({}, {"t": "another"})


@pytest.mark.parametrize(
    ("policy", "copy", "source"),
    [
        ("IdentityReplicationPolicy", "orders", "orders"),
        ("IdentityReplicationPolicy", "east.orders", "east.orders"),
        ("IdentityReplicationPolicy", "__consumer_offsets", None),
        ("DefaultReplicationPolicy", "east.orders", "orders"),
        ("DefaultReplicationPolicy", "orders", None),
        ("DefaultReplicationPolicy", "east.secret", None),
    ],
)
def test_the_name_at_the_source_follows_from_the_name_at_the_target(
    policy: str, copy: str, source: str | None
) -> None:
    settings = LinkSettings(replication_policy=policy, topics_exclude="secret, __.*")
    assert Selection("east", "west", settings).source_name(copy) == source
