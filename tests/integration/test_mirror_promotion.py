"""`kmirror promote` between two real clusters: what was acknowledged is kept, and the roles are exchanged."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from kclient import Consumer
from kclient.types import OffsetAndMetadata, TopicPartition
from mirrormaker.topics import PROMOTION
from tests.kit.brokers import Cluster
from tests.kit.fork_server import popen
from tests.kit.mirrored_clusters import (
    MARK,
    TOPIC_ID,
    MakeMirror,
    admin,
    alter,
    delete_records,
    deliver,
    make_topic,
    mark_of,
    record_of,
    replace_in_log,
    set_mark,
    setting_of,
    values,
)
from tests.kit.mirrors import Mirror, stored, until_same
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BOTH = {"west->east.enabled": "true", "sync.topic.configs.interval.seconds": "1"}


class Writer:
    """A producer that writes numbers until it is refused; `acknowledged` are those that were delivered."""

    def __init__(self, cluster: Cluster, topic: str, partition: int) -> None:
        self.acknowledged: list[bytes] = []
        self.refusal: str = ""
        self._topic, self._partition = topic, partition
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "log_level": 0, "linger.ms": 1}
        )
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        number = 0
        while not self.refusal:
            value = b"%d-%d" % (self._partition, number)
            self._producer.produce(
                self._topic, value, partition=self._partition, on_delivery=self._delivered
            )
            number += 1
            self._producer.poll(0.001)

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.refusal = self.refusal or error.name()
        else:
            self.acknowledged.append(message.value())

    def join(self) -> None:
        self._thread.join(30)
        self._producer.flush(20)


def cluster_id(cluster: Cluster) -> str:
    return str(admin(cluster).list_topics(timeout=10).cluster_id)


def test_producers_move_to_the_other_cluster_and_no_acknowledged_record_is_lost(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders", 3)
    both = mirror(BOTH)
    both.start()
    writers = [Writer(east, "orders", partition) for partition in range(3)]
    eventually("records at the target", lambda: len(stored(west, "orders", 2)) > 3)

    code, output = both.ask("promote", "--flow", "east->west", timeout=60)
    assert code == 0, output
    for writer in writers:
        writer.join()
        assert writer.refusal == "POLICY_VIOLATION"

    for partition, writer in enumerate(writers):
        assert set(writer.acknowledged) <= set(values(west, "orders", partition))
    record = record_of(output)
    assert record["mode"] == "exchanged"
    assert record["rpo_records"] == 0
    ends = {each["partition"]: each["end"] for each in record["partitions"]}
    assert ends == {
        partition: stored(east, "orders", partition)[-1].next_offset for partition in range(3)
    }
    assert setting_of(east, "orders", PROMOTION) == '{"fence":"opened"}'

    assert deliver(west, "orders", b"after", partition=1) is None
    until_same(west, east, "orders", 3)
    refused = deliver(east, "orders", b"no")
    assert refused is not None
    assert refused.name() == "POLICY_VIOLATION"
    again, text = both.ask("promote", "--flow", "east->west")
    assert (again, "promoted already" in text) == (0, True), text
    assert record_of(text) | {"ended_ms": record["ended_ms"]} == record


def test_the_way_back_is_the_same_command(east: Cluster, west: Cluster, mirror: MakeMirror) -> None:
    make_topic(east, "orders")
    assert deliver(east, "orders", b"1") is None
    both = mirror(BOTH)
    both.start()
    until_same(east, west, "orders")
    assert both.ask("promote", "--flow", "east->west")[0] == 0
    assert deliver(west, "orders", b"2") is None
    until_same(west, east, "orders")
    code, output = both.ask("promote", "--flow", "west->east")
    assert code == 0, output
    assert deliver(east, "orders", b"3") is None
    until_same(east, west, "orders")
    assert values(west, "orders", 0) == [b"1", b"2", b"3"]


def test_a_mirror_of_the_other_direction_stays_one_when_the_others_are_promoted(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    """Both directions have the same `topics`. The promotion was refused, with the advice to close `bills` at west."""
    for cluster, topic in ((east, "orders"), (west, "bills")):
        make_topic(cluster, topic)
        assert deliver(cluster, topic, b"1") is None
    both = mirror(BOTH)
    both.start()
    until_same(east, west, "orders")
    until_same(west, east, "bills")
    code, output = both.ask("promote", "--flow", "east->west")
    assert code == 0, output
    assert [each["topic"] for each in record_of(output)["partitions"]] == ["orders"]
    assert "  bills: mirror of the other direction" in output
    for topic in ("orders", "bills"):
        assert deliver(west, topic, b"2") is None
        until_same(west, east, topic)


def test_what_the_mirror_had_not_copied_yet_is_copied_first(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    for topic in ("orders", "heartbeats"):
        make_topic(east, topic)
        assert deliver(east, topic, b"1") is None
    one = mirror({"emit.heartbeats.enabled": "true"})
    assert one.run_once() == 0
    assert deliver(east, "orders", b"2", b"3") is None
    code, output = one.ask("promote")
    assert code == 0, output
    assert values(west, "orders", 0) == [b"1", b"2", b"3"]


def test_consumers_continue_at_the_other_cluster(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders")
    assert deliver(east, "orders", b"1", b"2", b"3") is None
    tp = TopicPartition("orders", 0)
    with Consumer(
        bootstrap_servers=east.bootstrap, group_id="billing", enable_auto_commit=False
    ) as consumer:
        consumer.assign([tp])
        consumer.commit({tp: OffsetAndMetadata(2, "half way")})
    one = mirror(
        {"west.zookeeper.connect": west.zookeeper_connect}
    )  # promote is no worker: it copies all
    assert one.run_once() == 0
    unwritable = str(one.path / "record.json")  # below a file
    code, output = one.ask("promote", "--record", unwritable)
    assert code == 0, output
    assert "record.json cannot be written" in output
    assert record_of(output)["groups"] == 1
    with Consumer(bootstrap_servers=west.bootstrap, group_id="billing") as consumer:
        found = consumer.committed([tp])[tp]
    assert found == OffsetAndMetadata(2, "half way")


def test_a_refused_promotion_leaves_the_source_writable(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders")
    assert deliver(east, "orders", b"1") is None
    one = mirror()
    assert one.run_once() == 0
    mark = mark_of(west, "orders")
    assert mark
    set_mark(west, "orders", "")
    eventually("a writable topic", lambda: deliver(west, "orders", b"ours") is None)
    set_mark(west, "orders", mark)
    assert deliver(east, "orders", b"2") is None

    code, output = one.ask("promote")
    assert code == 5, output
    assert "orders-0" in output
    assert "accepts producers again; nothing was promoted" in output
    eventually("a writable source", lambda: deliver(east, "orders", b"3") is None)
    assert mark_of(west, "orders") == mark
    assert not mark_of(east, "orders")


def test_a_promotion_that_was_killed_behind_the_fence_is_continued_or_ended(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    for topic in ("orders", "payments"):
        make_topic(east, topic)
        assert deliver(east, topic, b"1") is None
    one = mirror()
    assert one.run_once() == 0
    for topic in ("orders", "payments"):
        set_mark(east, topic, cluster_id(west))
    eventually("a fence", lambda: deliver(east, "orders", b"no") is not None)

    code, output = one.ask("promote", "--topics", "payments", "--abort")
    assert code == 0, output
    eventually("a writable source", lambda: deliver(east, "payments", b"2") is None)
    code, output = one.ask("promote", "--topics", "orders")
    assert code == 0, output
    assert "orders: fenced" in output
    assert deliver(west, "orders", b"2") is None
    assert deliver(east, "orders", b"no") is not None

    # As after a kill between two topics that are opened.
    began = record_of(output)["began_ms"]
    code, output = one.ask("promote")
    assert code == 0, output
    record = record_of(output)
    parts = {each["topic"]: (each["end"], each["source_end"]) for each in record["partitions"]}
    assert parts == {"orders": (1, 1), "payments": (2, 2)}
    assert (record["rpo_records"], record["began_ms"]) == (0, began)


def test_a_fence_can_be_removed_although_the_target_is_lost(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders")
    one = mirror()
    assert one.run_once() == 0
    west_id = cluster_id(west)
    alter(east, "orders", TOPIC_ID, "the id of the topic at west")
    set_mark(east, "orders", west_id)
    eventually("a fence", lambda: deliver(east, "orders", b"no") is not None)
    west.kill(1)
    code, output = one.ask("promote", "--abort", timeout=120)
    assert (code, f"orders ({west_id})" in output) == (5, True), output
    assert deliver(east, "orders", b"no") is not None
    code, output = one.ask("promote", "--abort", "--target-id", west_id)
    assert code == 0, output
    eventually("a writable source", lambda: deliver(east, "orders", b"1") is None)


def test_a_promotion_in_the_midst_of_a_failback_is_refused_and_leaves_its_state(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders")
    assert deliver(east, "orders", b"1") is None
    both = mirror(BOTH)
    assert both.run_once() == 0
    assert deliver(east, "orders", b"tail") is None
    west_id = cluster_id(west)
    east.kill(1)
    assert both.ask("promote", "--flow", "east->west", "--source-lost", timeout=120)[0] == 0
    east.start(1)
    set_mark(east, "orders", west_id)  # the first step of a failback

    marks = [setting_of(west, "orders", name) for name in (MARK, TOPIC_ID)]
    code, output = both.ask("promote", "--flow", "west->east")
    assert (code, "kmirror failback" in output) == (5, True), output
    assert [setting_of(west, "orders", name) for name in (MARK, TOPIC_ID)] == marks
    code, output = both.ask("failback", "--flow", "west->east")
    assert (code, "diverges at 1" in output) == (0, True), output


def test_a_lost_source_is_not_asked_and_its_return_changes_nothing(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders")
    assert deliver(east, "orders", b"1") is None
    one = mirror()
    assert one.run_once() == 0
    east.kill(1)
    code, output = one.ask("promote", "--source-lost")
    assert code == 0, output
    record = record_of(output)
    assert record["rpo_records"] is None
    assert record["partitions"][0]["end"] == 1
    assert "lacks: unknown" in output
    assert deliver(west, "orders", b"2") is None
    code, output = one.ask("promote", "--source-lost")
    assert code == 0, output
    assert record_of(output) | {"ended_ms": record["ended_ms"]} == record

    east.start(1)
    assert deliver(east, "orders", b"not copied") is None
    assert one.run_once() != 0
    assert values(west, "orders", 0) == [b"1", b"2"]
    code, output = one.ask("promote")
    way = "promoted without the source. kmirror failback of the other direction then exports"
    assert (code, way in output) == (5, True), output


def behind_the_cut(
    one: Mirror, options: tuple[str, ...], meanwhile: Callable[[], None]
) -> tuple[int, str, str]:
    """Run `promote`, and *meanwhile* while it is paused behind the cut; return its code, record and other output."""
    process = popen(
        *("mirrormaker", "promote", str(one.path), *options),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stderr is not None
    with process:
        for line in process.stderr:
            if b"has everything up to the cut" in line:
                break
        process.send_signal(signal.SIGSTOP)
        meanwhile()
        process.send_signal(signal.SIGCONT)
        output, written = process.communicate(timeout=60)
    return process.returncode, output.decode(), written.decode()


def test_a_record_that_is_written_behind_the_cut_is_counted(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    """A producer was not stopped."""
    make_topic(east, "orders")
    assert deliver(east, "orders", b"1", b"2") is None
    one = mirror()
    assert one.run_once() == 0
    options = ("--producers-stopped",)

    def write() -> None:
        assert deliver(east, "orders", b"late") is None

    code, output, written = behind_the_cut(one, options, write)
    assert code == 4, written
    assert "1 offsets at east are behind the cut" in written
    record = record_of(output)
    assert record["rpo_records"] == 1
    assert [each["rpo_records"] for each in record["partitions"]] == [1]
    assert values(west, "orders", 0) == [b"1", b"2"]
    assert deliver(west, "orders", b"3") is None
    code, text = one.ask("promote", *options)
    assert (code, record_of(text)["rpo_records"]) == (4, 1), text


def test_a_record_that_is_written_while_the_fence_is_lost_is_a_refusal(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders")
    assert deliver(east, "orders", b"1", b"2") is None
    one = mirror()
    assert one.run_once() == 0

    def lose_the_fence() -> None:
        mark = mark_of(east, "orders")
        assert mark
        set_mark(east, "orders", "")
        eventually("a lost fence", lambda: deliver(east, "orders", b"late") is None)
        set_mark(east, "orders", mark)

    code, _, written = behind_the_cut(one, (), lose_the_fence)
    assert code == 5, written
    assert "orders-0 ends at 3, not at its cut 2" in written
    eventually("a writable source", lambda: deliver(east, "orders", b"4") is None)
    assert mark_of(west, "orders")
    code, text = one.ask("promote")
    assert code == 0, text
    assert values(west, "orders", 0) == [b"1", b"2", b"late", b"4"]


def keyed(cluster: Cluster, value: bytes) -> KafkaError | None:
    """Produce *value* to orders under itself as key; return the error of the delivery."""
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    producer.produce("orders", value, value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(20) == 0
    return errors[0]


@pytest.mark.parametrize("way", ["failback", "mark"])
def test_a_source_that_lost_its_fence_after_the_promotion_becomes_the_mirror_again(
    east: Cluster, west: Cluster, mirror: MakeMirror, tmp_path: Path, way: str
) -> None:
    """As docs/mirroring.md has it; the mark is for compacted topics without a record from then."""
    make_topic(east, "orders", cleanup_policy="compact" if way == "mark" else "delete")
    assert keyed(east, b"1") is None
    both = mirror(BOTH)
    assert both.run_once() == 0
    promote = ("promote", "--flow", "east->west")
    code, output = both.ask(*promote)
    assert code == 0, output
    set_mark(east, "orders", "")
    if way == "failback":
        eventually("a lost fence", lambda: deliver(east, "orders", b"late") is None)
    code, output = both.ask(*promote)
    assert (code, "the source has lost its mark since" in output) == (5, True), output
    if way == "failback":
        flow, export = ("--flow", "west->east"), str(tmp_path / "export")
        code, output = both.ask("failback", *flow, "--execute", "--export", export, "--no-audit")
        assert code == 0, output
        assert record_of(output)["rpo_records"] == 1
    else:
        set_mark(east, "orders", cluster_id(west))
        code, output = both.ask(*promote)
        assert (code, record_of(output)["rpo_records"]) == (0, 0), output
    both.start()
    assert keyed(west, b"2") is None
    until_same(west, east, "orders")
    assert values(east, "orders", 0) == [b"1", b"2"]


def test_a_dry_run_changes_nothing(east: Cluster, west: Cluster, mirror: MakeMirror) -> None:
    make_topic(east, "orders")
    one = mirror()
    assert one.run_once() == 0
    code, output = one.ask("promote", "--dry-run")
    assert (code, "would promote 1 topics" in output) == (0, True), output
    assert deliver(east, "orders", b"1") is None


def test_producers_that_were_stopped_by_hand_need_no_fence(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders")
    assert deliver(east, "orders", b"1", b"2") is None
    one = mirror()
    assert one.run_once() == 0
    code, output = one.ask("promote", "--producers-stopped")
    assert code == 0, output
    assert record_of(output)["mode"] == "producers stopped"
    assert deliver(west, "orders", b"3") is None
    assert not mark_of(east, "orders")


@pytest.mark.parametrize("were_stopped", [True, False])
def test_the_record_of_stopped_producers_is_right_after_the_source_became_the_mirror(
    east: Cluster, west: Cluster, mirror: MakeMirror, tmp_path: Path, were_stopped: bool
) -> None:
    make_topic(east, "orders")
    assert deliver(east, "orders", b"1") is None
    both = mirror(BOTH)
    assert both.run_once() == 0
    promote = ("promote", "--flow", "east->west", "--producers-stopped")
    code, output = both.ask(*promote)
    assert (code, record_of(output)["rpo_records"]) == (0, 0), output
    if not were_stopped:
        assert deliver(east, "orders", b"late") is None
    export = ("--export", str(tmp_path / "export"), "--no-audit")
    code, output = both.ask("failback", "--flow", "west->east", "--execute", *export)
    assert code == 0, output
    both.start()
    assert deliver(west, "orders", b"2", b"3") is None
    until_same(west, east, "orders")
    code, output = both.ask(*promote)
    assert (code, record_of(output)["rpo_records"]) == ((0, 0) if were_stopped else (4, None)), (
        output
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_the_source_writable_and_ends_kaudit(
    east: Cluster, west: Cluster, mirror: MakeMirror, tmp_path: Path, number: signal.Signals
) -> None:
    """Before, the command ended without a word, east stayed read-only, and SIGTERM left kaudit running."""
    make_topic(east, "orders")
    assert deliver(east, "orders", b"1") is None
    one = mirror()
    assert one.run_once() == 0
    out = str(tmp_path / "audit")
    code, output = one.signalled_after("kaudit compares", number, "promote", "--audit", out)
    assert code == 128 + number, output
    assert "east accepts producers again; nothing was promoted" in output
    eventually("a writable source", lambda: deliver(east, "orders", b"2") is None)
    assert mark_of(west, "orders")
    eventually("the end of kaudit", lambda: not processes_with(out))


def processes_with(word: str) -> list[str]:
    """Return the command lines of all processes that have *word*."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = path.read_bytes().decode(errors="replace").split("\0")
            if word in line:
                found.append(" ".join(line))
    return found


def test_kaudit_decides_before_the_target_is_opened(
    east: Cluster, west: Cluster, mirror: MakeMirror, tmp_path: Path
) -> None:
    make_topic(east, "orders")
    make_topic(east, "empty")
    for value in (b"first", b"second", b"third"):  # a batch each
        assert deliver(east, "orders", value) is None
    one = mirror()
    assert one.run_once() == 0
    replace_in_log(west, "orders", b"first", b"FIRST")

    code, output = one.ask("promote", "--audit", str(tmp_path / "audit"), timeout=180)
    assert code == 5, output
    assert "kaudit ended with exit code" in output
    eventually("a writable source", lambda: deliver(east, "orders", b"fourth") is None)

    replace_in_log(west, "orders", b"FIRST", b"first")
    delete_records(east, "orders", 1)  # as retention: the logs begin at different offsets
    code, output = one.ask("promote", "--audit", str(tmp_path / "audit"), timeout=180)
    assert code == 0, output
    report = json.loads((tmp_path / "audit" / "report.json").read_text())
    assert record_of(output)["audit_run_id"] == report["meta"]["run_id"]
    assert (report["verdict"], record_of(output)["audit_aged_out"]) == ("INCOMPLETE", 1)
    assert "kaudit did not compare 1 offsets" in output
    assert deliver(west, "orders", b"fifth") is None
    # Nothing of it could be compared, and nothing of it is missing.
    (empty,) = (topic for topic in report["topics"] if topic["topic"] == "empty")
    assert (empty["in_scope"], empty["coverage"], empty["unequal_ends"]) == (0, None, 0)
    assert deliver(west, "empty", b"first") is None
