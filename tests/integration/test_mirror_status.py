"""What `kmirror plan` and `kmirror status` print of two real clusters, and the alarms of a mirror."""

from __future__ import annotations

import pytest

from tests.kit.brokers import Cluster
from tests.kit.mirrored_clusters import (
    MakeMirror,
    admin,
    delete_records,
    make_topic,
    produce,
    write_to_mirror,
)
from tests.kit.mirrors import until_same
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150), pytest.mark.shared_clusters]


def rows(answer: tuple[int, str]) -> tuple[int, list[str]]:
    """Return the exit code of `kmirror status`, and its lines of partitions without their padding."""
    code, output = answer
    return code, [" ".join(line.split()) for line in output.splitlines() if "orders-" in line]


def test_plan_and_status_print_what_is_to_be_done(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders", 2, retention_ms="77000000")
    produce(east, "orders", 10)
    copier = mirror()
    code, output = copier.ask("plan")
    assert code == 0
    assert "create orders with 2 partitions" in output
    assert "retention.ms=77000000" in output
    assert rows(copier.ask("status")) == (
        4,
        ["orders-0 ? ? ? not at the target", "orders-1 ? ? ? not at the target"],
    )
    assert copier.run_once() == 0
    assert rows(copier.ask("status")) == (0, ["orders-0 10 10 0 in sync", "orders-1 0 0 0 in sync"])
    produce(east, "orders", 5)
    behind = (4, ["orders-0 15 10 5 no progress", "orders-1 0 0 0 in sync"])
    assert rows(copier.ask("status", "--settle", "0.5")) == behind
    code, output = copier.ask("status", "--settle", "0.1", "--max-lag", "4")
    assert (code, "lag over the limit: at most 4 allowed" in output) == (4, True)
    others = {"clusters": "dead, same, east, west", "dead.bootstrap.servers": "127.0.0.1:1"}
    others |= {"same.bootstrap.servers": west.bootstrap, "dead->west.enabled": "true"}
    for refused, codes in (("false", (3, 3)), ("true", (1, 1))):
        several = mirror({**others, "same->west.enabled": refused})
        code, output = several.ask("plan")
        assert (code, "mirror 1 topics: orders" in output) == (codes[0], True), output
        code, found = rows(several.ask("status", "--settle", "0.1"))
        assert (code, found) == (codes[1], behind[1])
    assert several.ask("verify")[0] == 4
    assert mirror({"topics": "order"}).ask("verify")[0] == 5, "no partition was compared"
    west.kill(1)
    assert copier.ask("status")[0] == 3


def test_status_names_partitions_that_are_no_copy_and_ends_with_5(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders", 2)
    produce(east, "orders", 20, partitions=2, **{"batch.num.messages": 1})
    copier = mirror()
    assert copier.run_once() == 0
    write_to_mirror(west, "orders", 1)
    code, found = rows(copier.ask("status", "--settle", "0.2"))
    ahead = "orders-0 10 11 0 STOPPED: the target has offsets that the source does not have"
    assert (code, found[0].partition(":")[0], found[1]) == (
        5,
        ahead.partition(":")[0],
        "orders-1 10 10 0 in sync",
    )
    produce(east, "orders", 20, partitions=2, **{"batch.num.messages": 1})
    code, found = rows(copier.ask("status", "--settle", "0.2"))
    assert code == 5
    assert "STOPPED: source and target hold different records at the same offset" in found[0]
    assert found[1] == "orders-1 20 10 10 no progress"
    copier.start()
    eventually("the link to stop", lambda: "STOPPED orders-0" in copier.output)
    produce(east, "orders", 200, partitions=2)
    eventually("the lag of the stopped link", lambda: "lag 109 rec" in copier.output)
    assert rows(copier.ask("status", "--settle", "0.2"))[0] == 5
    assert copier.stop() == 5


def test_a_target_that_deleted_its_records_is_not_in_sync(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders")
    produce(east, "orders", 10, **{"batch.num.messages": 1})
    copier = mirror()
    assert copier.run_once() == 0
    delete_records(west, "orders", 4)
    lacks = "the target lacks {} offsets from 0 on, which the source has"
    expected = f"orders-0 10 10 0 starts later: {lacks.format(4)}"
    assert rows(copier.ask("status")) == (0, [expected])
    assert copier.ask("verify")[0] == 0
    delete_records(west, "orders", 10)
    expected = f"orders-0 10 10 0 emptied: {lacks.format(10)}"
    assert rows(copier.ask("status", "--settle", "0.2")) == (4, [expected])
    code, output = copier.ask("verify")
    assert (code, "target lacks offsets 0-9: not compared" in output) == (5, True), output


def test_status_names_what_the_source_deleted_before_it_was_copied(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders")
    produce(east, "orders", 10, **{"batch.num.messages": 1})
    assert mirror().run_once() == 0
    produce(east, "orders", 10, **{"batch.num.messages": 1})
    delete_records(east, "orders", 15)
    code, found = rows(mirror().ask("status", "--settle", "0.2"))
    assert code == 5
    assert "offsets 10-14 are deleted, the source starts at" in found[0]
    skipping = mirror({"gap.policy": "skip"})
    assert rows(skipping.ask("status", "--settle", "0.2"))[0] == 4
    assert skipping.run_once() == 0
    assert rows(skipping.ask("status")) == (0, ["orders-0 20 20 0 in sync"])


def test_a_plan_shows_what_the_target_would_refuse_and_what_stays_different(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders")
    make_topic(east, "other")
    assert mirror({"east->west.topics": "orders"}).run_once() == 0
    copier = mirror({"replication.factor": "3"})
    code, output = copier.ask("plan")
    assert code == 5, output
    assert (
        "leave other: cannot be created or changed at the target: INVALID_REPLICATION_FACTOR"
        in output
    )
    assert "drift orders: replication factor 1 at the target, replication.factor=3" in output
    assert "mirror 1 topics: orders" in output
    assert "drift orders: replication factor 1 at the target" in copier.ask("status")[1]
    assert copier.run_once() == 5, copier.output
    assert mirror().ask("plan")[0] == 0
    assert "other" not in admin(west).list_topics(timeout=5).topics, "a plan changes nothing"


def test_an_alarm_begins_once_when_the_target_stands_still_and_ends_once(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "t")
    produce(east, "t", 10)
    copier = mirror({"alarm.no.progress.seconds": "2", "alarm.lag.records": "5"})
    copier.start()
    until_same(east, west, "t")
    west.pause(1)
    try:
        produce(east, "t", 10)
        eventually("an alarm", lambda: "ALARM no progress for 2 s: t-0 (" in copier.output)
        eventually(
            "an alarm of lag", lambda: "ALARM lag over 5 records: t-0 (lag 1" in copier.output
        )
    finally:
        west.resume(1)
    until_same(east, west, "t")
    eventually(
        "its end", lambda: "alarm of no progress ended: t-0 (progress again)" in copier.output
    )
    eventually("its end", lambda: "alarm of lag ended: t-0 (lag " in copier.output)
    assert copier.stop() == 0
    assert copier.output.count("ALARM no progress for") == 1


def test_status_takes_the_limit_of_lag_from_the_configuration(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "t")
    copier = mirror({"alarm.lag.records": "5"})
    assert copier.run_once() == 0
    produce(east, "t", 10)
    code, output = copier.ask("status", "--settle", "0.2")
    assert (code, "lag over the limit: at most 5 allowed" in output) == (4, True), output
    code, output = copier.ask("status", "--settle", "0.2", "--max-lag", "50")
    assert (code, "no progress" in output) == (4, True), output
