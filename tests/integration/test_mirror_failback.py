"""`kmirror failback` between two real clusters: a lost source returns, and nothing of it is removed without a copy."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicCollection

from kclient import Consumer
from kclient.types import OffsetAndMetadata, TopicPartition
from mirrormaker.lineage import SOURCE_TOPIC_ID
from mirrormaker.tail_export import locked
from tests.kit.brokers import Cluster
from tests.kit.mirrored_clusters import (
    MakeMirror,
    admin,
    alter,
    delete_records,
    delete_topic,
    deliver,
    make_topic,
    mark_of,
    record_of,
    replace_in_log,
    set_mark,
    values,
)
from tests.kit.mirrors import Mirror, stored, until_same
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

BOTH = {"west->east.enabled": "true", "sync.topic.configs.interval.seconds": "1"}


@pytest.fixture
def export(tmp_path: Path) -> Path:
    return tmp_path / "export"


@pytest.fixture
def returned(east: Cluster, west: Cluster, mirror: MakeMirror) -> Mirror:
    """West was promoted without east, and has 2 records of its own; east has a tail of 3 at the same offsets."""
    for topic in ("orders", "payments"):
        make_topic(east, topic, 2)
    assert deliver(east, "orders", b"1", b"2", b"3") is None
    assert deliver(east, "orders", b"other", partition=1) is None
    assert deliver(east, "payments", b"paid") is None
    both = mirror(BOTH)
    assert both.run_once() == 0
    for value in (b"tail-0", b"tail-1", b"tail-2"):  # a batch each
        assert deliver(east, "orders", value) is None
    east.kill(1)
    code, output = both.ask("promote", "--flow", "east->west", "--source-lost", timeout=120)
    assert code == 0, output
    assert deliver(west, "orders", b"west-1", b"west-2") is None
    east.start(1)
    return both


def arguments(export: Path, *more: str) -> list[str]:
    return ["--flow", "west->east", "--execute", "--export", str(export), *more]


def billing(cluster: Cluster) -> Consumer:
    """Return a consumer of the group billing."""
    return Consumer(
        bootstrap_servers=cluster.bootstrap, group_id="billing", enable_auto_commit=False
    )


def write_over(segment: Path, data: bytes) -> None:
    """Replace the bytes of a file that a broker has open."""
    with segment.open("r+b") as file:
        file.write(data)


def exported(export: Path) -> list[dict[str, Any]]:
    """What `kmirror exported` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "mirrormaker", "exported", str(export)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def topic_id(cluster: Cluster, topic: str) -> str:
    client = admin(cluster)
    found = client.describe_topics(TopicCollection([topic]))[topic].result(10).topic_id
    return str(found).replace("+", "-").replace("/", "_")  # as Kafka prints it


@pytest.mark.timeout(900)
def test_a_returned_cluster_becomes_the_mirror_and_its_tail_is_in_files(
    east: Cluster, west: Cluster, returned: Mirror, export: Path
) -> None:
    ahead, behind = TopicPartition("orders", 0), TopicPartition("orders", 1)
    with Consumer(
        bootstrap_servers=east.bootstrap, group_id="billing", enable_auto_commit=False
    ) as consumer:
        consumer.assign([ahead, behind])
        consumer.commit({ahead: OffsetAndMetadata(5, "tail"), behind: OffsetAndMetadata(1, "end")})
    code, output = returned.ask("failback", "--flow", "west->east", timeout=120)
    assert code == 0, output
    assert "orders-0: diverges at 3 (search, " in output
    assert "dry run: nothing was changed" in output
    assert deliver(east, "orders", b"tail-3") is None

    returned.start()  # it may create the topic before the command does
    code, output = returned.ask("failback", *arguments(export), timeout=600)
    assert code == 0, output
    found = exported(export)
    assert [(each["offset"], each["value"]) for each in found] == [
        (3 + n, f"tail-{n}") for n in range(4)
    ]
    record = record_of(output)
    stamps = [each["timestamp"] for each in found]
    assert record["rpo_records"] == 4
    assert record["rpo_seconds"] == (max(stamps) - min(stamps)) / 1000
    report = json.loads((export / "audit" / "report.json").read_text())
    assert report["verdict"] == "CONSISTENT"
    assert record["audit_run_id"] == report["meta"]["run_id"]
    with Consumer(bootstrap_servers=east.bootstrap, group_id="billing") as consumer:
        committed = consumer.committed([ahead, behind])
    assert committed == {
        ahead: OffsetAndMetadata(3, "tail"),
        behind: OffsetAndMetadata(1, "end"),
    }

    refused = deliver(east, "orders", b"no")
    assert refused is not None
    assert refused.name() == "POLICY_VIOLATION"
    assert deliver(west, "orders", b"west-3") is None
    until_same(west, east, "orders", 2, timeout=60)
    code, output = returned.ask("promote", "--flow", "west->east", timeout=120)
    assert code == 0, output
    assert deliver(east, "orders", b"east again") is None
    assert values(east, "orders", 0) == [
        *(b"1", b"2", b"3", b"west-1", b"west-2", b"west-3", b"east again")
    ]


def test_a_failback_that_is_killed_after_each_step_is_continued_by_the_same_command(
    east: Cluster, west: Cluster, returned: Mirror, export: Path
) -> None:
    options = arguments(export, "--no-audit")
    tail = TopicPartition("orders", 0)
    with billing(east) as consumer:
        consumer.assign([tail])
        consumer.commit({tail: OffsetAndMetadata(5)})
    code, output = returned.ask("verify", timeout=120)
    assert code == 1, output
    assert "1 partitions differ in what was compared" in output
    lines = ("is read-only", "diverges at 3", "deleted at east", "created at east")
    killed = [returned.killed_after(line, "failback", *options) for line in lines]
    assert killed[:2] == [True, True]  # a late kill may come after the next step

    code, output = returned.ask("failback", *options, timeout=120)
    assert code == 0, output
    assert record_of(output)["rpo_records"] == 3
    assert [each["value"] for each in exported(export)] == ["tail-0", "tail-1", "tail-2"]
    assert stored(west, "orders") == stored(east, "orders")
    assert values(east, "orders", 0) == [b"1", b"2", b"3", b"west-1", b"west-2"]
    again, text = returned.ask("failback", *options, timeout=120)
    assert (again, record_of(text)["rpo_records"]) == (0, 3), text
    code, output = returned.ask("verify", timeout=120)
    assert code == 0, output
    assert "no difference was found in what was compared: 4 batches with 7 records" in output

    client = admin(east)
    client.delete_consumer_groups(["billing"])["billing"].result(10)
    with billing(east) as consumer:  # a group with members accepts no commit from outside
        consumer.subscribe(["payments"])
        eventually("a member", lambda: consumer.poll(timeout=0.1) or consumer.assignment())
        code, output = returned.ask("failback", *options, timeout=120)
    assert code == 4, output
    assert "NOT RESTORED: committed offsets of group billing" in output
    assert [each["group"] for each in record_of(output)["groups_not_restored"]] == ["billing"]
    code, output = returned.ask("failback", *options, timeout=120)
    assert code == 0, output
    with billing(east) as consumer:
        assert consumer.committed([tail]) == {tail: OffsetAndMetadata(3)}


def test_nothing_is_removed_that_is_neither_at_the_other_cluster_nor_exported(
    east: Cluster, west: Cluster, returned: Mirror, export: Path
) -> None:
    delete_records(west, "orders", 4)  # all that both have
    before = stored(east, "orders")
    with locked(export):
        code, output = returned.ask("failback", *arguments(export, "--no-audit"), timeout=120)
    assert code == 5, output
    assert f"another command exports to {export}. Nothing was changed at east" in output
    assert mark_of(east, "orders") is None
    ids = {topic: topic_id(east, topic) for topic in ("orders", "payments")}
    options = arguments(export, "--no-audit")
    code, output = returned.ask("failback", *options, timeout=120)
    assert code == 5, output
    assert "orders-0 from 0 to 4" in output
    assert "Read-only at east, with all their records: orders, payments" in output
    assert stored(east, "orders") == before

    code, output = returned.ask("failback", *options, "--export-head", timeout=120)
    assert code == 0, output
    record = record_of(output)
    assert record["rpo_records"] is None
    assert "the logs do not show where a partition diverged" in output
    found = [each["value"] for each in exported(export) if each["partition"] == 0]
    assert found == ["1", "2", "3", "tail-0", "tail-1", "tail-2"]
    # payments has no tail: its topic stays.
    assert {each["topic"]: each["created_again"] for each in record["topics"]} == {
        "orders": True,
        "payments": False,
    }
    assert topic_id(east, "payments") == ids["payments"]
    assert topic_id(east, "orders") != ids["orders"]
    assert deliver(west, "payments", b"more") is None
    assert returned.ask("failback", *options, timeout=120)[0] == 0
    assert values(east, "payments", 0) == [b"paid", b"more"]
    # Another directory knows nothing of the comparison; the topic states it.
    again = arguments(export.with_name("again"), "--no-audit")
    code, output = returned.ask("failback", *again, timeout=120)
    assert code == 0, output
    assert "payments: mirror" in output
    assert record_of(output)["rpo_records"] is None


def test_a_damaged_base_offset_of_the_returned_cluster_is_refused_with_what_mends_it(
    east: Cluster, west: Cluster, returned: Mirror, export: Path
) -> None:
    """The refusal named no cluster, and no way on but to run the command again."""
    (segment,) = (east[1].data / "orders-0").glob("*.log")
    whole = segment.read_bytes()
    sound, damaged = ((at << 24).to_bytes(11, "big") for at in (3, 4))  # and the length begins
    assert whole.count(sound) == 1
    write_over(segment, whole.replace(sound, damaged))
    first = topic_id(east, "orders")
    options = arguments(export, "--no-audit")
    code, output = returned.ask("failback", *options, timeout=120)
    assert code == 5, output
    assert "refused: east: the base offset 4 of a batch of orders-0 contradicts" in output
    assert "Make a broker of east with an undamaged replica the leader" in output
    assert "Read-only at east, with all their records: orders, payments" in output
    assert topic_id(east, "orders") == first

    write_over(segment, whole)  # as such a broker has it
    code, output = returned.ask("failback", *options, timeout=120)
    assert code == 0, output
    assert record_of(output)["rpo_records"] == 3


def test_a_damaged_batch_of_the_promoted_cluster_keeps_the_log_of_the_returned_one(
    east: Cluster, west: Cluster, returned: Mirror, export: Path
) -> None:
    """Before, east's topic was deleted, and the copy stopped at the batch: everything from there on was gone."""
    replace_in_log(west, "orders", b"west-1", b"WEST-1")
    before, first = stored(east, "orders"), topic_id(east, "orders")
    options = arguments(export, "--no-audit")
    code, output = returned.ask("failback", "--flow", "west->east", timeout=120)
    assert code == 0, output
    assert "west's batch at 3 is damaged: --execute refuses the topic" in output
    code, output = returned.ask("failback", *options, timeout=120)
    assert code == 5, output
    assert "orders: the batch of west at offset 3 of partition 0 is damaged" in output
    assert (stored(east, "orders"), topic_id(east, "orders")) == (before, first)

    # A damaged batch that east has deleted would stop the copy, too.
    replace_in_log(west, "orders", b"WEST-1", b"west-1")
    replace_in_log(west, "orders", b"\x021", b"\x02!")
    delete_records(east, "orders", 3)
    code, output = returned.ask("failback", *options, timeout=120)
    assert code == 5, output
    assert "orders: the batch of west at offset 0 of partition 0 is damaged" in output
    assert topic_id(east, "orders") == first

    replace_in_log(west, "orders", b"\x02!", b"\x021")
    code, output = returned.ask("failback", *options, timeout=120)
    assert code == 0, output
    assert record_of(output)["rpo_records"] == 3
    assert stored(west, "orders") == stored(east, "orders")


def test_offsets_of_the_last_look_are_restored_and_not_those_of_the_first_run(
    east: Cluster, west: Cluster, returned: Mirror, export: Path
) -> None:
    """Before, what was committed after the export, or left out of it by --no-groups, was gone with the topic."""
    tail, end = TopicPartition("orders", 0), TopicPartition("orders", 1)
    with billing(east) as consumer:
        consumer.assign([tail, end])
        consumer.commit({tail: OffsetAndMetadata(1)})
        options = arguments(export, "--no-audit")
        assert returned.killed_after("orders-0: diverges at 3", "failback", *options, "--no-groups")
        consumer.commit({tail: OffsetAndMetadata(5), end: OffsetAndMetadata(1)})
    code, output = returned.ask("failback", *options, timeout=120)
    assert code == 0, output
    with billing(east) as consumer:
        assert consumer.committed([tail, end]) == {
            tail: OffsetAndMetadata(3),
            end: OffsetAndMetadata(1),
        }


def test_a_cluster_that_is_lost_during_a_promotion_is_compared_when_it_returns(
    east: Cluster, west: Cluster, returned: Mirror, export: Path
) -> None:
    """Before, the fence of the first promotion made the topic a mirror, and its tail stayed in the way for ever."""
    set_mark(east, "orders", str(admin(west).list_topics(timeout=10).cluster_id))
    alter(east, "orders", SOURCE_TOPIC_ID, topic_id(west, "orders"))  # both as a promotion begins
    code, output = returned.ask("failback", *arguments(export, "--no-audit"), timeout=120)
    assert code == 0, output
    assert "orders: returned" in output
    assert record_of(output)["rpo_records"] == 3
    assert [each["value"] for each in exported(export)] == ["tail-0", "tail-1", "tail-2"]
    assert stored(west, "orders") == stored(east, "orders")


def test_no_topic_is_deleted_if_another_one_is_refused(
    east: Cluster, west: Cluster, returned: Mirror, export: Path
) -> None:
    """Before, orders was deleted, payments was refused, and no directory continued both."""
    assert deliver(east, "payments", b"tail") is None
    options = arguments(export, "--no-audit")
    assert returned.killed_after("payments-0: diverges at 1", "failback", *options)
    delete_records(west, "payments", 1)
    first = topic_id(east, "orders")
    code, output = returned.ask("failback", *options, timeout=120)
    assert code == 5, output
    assert "payments: partition 0: the source has deleted its records below 1" in output
    assert "Read-only at east, with all their records: orders, payments. Mend the cause" in output
    assert topic_id(east, "orders") == first

    again = arguments(export.with_name("again"), "--no-audit", "--export-head")
    code, output = returned.ask("failback", *again, timeout=120)
    assert code == 0, output
    assert stored(west, "orders") == stored(east, "orders")


def test_a_refusal_after_a_deletion_states_what_is_deleted_and_how_to_go_on(
    east: Cluster, west: Cluster, returned: Mirror, export: Path
) -> None:
    """Before, `kmirror failback` named no topic then, and the documentation stated that nothing was changed."""
    alone = arguments(export, "--no-audit", "--topics", "orders")
    assert returned.killed_after("orders: deleted at east", "failback", *alone)
    eventually("no topic", lambda: "orders" not in admin(east).list_topics(timeout=10).topics)
    delete_topic(east, "payments")
    code, output = returned.ask("failback", *arguments(export, "--no-audit"), timeout=120)
    assert code == 5, output
    assert "payments: the target has no such topic" in output
    assert "Deleted, or being deleted, at east, and exported: orders. Mend the cause" in output
    assert "run it with --topics 'orders' first" in output

    code, output = returned.ask("failback", *alone, timeout=120)
    assert code == 0, output
    assert stored(west, "orders") == stored(east, "orders")
    code, output = returned.ask("failback", *arguments(export, "--no-audit"), timeout=120)
    assert code == 5, output
    assert "Read-only mirrors at east, perhaps not copied to the end: orders. Mend" in output


def test_a_signal_after_a_deletion_names_what_is_deleted_and_how_to_go_on(
    east: Cluster, west: Cluster, returned: Mirror, export: Path
) -> None:
    """Before, the command ended without a word."""
    alone = arguments(export, "--no-audit", "--topics", "orders")
    code, output = returned.signalled_after(
        "orders: deleted at east", signal.SIGTERM, "failback", *alone
    )
    assert code == 143, output
    # The signal may come after the next step.
    states = ("Deleted, or being deleted, at east, and exported: ", "Read-only mirrors at east")
    assert any(f"interrupted. {each}" in output for each in states), output
    assert "Run the command again with this directory: only it has the records" in output
    code, output = returned.ask("failback", *alone, timeout=120)
    assert code == 0, output
    assert stored(west, "orders") == stored(east, "orders")
    assert [each["value"] for each in exported(export)] == ["tail-0", "tail-1", "tail-2"]


def test_a_damaged_batch_of_the_source_keeps_the_good_copy(
    east: Cluster, west: Cluster, mirror: MakeMirror, export: Path, tmp_path: Path
) -> None:
    make_topic(east, "orders")
    for value in (b"first", b"second", b"third"):  # a batch each
        assert deliver(east, "orders", value) is None
    one = mirror()
    assert one.run_once() == 0
    replace_in_log(east, "orders", b"second", b"SECOND")
    before, first = stored(west, "orders"), topic_id(west, "orders")
    plan = tmp_path / "repair.json"
    plan.write_text(json.dumps(repair_plan(east, west, not_repairable=[])))
    options = ["--execute", "--export", str(export), "--no-audit"]
    for command, of in (("truncate", ["--topics", "orders"]), ("repair", ["--plan", str(plan)])):
        code, output = one.ask(command, *of, *options, timeout=120)
        assert code == 5, output
        assert "orders: the batch of east at offset 1 of partition 0 is damaged" in output
        assert (stored(west, "orders"), topic_id(west, "orders")) == (before, first)


def repair_plan(east: Cluster, west: Cluster, *, not_repairable: list[Any]) -> dict[str, Any]:
    """Return kaudit's repair.json for offset 1 of orders-0."""
    source, target = (admin(each).list_topics(timeout=10).cluster_id for each in (east, west))
    ranges = [{"from": 1, "until": 2, "records": {"undecodable": 1}}]
    orders = {"topic": "orders", "target_topic": "orders", "partition": 0}
    return {
        "schema_version": 1,
        "renumbered": False,
        "source": {"cluster_id": source},
        "target": {"cluster_id": target},
        "copy": [{**orders, "whole_windows": False, "ranges": ranges}],
        "not_repairable": not_repairable,
        "not_compared": {"aged_out": 0, "not_read": 0, "lagging": 0},
    }


def test_a_damaged_mirror_is_copied_again_by_the_plan_of_an_audit(
    east: Cluster, west: Cluster, mirror: MakeMirror, export: Path, tmp_path: Path
) -> None:
    make_topic(east, "orders")
    for value in (b"first", b"second", b"third"):  # a batch each
        assert deliver(east, "orders", value) is None
    one = mirror()
    assert one.run_once() == 0
    replace_in_log(west, "orders", b"second", b"SECOND")
    plan, orders = tmp_path / "repair.json", {"topic": "orders", "target_topic": "orders"}
    gap = {"log": "source", "class": "gap", "reason": "gone", "from": 7, "until": 9, "records": 2}
    document = repair_plan(east, west, not_repairable=[{**orders, "partition": 0, **gap}])
    plan.write_text(json.dumps(document))
    options = ["--plan", str(plan), "--no-audit"]
    before = stored(west, "orders")
    code, output = one.ask("repair", *options, timeout=120)
    assert code == 0, output
    assert "orders: 1 ranges differ" in output
    assert "CANNOT be repaired: orders-0 offsets 7-8 (gap, source): gone" in output
    assert stored(west, "orders") == before

    options += ["--execute", "--export", str(export)]
    code, output = one.ask("repair", *options, timeout=120)
    assert code == 4, output  # the gap is left
    assert "copied again: orders; 1 records that the source does not have" in output
    assert stored(west, "orders") == stored(east, "orders")
    code, output = one.ask("repair", *options, timeout=120)
    assert code == 4, output
    code, output = one.ask("repair", *options, "--topics", "order", timeout=120)
    assert code == 5, output
    assert "--topics selects none of the plan's topics: orders" in output
    extra = {**gap, "topic": "stray", "target_topic": "stray", "partition": 0, "log": "target"}
    plan.write_text(json.dumps({**document, "not_repairable": [extra]}))
    code, output = one.ask("repair", *options, timeout=120)
    assert code == 4, output
    assert "CANNOT be repaired: stray: east has no such topic" in output
    plan.write_text(json.dumps({**document, "not_repairable": []}))
    code, output = one.ask("repair", *options, timeout=120)
    assert code == 0, output
    assert "each was a prefix of the source" in output
    assert deliver(east, "orders", b"fourth") is None
    assert one.run_once() == 0
    assert values(west, "orders", 0) == [b"first", b"second", b"third", b"fourth"]
