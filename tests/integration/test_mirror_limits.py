"""Two real clusters: the limit of fetched bytes, and mirror topics of deleted source topics."""

from __future__ import annotations

import time

import pytest

from tests.kit.brokers import Cluster
from tests.kit.mirrored_clusters import (
    MakeMirror,
    delete_topic,
    make_topic,
    produce,
    set_mark,
    topic_names,
)
from tests.kit.mirrors import stored, until_same
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150), pytest.mark.shared_clusters]


def test_a_limited_direction_takes_its_time_and_copies_everything(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    """The limit is a lower bound of the time, which no slow machine can break."""
    make_topic(east, "orders")
    produce(east, "orders", 40, size=20_000, **{"batch.num.messages": 5})
    began = time.monotonic()
    assert mirror({"east.consumer.fetch.max.bytes.per.second": "200000"}).run_once() == 0
    assert time.monotonic() - began > 1.0, "470 KB, of which one second's worth is free"
    assert len(stored(east, "orders")) >= 8, "one large batch would be free"
    assert stored(west, "orders") == stored(east, "orders")


def test_a_mirror_topic_is_deleted_after_its_source_topic_with_the_policy_delete(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    for name in ("gone", "again", "promoted", "stays"):
        make_topic(east, name)
        produce(east, name, 10)
    make_topic(west, "ours")
    copier = mirror(
        {
            "topic.deletion.policy": "delete",
            "topic.deletion.delay.seconds": "3",
            "refresh.topics.interval.seconds": "1",
        }
    )
    copier.start()
    for name in ("gone", "again", "promoted", "stays"):
        until_same(east, west, name)
    set_mark(west, "promoted", "")
    for name in ("gone", "again", "promoted"):
        delete_topic(east, name)
    make_topic(east, "again")
    produce(east, "again", 3)
    eventually("the orphan is deleted", lambda: "gone" not in topic_names(west), timeout=40)
    eventually(
        "the new topic is copied",
        lambda: stored(west, "again") == stored(east, "again"),
        timeout=40,
    )
    assert {"ours", "promoted", "stays"} <= topic_names(west)
    assert stored(west, "stays") == stored(east, "stays")
    assert stored(west, "promoted"), "its records were not touched"
    assert copier.stop() == 0


def test_mirror_topics_stay_by_default(east: Cluster, west: Cluster, mirror: MakeMirror) -> None:
    make_topic(east, "orders")
    produce(east, "orders", 10)
    copier = mirror({"refresh.topics.interval.seconds": "1"})
    copier.start()
    until_same(east, west, "orders")
    delete_topic(east, "orders")
    eventually(
        "the deletion is reported", lambda: "the target topic stays" in copier.output, timeout=40
    )
    assert "orders" in topic_names(west)
    assert copier.stop() == 0
