"""Which topics are mirrored, and what the target lacks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import pytest

from kclient.mirror_ledger import lineage_topic
from mirrormaker.lineage import Lineage, text_of
from mirrormaker.settings import LinkSettings
from mirrormaker.topics import Creation, NewLineage, Plan, Selection, Topic

TIME = {"message.timestamp.type": "CreateTime"}


ID = "id-of-east"
MARK = "kbroker.mirror.source.cluster.id"
PATH = "kbroker.mirror.source.path"


class Selected(Selection):
    """A selection of topics of the cluster `ID`."""

    def plan(
        self,
        source: Mapping[str, Topic],
        target: Mapping[str, Topic],
        source_id: str = ID,
        target_id: str = "id-of-west",
    ) -> Plan:
        return super().plan(source, target, source_id, target_id)


def selection(**settings: object) -> Selected:
    return Selected("east", "west", LinkSettings(**settings))


def topic(partitions: int = 1, largest: int = 1_048_588, **overrides: str) -> Topic:
    own = {name.replace("_", "."): value for name, value in overrides.items()}
    effective = {"cleanup.policy": "delete", "max.message.bytes": str(largest), **own}
    return Topic(partitions, None, own, effective)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("orders", True),
        ("orders.2", True),
        ("my-orders", False),
        ("orders-internal", False),
        ("orders.replica", False),
        ("__consumer_offsets", False),
    ],
)
def test_topics_match_as_a_whole_and_exclusion_wins(name: str, wanted: bool) -> None:
    assert selection(topics="orders.*, __.*").wants(name) is wanted


def test_internal_topics_are_never_mirrored() -> None:
    assert not selection(topics=".*", topics_exclude="nothing").wants("__transaction_state")


def test_the_default_policy_prefixes_and_does_not_run_in_circles() -> None:
    chosen = selection(replication_policy="DefaultReplicationPolicy", separator="_")
    assert chosen.target_name("orders") == "east_orders"
    plan = chosen.plan({"east_orders": topic(), "west_orders": topic()}, {})
    assert plan.mirrored == {"east_orders": "east_east_orders"}
    assert list(plan.skipped) == ["west_orders"]


def test_a_topic_the_target_lacks_is_created_with_its_partitions_and_configs() -> None:
    source = {"orders": topic(3, cleanup_policy="compact", min_insync_replicas="2")}
    plan = selection().plan(source, {})
    assert plan.create == (Creation("orders", 3, {"cleanup.policy": "compact", **TIME, MARK: ID}),)
    assert plan.mirrored == {"orders": "orders"}


def test_batches_above_kafkas_default_fit_a_created_topic() -> None:
    plan = selection().plan({"orders": topic(largest=5_000_000)}, {})
    assert plan.create[0].configs == {"max.message.bytes": "5000000", **TIME, MARK: ID}


def test_partitions_the_target_lacks_are_added() -> None:
    same = topic(2, message_timestamp_type="CreateTime")
    plan = selection().plan({"orders": topic(4)}, {"orders": same})
    assert plan.add_partitions == {"orders": 4}
    assert (plan.create, plan.set_configs) == ((), {})


def test_a_target_with_more_partitions_is_no_mirror() -> None:
    plan = selection().plan({"orders": topic(2), "ok": topic()}, {"orders": topic(3)})
    assert "3 partitions at the target, 2 at the source" in plan.conflicts["orders"]
    assert plan.mirrored == {"ok": "ok"}


def test_configs_follow_the_source() -> None:
    source = topic(retention_ms="5", segment_bytes="100")
    target = topic(
        retention_ms="9",
        cleanup_policy="compact",
        min_insync_replicas="2",
        message_timestamp_type="CreateTime",
    )
    plan = selection().plan({"orders": source}, {"orders": target})
    assert plan.set_configs == {
        "orders": {"retention.ms": "5", "segment.bytes": "100", "cleanup.policy": None}
    }


def test_what_is_the_same_is_left_alone() -> None:
    source, target = (
        topic(retention_ms="5"),
        topic(retention_ms="5", message_timestamp_type="CreateTime"),
    )
    plan = selection().plan({"orders": source}, {"orders": target})
    assert not plan.set_configs


@pytest.mark.parametrize("sync", [True, False])
def test_the_target_takes_the_largest_batch_of_the_source(sync: bool) -> None:
    source, target = topic(largest=9_000_000), topic(message_timestamp_type="CreateTime")
    plan = selection(sync_configs=sync).plan({"orders": source}, {"orders": target})
    assert plan.set_configs == {"orders": {"max.message.bytes": "9000000"}}
    raised = topic(message_timestamp_type="CreateTime", max_message_bytes="9000000")
    assert not selection(sync_configs=sync).plan({"orders": source}, {"orders": raised}).set_configs


def test_without_sync_only_what_is_needed_is_set() -> None:
    plan = selection(sync_configs=False).plan(
        {"orders": topic(retention_ms="5")},
        {"orders": topic(message_timestamp_type="LogAppendTime")},
    )
    assert plan.set_configs == {"orders": TIME}


def test_a_topic_without_the_mark_is_named_and_no_setting_of_the_plan_marks_it() -> None:
    made = topic(message_timestamp_type="CreateTime")
    plan = selection().plan({"orders": topic()}, {"orders": made})
    assert (plan.unmarked, plan.set_configs) == ({"orders"}, {})


@pytest.mark.parametrize(
    ("marks", "skipped"),
    [
        ({MARK: "id-of-west"}, True),
        ({MARK: "id-of-north", PATH: "id-of-west"}, True),
        ({MARK: "id-of-north", PATH: "id-of-west,id-of-south"}, True),
        ({MARK: "id-of-north", PATH: "id-of-westminster"}, False),
        ({MARK: "id-of-north"}, False),
        ({MARK: "", PATH: "id-of-west"}, False),
    ],
)
@pytest.mark.parametrize("there", [{}, {"orders": topic()}])
def test_records_that_come_from_the_target_are_not_copied_to_it(
    marks: dict[str, str], skipped: bool, there: dict[str, Topic]
) -> None:
    plan = selection().plan({"orders": topic(**marks)}, there)
    assert ("orders" in plan.skipped) is skipped
    assert ("orders" in plan.mirrored) is not skipped
    assert plan.conflicts == {}
    assert not (skipped and (plan.create or plan.unmarked or plan.set_configs))


@pytest.mark.parametrize(
    ("name", "skipped"),
    [
        ("west.orders", True),
        ("north.west.orders", True),
        ("north.orders", False),
        ("orders.west", False),
        ("western.orders", False),
        ("west", False),
    ],
)
def test_a_prefix_chain_that_names_the_target_is_not_copied_to_it(name: str, skipped: bool) -> None:
    prefixing = selection(replication_policy="DefaultReplicationPolicy")
    assert (name in prefixing.plan({name: topic()}, {}).skipped) is skipped
    assert selection().plan({name: topic()}, {}).skipped == {}, "names mean nothing otherwise"


def test_a_topic_that_reaches_the_target_on_another_way_is_skipped() -> None:
    source = {"orders": topic()}
    there = topic(**{MARK: "id-of-north", PATH: ID})
    assert (
        "from cluster id-of-north" in selection().plan(source, {"orders": there}).skipped["orders"]
    )
    there = topic(**{MARK: "id-of-north", PATH: "id-of-south"})
    assert "orders" in selection().plan(source, {"orders": there}).conflicts


def test_a_mirror_that_does_not_state_the_way_of_its_records_is_marked_again() -> None:
    source = {"orders": topic(**{MARK: "id-of-north"})}
    there = topic(message_timestamp_type="CreateTime", **{MARK: ID})
    assert selection().plan(source, {"orders": there}).unmarked == {"orders"}


@pytest.mark.parametrize("sync", [True, False])
def test_a_mark_stays(sync: bool) -> None:
    marked = topic(message_timestamp_type="CreateTime", **{MARK: ID})
    plan = selection(sync_configs=sync).plan({"orders": topic()}, {"orders": marked})
    assert (plan.unmarked, plan.set_configs, plan.conflicts) == (frozenset(), {}, {})


@pytest.mark.parametrize("other", ["id-of-north", ""])
def test_the_mark_of_another_source_and_an_empty_one_are_conflicts(other: str) -> None:
    plan = selection().plan({"orders": topic()}, {"orders": topic(**{MARK: other})})
    assert f"{MARK}={other}: it is not a mirror of {ID}" in plan.conflicts["orders"]
    assert (plan.mirrored, plan.unmarked) == ({}, frozenset())


FIRST, SECOND = UUID(int=1), UUID(int=2)
TOPIC_ID = "kbroker.mirror.source.topic.id"


def with_id(topic_id: UUID | None, **overrides: str) -> Topic:
    return replace(topic(message_timestamp_type="CreateTime", **overrides), topic_id=topic_id)


def test_a_created_topic_states_the_topic_id_of_its_source() -> None:
    plan = selection().plan({"orders": with_id(FIRST)}, {})
    assert plan.create[0].configs == {**TIME, MARK: ID, TOPIC_ID: text_of(FIRST)}
    assert plan.lineages["orders"] == Lineage(text_of(FIRST), text_of(FIRST))
    plan = selection().plan({"orders": with_id(None)}, {})
    assert plan.create[0].configs == {**TIME, MARK: ID}


@pytest.mark.parametrize(
    ("source", "stated", "unmarked", "interrupted", "proven"),
    [
        (FIRST, text_of(FIRST), False, False, True),
        (SECOND, text_of(FIRST), True, True, True),
        (FIRST, None, True, False, False),
        (None, None, False, False, True),
        (None, text_of(FIRST), False, False, True),
        (FIRST, "nonsense", True, True, True),
    ],
)
def test_the_lineage_of_a_topic_is_the_id_of_its_source_and_the_one_it_states(
    source: UUID | None, stated: str | None, unmarked: bool, interrupted: bool, proven: bool
) -> None:
    made = topic(
        message_timestamp_type="CreateTime",
        **({MARK: ID} if stated is None else {MARK: ID, TOPIC_ID: stated}),
    )
    plan = selection().plan({"orders": with_id(source)}, {"orders": made})
    lineage = plan.lineages["orders"]
    assert ("orders" in plan.unmarked, lineage.is_interrupted) == (unmarked, interrupted)
    assert lineage.is_proven is proven
    assert plan.set_configs == {}, "the topic id is stated after the lineage check, not before"


def test_a_topic_id_stated_by_the_source_is_not_copied() -> None:
    """The source may be a mirror of a third cluster."""
    source = {"orders": with_id(SECOND, **{MARK: "id-of-north", TOPIC_ID: text_of(FIRST)})}
    assert selection().plan(source, {}).create[0].configs[TOPIC_ID] == text_of(SECOND)


def test_the_mark_of_the_source_itself_becomes_the_path() -> None:
    """The source may be a mirror of a third cluster."""
    source = {"orders": topic(**{MARK: "id-of-north"})}
    marks = {MARK: ID, PATH: "id-of-north"}
    assert selection().plan(source, {}).create[0].configs == {**TIME, **marks}
    source = {"orders": topic(**{MARK: "id-of-north", PATH: "id-of-south,id-of-oz"})}
    marks = {MARK: ID, PATH: "id-of-south,id-of-oz,id-of-north"}
    assert selection().plan(source, {}).create[0].configs == {**TIME, **marks}
    made = topic(message_timestamp_type="CreateTime")
    assert selection().plan(source, {"orders": made}).set_configs == {}


LATER = lineage_topic("orders", text_of(SECOND))
LINEAGES = {"gap_policy": "new-lineage"}


def copy_of(topic_id: UUID, partitions: int = 1, **marks: str) -> Topic:
    """Return a target topic that states that its records are of *topic_id*."""
    made = with_id(None, **{MARK: ID, TOPIC_ID: text_of(topic_id), **marks})
    return replace(made, partitions=partitions)


def test_a_topic_that_was_created_again_is_copied_beside_the_copy_of_the_earlier_one() -> None:
    source, target = {"orders": with_id(SECOND)}, {"orders": copy_of(FIRST, 2)}
    plan = selection(**LINEAGES).plan(source, target)
    assert plan.mirrored == {"orders": LATER}
    assert [each.name for each in plan.create] == [LATER]
    assert plan.create[0].configs[TOPIC_ID] == text_of(SECOND)
    assert (plan.set_configs, plan.add_partitions, plan.unmarked) == ({}, {}, frozenset())
    (new,) = plan.new_lineages
    ids = text_of(FIRST), text_of(SECOND)
    assert new == NewLineage("orders", "orders", LATER, *ids, partitions=2, is_begun=False)
    assert LATER in plan.drift["orders"]


def test_without_the_policy_it_stays_with_its_copy_and_stops_there() -> None:
    source, target = {"orders": with_id(SECOND)}, {"orders": copy_of(FIRST)}
    for policy in ("fail", "skip"):
        plan = selection(gap_policy=policy).plan(source, target)
        assert (plan.mirrored, plan.create, plan.new_lineages) == ({"orders": "orders"}, (), ())


@pytest.mark.parametrize("policy", ["fail", "skip", "new-lineage"])
def test_a_lineage_that_was_begun_is_continued_with_every_policy(policy: str) -> None:
    """The topics decide, not a file of the process: a restart with another policy copies nothing twice."""
    target = {"orders": copy_of(FIRST), LATER: copy_of(SECOND)}
    plan = selection(gap_policy=policy).plan({"orders": with_id(SECOND)}, target)
    assert (plan.mirrored, plan.create) == ({"orders": LATER}, ())
    assert [each.is_begun for each in plan.new_lineages] == [True]
    del target["orders"]
    plan = selection(gap_policy=policy).plan({"orders": with_id(SECOND)}, target)
    assert (plan.mirrored, plan.new_lineages, plan.drift) == ({"orders": LATER}, (), {})


def test_the_topic_under_its_own_name_wins_when_it_is_a_copy_of_the_later_topic() -> None:
    """kmirror truncate has copied it there."""
    target = {"orders": copy_of(SECOND), LATER: copy_of(SECOND)}
    plan = selection(**LINEAGES).plan({"orders": with_id(SECOND)}, target)
    assert (plan.mirrored, plan.new_lineages) == ({"orders": "orders"}, ())


@pytest.mark.parametrize(
    "there",
    [
        None,
        copy_of(SECOND),
        with_id(None),
        copy_of(FIRST, **{MARK: ""}),
        copy_of(FIRST, **{MARK: "id-of-north"}),
    ],
)
def test_only_a_mirror_of_an_earlier_topic_of_this_source_begins_a_lineage(
    there: Topic | None,
) -> None:
    target = {} if there is None else {"orders": there}
    plan = selection(**LINEAGES).plan({"orders": with_id(SECOND)}, target)
    assert plan.new_lineages == ()
    assert LATER not in [each.name for each in plan.create]


def test_a_lineage_that_waits_for_the_ledger_is_a_conflict_and_nothing_is_created() -> None:
    source, target = {"orders": with_id(SECOND)}, {"orders": copy_of(FIRST)}
    plan = selection(**LINEAGES).plan(source, target).without({"orders": "waits"})
    assert (plan.mirrored, plan.create, plan.conflicts) == ({}, (), {"orders": "waits"})


def test_the_source_topic_of_a_lineage_is_found_by_its_name() -> None:
    prefixed = selection(replication_policy="DefaultReplicationPolicy")
    assert selection().source_name(LATER) == "orders"
    assert prefixed.source_name(lineage_topic("east.orders", text_of(SECOND))) == "orders"


class Suffix:
    """A policy as in docs/mirroring.md."""

    def __init__(self, *, separator: str) -> None:
        self.between = f"{separator}from{separator}"

    def format_remote_topic(self, source: str, topic: str) -> str:
        return f"{topic}{self.between}{source}"

    def topic_source(self, topic: str) -> str | None:
        return topic.rpartition(self.between)[2] if self.between in topic else None

    def upstream_topic(self, topic: str) -> str | None:
        return topic.rpartition(self.between)[0] or None


class OneWay(Suffix):
    def topic_source(self, topic: str) -> str | None:
        return None

    def upstream_topic(self, topic: str) -> str | None:
        return None


@pytest.mark.parametrize(
    ("policy", "copy", "name"),
    [
        ("IdentityReplicationPolicy", "orders", "orders"),
        ("IdentityReplicationPolicy", LATER, LATER),
        ("DefaultReplicationPolicy", "east.orders", "orders"),
        ("DefaultReplicationPolicy", "north.orders", None),
        ("DefaultReplicationPolicy", "orders", None),
        (f"{__name__}:Suffix", "orders.from.east", "orders"),
        (f"{__name__}:Suffix", "orders.from.north", None),
        (f"{__name__}:Suffix", "orders", None),
        (f"{__name__}:OneWay", "orders.from.east", "orders.from.east"),
    ],
)
def test_a_promotion_without_the_source_finds_copies_of_any_policy(
    policy: str, copy: str, name: str | None
) -> None:
    assert selection(replication_policy=policy).named_after(copy) == name
