"""The command line against a real broker, as a process: what it prints, and what it exits with."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import time
from contextlib import suppress
from itertools import count
from threading import Thread
from typing import Any

import pytest

from tests.kit.brokers import MakeCluster
from tests.kit.cli import COMMAND, Cli, Started
from tests.kit.fork_server import run
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

_names = count(1)
AVRO = {"type": "record", "name": "Flight", "fields": [{"name": "number", "type": "int"}]}


@pytest.fixture(scope="module")
def cli(module_clusters: MakeCluster) -> Cli:
    cluster = module_clusters(1, {"auto.create.topics.enable": "false"})
    return Cli(cluster)


def read_for(stream: Any, wanted: bytes, seconds: float = 10.0) -> bytes:
    """Read until *wanted* came."""
    deadline, found = time.monotonic() + seconds, b""
    while wanted not in found:
        left = deadline - time.monotonic()
        assert left > 0, found
        if select.select([stream], [], [], left)[0]:
            piece = os.read(stream.fileno(), 65536)
            assert piece, found
            found += piece
    return found


# --- topics


def test_a_topic_from_creation_to_deletion(cli):
    name = f"group-{next(_names)}"
    assert cli.out("topic", "create", name, "-p", "2", "-c", "retention.ms=60000") == (
        f"Created topic {name}.\n"
    )
    assert b"exists already" in cli.run("topic", "create", name, "--if-not-exists").stderr
    again = cli.run("topic", "create", name, "-q", code=1)
    assert f"kclient: TOPIC_ALREADY_EXISTS: topic {name} already".encode() in again.stderr
    assert cli.run("topic", "create", name, "-q", "--if-not-exists").stderr == b""
    (row,) = cli.json("topic", "alter-config", "nosuch", "--set", "segment.ms=9000", code=1)
    assert (row["name"], row["error"][:25]) == ("nosuch", "UNKNOWN_TOPIC_OR_PARTITIO")
    (row,) = [row for row in cli.json("topic", "list") if row["topic"] == name]
    assert row == {"topic": name, "partitions": 2, "replicas": 1, "internal": False}
    first, *partitions = cli.out("topic", "describe", name).splitlines()
    topic_id = cli.json("topic", "describe", name)[0]["topic_id"]
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", topic_id), "in the form of Kafka's tools"
    assert first.startswith(f"Topic: {name}\tTopicId: {topic_id}\t")
    assert first.endswith("\tPartitionCount: 2\tReplicationFactor: 1\tConfigs: retention.ms=60000")
    assert partitions[1] == f"\tTopic: {name}\tPartition: 1\tLeader: 1\tReplicas: 1\tIsr: 1"
    cli.run(
        "topic", "alter-config", name, "--set", "retention.ms=70000", "--set", "segment.ms=9000"
    )
    cli.run("topic", "alter-config", name, "--delete", "segment.ms")
    assert cli.json("topic", "describe", name)[0]["configs"] == {"retention.ms": "70000"}
    assert (
        cli.out("topic", "add-partitions", name, "-n", "4") == f"Topic {name} has 4 partitions.\n"
    )
    assert len(cli.json("topic", "describe", name)) == 4
    refused = cli.run("topic", "delete", name, code=2)
    assert b"repeat with --yes" in refused.stderr
    assert cli.out("topic", "delete", name, "-y") == f"Deleted topic {name}.\n"
    cli.run("topic", "delete", name, "-y", code=1)
    cli.run("topic", "delete", name, "-y", "--if-exists")


def test_a_dry_run_creates_nothing(cli):
    name = f"dry-{next(_names)}"
    assert cli.out("topic", "create", name, "-d") == f"Would create topic {name}.\n"
    cli.run("topic", "describe", name, code=1)


def test_offsets_are_listed_and_the_oldest_records_are_deleted(cli):
    name = cli.topic(2, *"abcdef")
    ends = cli.json("topic", "offsets", name)
    assert [(row["partition"], row["earliest"], row["latest"], row["offsets"]) for row in ends] == [
        (0, 0, 3, 3), (1, 0, 3, 3),
    ]  # fmt: skip
    (row,) = cli.json("topic", "offsets", f"{name}:1", "--time", "max-timestamp")
    assert row["offset"] in range(3)
    assert row["timestamp"] > 1_700_000_000_000
    assert [r["offset"] for r in cli.json("topic", "offsets", name, "--time", "-1h")] == [0, 0]
    assert [r["offset"] for r in cli.json("topic", "offsets", name, "--time", "2100-01-01")] == [
        None
    ] * 2
    assert b"UNKNOWN_TOPIC" in cli.run("topic", "offsets", "nosuch", code=1).stderr
    assert b"no partition 7" in cli.run("topic", "offsets", f"{name}:7", code=1).stderr

    assert b"repeat with --yes" in cli.run("topic", "trim-prefix", name, "-o", "2", code=2).stderr
    dry = cli.json("topic", "trim-prefix", name, "-o", "2", "--dry-run")
    assert [(row["new_start_offset"], row["deleted"]) for row in dry] == [(2, False)] * 2
    assert len(cli.out("consume", name, "-e", "-f", "%v")) == 6
    cli.run("topic", "trim-prefix", f"{name}:0", "-o", "2", "-y")
    assert [row["earliest"] for row in cli.json("topic", "offsets", name)] == [2, 0]
    rows = cli.json("topic", "trim-prefix", name, "-o", "@2100-01-01", "-y")
    assert [(row["log_start_offset"], row["new_start_offset"], row["offsets"]) for row in rows] == [
        (2, 3, 1), (0, 3, 3),
    ]  # fmt: skip
    (row,) = cli.json("topic", "trim-prefix", f"{name}:0", "-o", "9", "-y", code=1)
    assert row["error"].startswith("OFFSET_OUT_OF_RANGE")


def test_names_of_the_cluster_are_completed(cli):
    name, group = f"completed-{next(_names)}", f"group-{next(_names)}"
    cli.run("topic", "create", name)
    cli.run("consume", name, "-g", group, "-e")

    def completed(line: str) -> bytes:
        words = line.split(" ")
        asked = {"_KCLIENT_COMPLETE": "bash_complete", "COMP_WORDS": line}
        environment = {**cli.environment, **asked, "COMP_CWORD": str(len(words) - 1)}
        return run("kclient", environment=environment).stdout

    assert (
        completed(f"kclient topic describe {name[:-1]}")
        .splitlines()
        .count(f"plain,{name}".encode())
        == 1
    )
    assert f"plain,{group}\n".encode() in completed("kclient group lag ")


def test_records_are_analyzed(cli):
    name = f"analyzed-{next(_names)}"
    cli.run("topic", "create", name, "-p", "3")
    lines = "".join(f"k{n % 7}:{'x' * n}\n" for n in range(50)).encode()
    cli.run("produce", name, "-p", "0", "-K", ":", "-z", "gzip", stdin=lines)
    cli.run("produce", name, "-p", "1", stdin=b"one\ntwo\n")
    first, second, third, total = cli.json("topic", "analyze", name)
    assert (first["records"], first["distinct_keys"], first["null_keys"]) == (50, 7, 0)
    assert (list(first["codecs"]), first["value_size_max"], first["value_bytes"]) == (
        ["gzip"],
        49,
        1225,
    )
    assert (second["records"], second["null_keys"], list(second["codecs"])) == (2, 2, ["none"])
    assert (third["records"], total["records"], total["partition"]) == (0, 52, None)
    assert first["bytes"] < first["value_bytes"]
    (part, _total) = cli.json("topic", "analyze", f"{name}:0", "-o", "10:30")
    assert (part["records"], part["value_bytes"]) == (20, sum(range(10, 30)))
    text = cli.out("topic", "analyze", name, "-o", "-1")
    assert "Records:     2 in " in text
    assert b"is not an offset" in cli.run("topic", "analyze", name, "-o", "x", code=2).stderr


def test_rates_and_latencies_are_measured(cli):
    name = cli.topic(2)
    (row,) = cli.json("perf", "produce", name, "-n", "2000", "-s", "50", "--warmup", "10")
    assert (row["records"], row["bytes"], row["failed"]) == (2000, 100_000, 0)
    assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
    (row,) = cli.json("perf", "consume", name)
    assert (row["records"], row["bytes"]) == (2010, 100_500), "up to the log ends, without -n"
    assert row["rebalance_ms"] + row["fetch_ms"] == pytest.approx(row["seconds"] * 1000, abs=2)
    (row,) = cli.json("perf", "consume", name, "-n", "7")
    assert row["records"] == 7
    produce, end_to_end = cli.json("perf", "latency", name, "-n", "20")
    assert (produce["records"], end_to_end["records"]) == (20, 20)
    assert produce["avg_ms"] < end_to_end["avg_ms"]
    late = cli.run("perf", "consume", name, "-n", "9999", "--idle-timeout", "0.5", code=124)
    assert b"no record for 0.5 s after 2030 records" in late.stderr
    failed = cli.run("perf", "produce", name, "-n", "2", "-s", "2000000", code=1)
    assert b"MESSAGE_TOO_LARGE" in failed.stderr


def test_settings_of_brokers_are_changed_and_described(cli):
    def dynamic() -> list[tuple[Any, ...]]:
        rows = cli.json("cluster", "config", "describe")
        return [(row["broker"], row["name"], row["value"], row["source"]) for row in rows]

    cli.run("cluster", "config", "alter", "--set", "log.retention.ms=86400000", "--dry-run")
    assert dynamic() == []
    done = cli.out("cluster", "config", "alter", "--set", "log.retention.ms=86400000")
    assert done == "Changed all brokers: log.retention.ms.\n"
    cli.run("cluster", "config", "alter", "--broker", "1", "--set", "log.retention.ms=90000000")
    assert dynamic() == [
        (None, "log.retention.ms", "86400000", "DYNAMIC_DEFAULT_BROKER"),
        (1, "log.retention.ms", "90000000", "BROKER"),
    ]
    cli.run("cluster", "config", "alter", "--broker", "1", "--delete", "log.retention.ms")
    (used,) = cli.json("cluster", "config", "describe", "-n", "log.retention.ms")
    assert (used["value"], used["source"]) == ("86400000", "DYNAMIC_DEFAULT_BROKER")
    cli.run("cluster", "config", "alter", "--delete", "log.retention.ms")
    assert dynamic() == []
    refused = cli.run("cluster", "config", "alter", "--broker", "1", "--set", "broker.id=9", code=1)
    assert b"broker.id" in refused.stderr
    assert (
        b"no live broker 9"
        in cli.run("cluster", "config", "describe", "--broker", "9", code=1).stderr
    )
    assert len(cli.json("cluster", "config", "describe", "--all")) > 100


def test_the_lag_of_a_group_is_watched(cli):
    name, group = cli.topic(1, *"abcd"), f"group-{next(_names)}"
    cli.run("consume", name, "-g", group, "-o", "0:3")
    lines = cli.out(
        "group", "watch", group, "-n", "2", "-i", "0.1", "--format", "jsonl"
    ).splitlines()
    first, second = map(json.loads, lines)
    assert (first["group"], first["lag"], first["consumed_per_s"]) == (group, 1, None)
    assert (second["lag"], second["consumed_per_s"], second["produced_per_s"]) == (1, 0.0, 0.0)
    cli.run("group", "watch", group, "-n", "1", "--until-lag", "0", code=1)
    cli.run("group", "watch", group, "--until-lag", "1")
    missing = cli.run("group", "watch", "no-such-group", "-n", "2", "-i", "0.1").stderr
    assert missing.count(b"group 'no-such-group' does not exist") == 1


def test_rows_come_in_every_format(cli):
    name = cli.topic(1)
    assert cli.out("topic", "list").startswith("TOPIC  ")
    assert f"{name},1,1" in cli.out("topic", "list", "--format", "csv").splitlines()
    lines = cli.out("topic", "list", "--format", "jsonl").splitlines()
    assert name in [json.loads(line)["topic"] for line in lines]
    records = cli.out("consume", cli.topic(1, "a"), "-e", "--format", "csv").splitlines()
    assert [line.split(",")[0] for line in records] == ["topic", records[1].split(",")[0]]
    assert records[1].endswith(",,null,a,utf8,")
    (cluster,) = cli.json("info")
    assert [(b["id"], b["controller"]) for b in cluster["brokers"]] == [(1, True)]
    assert cli.out("info", "-B").splitlines()[2].startswith("1*  ")
    assert f"{name},1,0,0" in cli.out("info", "--format", "csv").splitlines()
    (broker,) = cli.out("info", "-B", "--format", "csv").splitlines()[1:]
    assert broker.startswith("1,true,127.0.0.1,")
    health = cli.out("cluster", "health", "--format", "csv")
    assert health.splitlines()[1].startswith("true,,1,1,")
    assert "{" not in health


# --- records


def test_records_survive_the_way_out_and_back_in_byte_for_byte(cli):
    there, back = cli.topic(1), cli.topic(1)
    lines = [
        {"key": None, "value": None, "headers": []},
        {"key": "", "value": "", "headers": [["a", "1", "utf8"], ["a", None, "null"]]},
        {"key": "/wA=", "key_encoding": "base64", "value": "AAEC/w==", "value_encoding": "base64"},
        {"key": "größe", "value": "two\nlines\r", "headers": [["b", "/w==", "base64"]]},
        {"value": "x", "timestamp": 1_600_000_000_000},
    ]
    given = "".join(json.dumps(line) + "\n" for line in lines)
    cli.run("produce", there, "--input", "json", stdin=given.encode())
    once = cli.run("consume", there, "-e", "-q").stdout
    cli.run("produce", back, "--input", "json", stdin=once)
    twice = cli.run("consume", back, "-e", "-q").stdout
    assert once.replace(there.encode(), b"") == twice.replace(back.encode(), b"")
    read = [json.loads(line) for line in once.splitlines()]
    assert [(r["key"], r["value"]) for r in read] == [
        (None, None), ("", ""), ("/wA=", "AAEC/w=="), ("größe", "two\nlines\r"), (None, "x"),
    ]  # fmt: skip
    assert read[1]["headers"] == [["a", "1", "utf8"], ["a", None, "null"]]
    assert read[3]["headers"] == [["b", "/w==", "base64"]]
    assert read[4]["timestamp"] == 1_600_000_000_000


def test_lines_keys_headers_and_nulls_are_produced(cli):
    name = cli.topic(1)
    words = ("-K", "\\t", "-H", "h=1", "-H", "nothing", "-Z", "-z", "zstd")
    done = cli.run("produce", name, *words, stdin=b"k1\tv1\nk2\t\nonly\r\n\xff\t\xfe")
    assert done.stderr == f"4 of 4 records delivered to {name}\n".encode()
    assert cli.run("consume", name, "-e", "-q", "-f", "%k=%v(%V) %h|").stdout == (
        b"k1=v1(2) h=1,nothing=NULL|k2=(-1) h=1,nothing=NULL|"
        b"=only(4) h=1,nothing=NULL|\xff=\xfe(1) h=1,nothing=NULL|"
    )


def test_files_are_produced_by_line_or_whole(cli, tmp_path):
    (tmp_path / "a").write_bytes(b"1\n2\n")
    (tmp_path / "b").write_bytes(b"3")
    name = cli.topic(1)
    cli.run("produce", name, str(tmp_path / "a"), str(tmp_path / "b"), "-k", "key")
    cli.run("produce", name, str(tmp_path / "a"), "--input", "raw")
    assert cli.out("consume", name, "-e", "-f", "[%k:%v]") == "[key:1][key:2][key:3][:1\n2\n]"


@pytest.mark.parametrize(
    ("kind", "option"),
    [("raw", "-f %k:%v"), ("raw", "-K :"), ("raw", "-Z"), ("json", "-f %k:%v"), ("json", "-k x")],
)
def test_an_option_for_lines_is_refused_with_other_input(cli, kind, option):
    refused = cli.run("produce", "any", "--input", kind, *option.split(), code=2)
    named = f"{option[:2]} does not apply to --input {kind}"
    assert named in refused.stderr.decode()


def test_a_broken_line_is_named(cli):
    name = cli.topic(1)
    given = b'{"value": "a"}\nno json\n'
    assert (
        b"record 2: not a record in JSON"
        in cli.run("produce", name, "--input", "json", stdin=given, code=1).stderr
    )


def test_a_record_goes_out_while_the_next_is_awaited(cli):
    name = cli.topic(1)
    with (
        cli.start("consume", name, "-o", "start", "-f", "%v\n", "-m", "5") as consumer,
        cli.start("produce", name, stdin=subprocess.PIPE) as producer,
    ):
        assert producer.stdin is not None
        producer.stdin.write(b"first\n")
        producer.stdin.flush()
        assert read_for(consumer.stdout, b"first\n") == b"first\n"
        producer.stdin.write(b"second")
        producer.stdin.close()
        assert read_for(consumer.stdout, b"second\n") == b"second\n"
        assert producer.wait(10) == 0
        consumer.send_signal(signal.SIGINT)
        assert consumer.wait(10) == 130


def test_a_record_that_no_broker_acknowledges_in_time_ends_the_input(broker_clusters):
    cli = Cli(broker_clusters(1))
    name = cli.topic(1)
    words = ("produce", name, "-o", "%o\n", "--delivery-timeout", "1.5")
    with cli.start(*words, stdin=subprocess.PIPE) as producer:
        producer.stdin.write(b"delivered\n")
        producer.stdin.flush()
        assert read_for(producer.stdout, b"0\n") == b"0\n"
        cli.cluster.pause(1)
        try:
            # The input stays open: the command ends because of the record, not because of the end of its input.
            producer.stdin.write(b"lost\n")
            producer.stdin.flush()
            assert producer.wait(15) == 5
        finally:
            cli.cluster.resume(1)
        errors = producer.stderr.read().decode()
    assert "--delivery-timeout SECONDS (now 1.5) waits longer" in errors
    assert "1 of 2 records delivered" in errors
    assert "Traceback" not in errors


def test_an_idle_producer_ends_with_ctrl_c(cli):
    name = cli.topic(1)
    with cli.start("produce", name, "-o", "%o\n", stdin=subprocess.PIPE) as producer:
        producer.stdin.write(b"a\n")
        producer.stdin.flush()
        assert read_for(producer.stdout, b"0\n") == b"0\n"
        producer.send_signal(signal.SIGINT)
        assert producer.wait(10) == 130
        errors = producer.stderr.read().decode()
    assert "1 of 1 records delivered" in errors
    assert "Traceback" not in errors


def test_avro_is_shown_as_json(cli, tmp_path):
    from kclient.avro import AvroSerializer

    schema = tmp_path / "flight.avsc"
    schema.write_text(json.dumps(AVRO))
    name = cli.topic(1)
    (tmp_path / "value").write_bytes(AvroSerializer(AVRO)({"number": 7}) or b"")
    cli.run("produce", name, "--input", "raw", str(tmp_path / "value"))
    read = json.loads(cli.out("consume", name, "-e", "--avro", str(schema)))
    assert (read["value"], read["value_encoding"]) == ({"number": 7}, "deserialized")
    cli.run("produce", name, stdin=b"not avro")
    failed = cli.run("consume", name, "-e", "--avro", str(schema), code=1)
    assert f"the value of the record at {name}-0, offset 1 cannot be".encode() in failed.stderr


# --- where to begin and end


def test_the_grammar_of_offsets_on_real_ones(cli):
    name = cli.topic(1)
    lines = [{"value": f"{n}", "timestamp": 1_600_000_000_000 + 1000 * n} for n in range(10)]
    given = "".join(json.dumps(line) + "\n" for line in lines)
    cli.run("produce", name, "--input", "json", stdin=given.encode())
    expected = {
        (): "0123456789",
        ("-o", "+8"): "89",
        ("-o", "-3"): "789",
        ("-o", "2:5"): "234",
        ("-o", ":3"): "012",
        ("-o", "end"): "",
        ("-o", "99"): "",
        ("-o", "@1600000006000"): "6789",
        ("-o", "@1600000001:1600000003"): "12",
        ("-o", "4", "-n", "2"): "45",
    }
    for words, found in expected.items():
        assert cli.out("consume", name, "-e", "-q", "-f", "%v", *words) == found, words


def test_a_range_waits_for_what_is_not_there_yet(cli):
    name = cli.topic(1, "0", "1")
    with cli.start("consume", name, "-o", "1:3", "-f", "%v\n") as consumer:
        read_for(consumer.stdout, b"1\n")
        cli.run("produce", name, stdin=b"2\n3\n")
        rest, output = consumer.communicate(timeout=10)
        assert rest == b"2\n"
        assert output == b"Processed a total of 2 messages\n"
        assert consumer.returncode == 0


def test_the_last_records_come_first_then_new_ones(cli):
    name = cli.topic(3)
    lines = "".join(f"{n % 3} {1000 + n} {value}\n" for n, value in enumerate("abcdefgh"))
    cli.run("produce", name, "-f", "%p %T %v", stdin=lines.encode())
    assert cli.out("consume", name, "--tail", "3", "-e", "-f", "%v") == "fgh"
    assert (
        cli.out("consume", name, "--tail", "2", "-e", "-f", "%v", "--filter-value", "[abc]") == "bc"
    )
    assert cli.out("consume", name, "--tail", "100", "-e", "-f", "%v", "-p", "0") == "adg"
    with cli.start("consume", name, "--tail", "1", "-n", "2", "-f", "%v\n") as consumer:
        read_for(consumer.stdout, b"h\n")
        cli.run("produce", name, stdin=b"new\n")
        assert consumer.communicate(timeout=10)[0] == b"new\n"
        assert consumer.returncode == 0


def test_filters_count_what_they_accept(cli):
    name = cli.topic(1, *"abcabc")
    assert (
        cli.out("consume", name, "-e", "-f", "%o%v", "--filter-value", "re:[bc]", "-n", "3")
        == "1b2c4b"
    )
    group = f"group-{next(_names)}"
    words = ("consume", name, "-g", group, "-o", "start", "-f", "%v", "--filter-value", "b")
    assert cli.out(*words, "-n", "1") == "b"
    assert cli.out("consume", name, "-g", group, "-e", "-f", "%v") == "cabc", (
        "no more was committed"
    )


def test_a_transaction_is_committed_whole_or_aborted(cli):
    name = cli.topic(1)
    transactional = ("produce", name, "--input", "json", "-X", f"transactional.id={name}")
    cli.run(*transactional, stdin=b'{"value": "a"}\n{"value": "b"}\n')
    refused = cli.run(*transactional, stdin=b'{"value": "c"}\nno json\n', code=1)
    assert b"record 2: not a record in JSON" in refused.stderr
    with cli.start(*transactional, stdin=subprocess.PIPE) as producer:
        producer.stdin.write(b'{"value": "d"}\n')
        producer.stdin.flush()
        eventually("a transaction", lambda: "Ongoing" in cli.out("txn", "list"))
        producer.send_signal(signal.SIGINT)
        assert producer.wait(10) == 130
    assert cli.out("consume", name, "-e", "-f", "%v", "--read-committed") == "ab"
    shown = cli.out("consume", name, "-e", "-f", "%k%v|", "--print-control")
    assert shown.startswith("a|b|COMMIT|")
    assert shown.endswith("d|ABORT|")
    *_, last = cli.out("consume", name, "-e", "--print-control").splitlines()
    assert (json.loads(last)["control"], json.loads(last)["value"]) == ("ABORT", None)
    (line,) = cli.out("consume", name, "-n", "1", "-o", "start", "--meta-only").splitlines()
    assert "value" not in json.loads(line)


def test_what_is_produced_is_copied_and_places_are_printed(cli):
    name = cli.topic(1)
    assert cli.out("produce", name, "-T", stdin=b"a\nb\n") == "a\nb\n"
    assert cli.out("produce", name, "-o", r"%t-%p %o\n", stdin=b"c\n") == f"{name}-0 2\n"
    assert cli.out("consume", name, "-e", "-f", "value") == "a\nb\nc\n"


def test_a_topic_is_copied_with_all_that_records_have(cli):
    name, copy, one = (f"{word}-{next(_names)}" for word in ("source", "copy", "one"))
    cli.run("topic", "create", name, "-p", "3", "-c", "retention.ms=-1")
    lines = [
        {"key": f"k{n}", "value": None if n == 3 else f"v{n}", "timestamp": 1_600_000_000_000 + n,
         "headers": [["a", "/w==", "base64"], ["a", None, "null"]]}
        for n in range(9)
    ]  # fmt: skip
    given = "".join(json.dumps(line) + "\n" for line in lines).encode()
    cli.run("produce", name, "--input", "json", "-X", "transactional.id=copied", stdin=given)
    cli.run(
        "produce", name, "--input", "json", "-X", "transactional.id=copied", stdin=b"{}\nx", code=1
    )

    def content(topic: str, *fields: str) -> list[Any]:
        records = map(json.loads, cli.out("consume", topic, "-e", "--read-committed").splitlines())
        return sorted([record[field] for field in fields] for record in records)

    assert b"9 of 9 records copied" in cli.run("topic", "cp", name, copy).stderr
    fields = ("timestamp", "partition", "key", "value", "value_encoding", "headers")
    assert content(copy, *fields) == content(name, *fields)
    assert cli.json("topic", "describe", copy)[0]["configs"] == {"retention.ms": "-1"}
    cli.run("topic", "create", one)
    cli.run(
        "topic",
        "cp",
        name,
        one,
        "-o",
        "@1600000000005:@1600000000008",
        "--dst-bootstrap-server",
        cli.cluster.bootstrap,
    )
    assert {each for [each] in content(one, "key")} <= {"k5", "k6", "k7"}
    cli.run("topic", "cp", name, name, code=2)


def test_versions_of_apis_are_shown(cli):
    rows = {row["api"]: row for row in cli.json("cluster", "api-versions")}
    assert rows["FETCH"] == {
        "key": 1, "api": "FETCH", "brokers": [1], "min_version": 4, "max_version": 17, "used": 17,
    }  # fmt: skip
    assert b"no live broker 7" in cli.run("cluster", "api-versions", "--broker", "7", code=1).stderr


def test_partitions_are_chosen_by_number(cli):
    name = cli.topic(3, *"abcdef")
    assert sorted(cli.out("consume", name, "-e", "-p", "0,2", "-f", "%v")) == list("acdf")
    refused = cli.run("consume", name, "-e", "-p", "1,9", code=1)
    assert (
        f"topic '{name}' has no partition 9; its partitions are 0 to 2".encode() in refused.stderr
    )


def test_topics_are_chosen_by_a_regular_expression(cli):
    first, second = cli.topic(1, "a"), cli.topic(1, "b")
    wanted = ["-r", first, f"{second[:-1]}[{second[-1]}]"]
    found = cli.out("consume", *wanted, "-o", "start", "-e", "-f", "%t %v\\n").splitlines()
    assert sorted(found) == sorted([f"{first} a", f"{second} b"])
    grouped = cli.out("consume", *wanted, "-o", "start", "-g", f"group-{next(_names)}", "-n", "2")
    assert {json.loads(line)["topic"] for line in grouped.splitlines()} == {first, second}
    refused = cli.run("consume", "-r", f"{first}-.*", "-e", code=1)
    assert f"no topic matches {first}-.*".encode() in refused.stderr
    assert b"-r [: " in cli.run("consume", "-r", "[", code=2).stderr
    assert cli.out("consume", "-r", f"(?i){first.upper()}", "-o", "start", "-e", "-f", "%v") == "a"
    assert b"global flags" in cli.run("consume", "-r", first, "(?i)b", "-e", code=2).stderr


def test_consuming_stops_after_a_time_without_records(cli):
    name = cli.topic(1, "a")
    assert cli.out("consume", name, "-o", "start", "--idle-timeout", "0.5", "-f", "%v") == "a"


# --- groups


def test_a_group_remembers_what_was_printed_and_no_more(cli):
    name, group = cli.topic(1, *"abcdef"), f"group-{next(_names)}"
    words = ("consume", name, "-g", group, "-f", "%v", "-q")
    assert cli.out(*words, "-o", "start", "-n", "2") == "ab"
    assert cli.out(*words, "-n", "1") == "c"
    assert cli.out(*words, "-e", "-n", "1") == "d"
    assert cli.out(*words, "-o", "stored:5", "-p", "0") == "e"
    assert cli.out(*words, "-e") == "f"
    assert cli.out(*words, "-e") == ""


def test_a_group_from_creation_to_deletion(cli):
    name, group = cli.topic(2, *"abcdef"), f"group-{next(_names)}"
    with cli.start("consume", name, "-g", group, "-o", "start", "-f", "%v\n") as consumer:
        found = b""
        while found.count(b"\n") < 6:
            found += read_for(consumer.stdout, b"\n")
        (row,) = [row for row in cli.json("group", "list") if row["group"] == group]
        assert (row["type"], row["protocol"], row["state"]) == ("Classic", "consumer", "Stable")
        assert row["coordinator"] == 1
        (row,) = cli.json("group", "describe", group, "--state")
        assert (row["state"], row["members"]) == ("Stable", 1)
        (row,) = cli.json("group", "describe", group, "--members")
        assert row["assignment"] == [f"{name}-0", f"{name}-1"]
        (row,) = cli.json("group", "describe", group, "-t")
        assert row == {
            "group": group, "topic": name, "partitions": 2, "members": 1,
            "lag": None, "max_lag": None, "unknown": 2,
        }, "nothing is committed yet"  # fmt: skip
        both_asked = cli.run("group", "describe", group, "--topics", "--state", code=2)
        assert b"give one of --members, --state and --topics" in both_asked.stderr
        refused = cli.run("group", "seek", group, "--to", "start", code=1)
        assert b"is in state Stable, it has members (client ids: kclient-cli)" in refused.stderr
        consumer.send_signal(signal.SIGINT)
        assert consumer.wait(10) == 130
    rows = cli.json("group", "describe", group)
    assert [(r["partition"], r["current_offset"], r["lag"]) for r in rows] == [(0, 3, 0), (1, 3, 0)]
    quiet = cli.run("group", "seek", group, "--to", "+1", "-q")
    assert (quiet.stdout.splitlines()[1].split()[3], quiet.stderr) == (b"1", b"")
    assert cli.json("group", "lag", group)[0]["lag"] == 0, "nothing without --execute"
    both = cli.json("group", "describe", group, "nosuch", "--state", code=5)
    assert [row["group"] for row in both] == [group], "one list of rows, also for several groups"
    cli.run("group", "seek", group, "--to", "+1", "--execute")
    (row,) = cli.json("group", "lag", group)
    assert (row["state"], row["lag"], row["max_lag"]) == ("Empty", 4, 2)
    (row,) = cli.json("group", "describe", group, "--topics")
    assert (row["members"], row["lag"], row["max_lag"], row["unknown"]) == (0, 4, 2, 0)
    assert sorted(cli.out("consume", name, "-g", group, "-e", "-f", "%v")) == list("cdef")
    assert cli.out("group", "delete", group, "-y") == f"Deleted group {group}.\n"
    assert b"does not exist" in cli.run("group", "describe", group, code=1).stderr


# --- committed offsets


def new_offsets(cli: Cli, *words: str) -> dict[tuple[str, int], int]:
    rows = cli.json("group", "reset-offsets", *words)
    return {(row["group"], row["partition"]): row["new_offset"] for row in rows}


def committed(cli: Cli, group: str) -> dict[int, int]:
    rows = cli.json("group", "describe", group)
    return {row["partition"]: row["current_offset"] for row in rows}


@pytest.fixture(scope="module")
def ten(cli: Cli) -> str:
    """Make a topic with ten records, a second apart, in partition 0 and none in partition 1."""
    name = cli.topic(2)
    lines = [{"value": f"{n}", "timestamp": 1_600_000_000_000 + 1000 * n} for n in range(10)]
    given = "".join(json.dumps(line) + "\n" for line in lines)
    cli.run("produce", name, "-p", "0", "--input", "json", stdin=given.encode())
    return name


def test_offsets_are_reset_by_each_scenario(cli, ten):
    group = f"group-{next(_names)}"
    dry = cli.run("group", "reset-offsets", group, "--topic", ten, "--to-offset", "7")
    heads, first, _ = (line.split() for line in dry.stdout.decode().splitlines())
    assert heads == ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET", "CURRENT-OFFSET", "CHANGE"]
    assert first == [group, ten, "0", "7", "-", "-"]
    assert dry.stderr.decode().splitlines() == [
        f"group '{group}': offset 7 is higher than the latest offset of {ten}-1: set to 0",
        "Dry run: no offset was changed; repeat with --execute.",
    ]
    assert b"does not exist" in cli.run("group", "describe", group, code=1).stderr
    new_offsets(cli, group, "-t", ten, "--to-offset", "7", "--execute")
    assert committed(cli, group) == {0: 7, 1: 0}
    for words, expected in {
        ("--to-earliest",): 0,
        ("--to-latest",): 10,
        ("--to-current",): 7,
        ("--shift-by", "-3"): 4,
        ("--shift-by", "99999999999999999999"): 10,
        ("--to-datetime", "2020-09-13T12:26:45.000"): 5,
        ("--by-duration", "P1D"): 10,
        ("--by-duration", "P99999999D"): 0,
    }.items():
        found = new_offsets(cli, group, "--all-topics", *words)
        assert found == {(group, 0): expected, (group, 1): 0}, words
    words = ("-t", f"{ten}:0,0", "-t", f"{ten}:0", "--to-offset", "-4")
    assert new_offsets(cli, group, *words) == {(group, 0): 0}
    assert committed(cli, group) == {0: 7, 1: 0}


def test_exported_offsets_are_imported(cli, ten, tmp_path):
    one, two = f"group-{next(_names)}", f"group-{next(_names)}"
    new_offsets(cli, one, "-t", ten, "--to-offset", "7", "--execute")
    exported = tmp_path / "offsets.csv"
    cli.run("group", "export", one, "--file", str(exported))
    assert exported.read_text() == f"{ten},0,7\n{ten},1,0\n"
    assert new_offsets(cli, two, "--from-file", str(exported)) == {(two, 0): 7, (two, 1): 0}
    cli.run("group", "import", str(exported), two, "--execute")
    both = cli.out("group", "export", one, two)
    assert both == "".join(f"{g},{ten},0,7\n{g},{ten},1,0\n" for g in sorted((one, two)))
    everything = cli.out("group", "export", "--all-groups").splitlines()
    assert set(both.splitlines()) <= set(everything)
    moved = both.replace(",7", ",3").encode()
    partly = cli.run("group", "import", "-", two, "--execute", stdin=moved)
    assert f"-: offsets of other groups are left out: {one}".encode() in partly.stderr
    assert (committed(cli, one)[0], committed(cli, two)[0]) == (7, 3)
    cli.run("group", "import", "-", "--execute", stdin=moved)
    assert committed(cli, one)[0] == 3


def test_a_reset_of_what_does_not_exist_changes_nothing(cli, ten):
    group = f"group-{next(_names)}"
    new_offsets(cli, group, "-t", ten, "--to-offset", "7", "--execute")
    for problem, words in {
        "topic 'nosuch' does not exist": (group, "-t", ten, "-t", "nosuch", "--to-earliest"),
        f"topic '{ten}' has no partition 9; its": (group, "-t", f"{ten}:0,9", "--to-earliest"),
        "has no committed offsets; name topics": ("nosuch", "--all-topics", "--to-earliest"),
        f"in {ten}-0 to shift; leave": (group, "nosuch", "-t", ten, "--shift-by", "1"),
    }.items():
        failed = cli.run("group", "reset-offsets", *words, "--execute", code=1)
        assert problem in failed.stderr.decode()
    missing = f"{group},{ten},0,1\n{group},{ten},99999999999,1\n".encode()
    failed = cli.run("group", "import", "-", "--execute", stdin=missing, code=1)
    assert f"topic '{ten}' has no partition 99999999999".encode() in failed.stderr
    assert committed(cli, group) == {0: 7, 1: 0}


def test_offsets_of_members_are_neither_reset_nor_deleted(cli, ten):
    idle, busy = f"group-{next(_names)}", f"group-{next(_names)}"
    words = ("consume", ten, "-g", busy, "-o", "start", "-f", "%v\n", "-X", "client.id=reader")
    with cli.start(*words) as consumer:
        read_for(consumer.stdout, b"9\n")
        failed = cli.run(
            *("group", "reset-offsets", busy, idle, "-t", ten, "--to-latest", "--execute"), code=1
        )
        problem = f"group '{busy}' is in state Stable, it has members (client ids: reader): stop"
        assert problem in failed.stderr.decode()
        assert committed(cli, idle) == {0: 10, 1: 0}
        failed = cli.run("group", "delete-offsets", busy, "-t", f"{ten}:1", "-y", code=1)
        assert failed.stdout.split()[-1] == b"GROUP_SUBSCRIBED_TO_TOPIC"
        assert b"stop the group's consumers of this topic first" in failed.stderr
        consumer.send_signal(signal.SIGINT)
        consumer.wait(10)
    (row,) = cli.json("group", "delete-offsets", idle, "-t", f"{ten}:0", "-y")
    assert (row["offset"], row["status"], row["error"]) == (10, "deleted", None)
    assert committed(cli, idle) == {1: 0}
    failed = cli.run("group", "delete-offsets", "nosuch", "-t", ten, "-y", code=1)
    assert b"GROUP_ID_NOT_FOUND: group 'nosuch'" in failed.stderr


# --- how it ends


def test_doctor_finds_nothing_wrong_and_measures_the_clock(cli):
    checked = {each["check"]: each for each in cli.json("doctor", "--write")}
    assert len(checked) == 13
    assert {each["status"] for each in checked.values()} <= {"ok", "warning"}
    assert "1 broker at most" in checked["clock"]["message"]
    assert not [row for row in cli.json("topic", "list") if "doctor" in row["topic"]]


def test_doctor_names_what_listens_in_place_of_a_broker(cli):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    connection.close()

        serving = Thread(target=serve, daemon=True)
        serving.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        lines = cli.run("doctor", "-b", address, code=3).stdout.decode().splitlines()
        assert lines[2].startswith(f"failed   protocol    {address}: an HTTP port. Next: ")
        assert {line.split()[0] for line in lines[3:]} == {"skipped"}
        server.shutdown(socket.SHUT_RDWR)
        serving.join(5)


def test_an_address_without_a_listener_is_reported_at_once(cli):
    failed = cli.run("-b", "127.0.0.1:1", "topic", "list", code=3)
    assert b"127.0.0.1:1: connection refused" in failed.stderr


@pytest.mark.parametrize("words", [("topic", "list"), ("consume", "t", "-e"), ("produce", "t")])
def test_a_port_that_sends_nothing_is_given_up_within_the_timeout(cli, words):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        began = time.monotonic()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        cli.run("-b", f"{address},{address}", "-m", "1", *words, stdin=b"x\n", code=3)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("words", [("consume", "nosuch", "-e"), ("produce", "nosuch")])
def test_an_unknown_topic_is_a_failure(cli, words):
    failed = cli.run("-m", "1", *words, stdin=b"x\n", code=1)
    assert b"UNKNOWN_TOPIC_OR_PARTITION" in failed.stderr
    assert b"nosuch" in failed.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("consume",),
        ("consume", "t", "-o", "tomorrow"),
        ("consume", "t", "-o", "stored"),
        ("consume", "t", "-g", "g", "-o", "47"),
        ("consume", "t", "-f", "%q"),
        ("consume", "t", "-p", "one"),
        ("consume", "t", "-s", "value=protobuf"),
        ("consume", "t", "-s", "value=avro"),
        ("topic", "create", "t", "-c", "novalue"),
        ("topic", "alter-config", "t"),
        ("-X", "no.such.setting=1", "topic", "list"),
        ("-X", "heartbeat", "topic", "list"),
        ("no-such-command",),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(cli, words):
    assert cli.run(*words, code=2).stderr


def test_a_reader_that_has_seen_enough_is_no_failure(cli):
    name = cli.topic(1, *[f"{n:050d}" for n in range(5000)])
    with (
        cli.start("consume", name, "-e", "-f", "%v\n") as consumer,
        subprocess.Popen(["head", "-1"], stdin=consumer.stdout, stdout=subprocess.PIPE) as head,
    ):
        assert consumer.stdout is not None
        consumer.stdout.close()
        assert head.communicate(timeout=10)[0] == b"0" * 50 + b"\n"
        assert consumer.wait(10) == 0
        assert consumer.stderr is not None
        assert b"Traceback" not in consumer.stderr.read()


def test_consume_notes_on_a_terminal_once_that_it_waits_at_the_end(cli):
    name = cli.topic(1, "a")
    ours, theirs = pty.openpty()
    words = ("consume", name, "-o", "earliest", "-f", "%v\n")
    with (
        open(ours, "rb", buffering=0) as terminal,
        Started(
            [*COMMAND, *words], env=cli.environment, stdout=subprocess.PIPE, stderr=theirs
        ) as consumer,
    ):
        os.close(theirs)
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == b"a\n"
        note = read_for(terminal, b"\n")
        assert f"waiting for new records of {name} (Ctrl-C ends; -e stops".encode() in note
        for value in (b"b", b"c"):  # Two ends more.
            cli.run("produce", name, "-q", stdin=value)
            assert consumer.stdout.readline() == value + b"\n"
        consumer.send_signal(signal.SIGINT)
        consumer.wait(10)
        after = b""
        with suppress(OSError):  # The other end is closed.
            while piece := terminal.read(4096):
                after += piece
        assert b"waiting for" not in after


def test_settings_come_from_a_file_and_the_command_line_wins(cli, tmp_path):
    path = tmp_path / "client.properties"
    path.write_text(f"bootstrap.servers={cli.cluster.bootstrap}\nclient.id=from-file\n")
    environment = dict(cli.environment)
    environment.pop("KCLIENT_BOOTSTRAP_SERVERS")
    command = [*COMMAND, "-F", str(path), "topic", "list"]
    assert subprocess.run(command, env=environment, capture_output=True).returncode == 0
    command[-2:-2] = ["-b", "127.0.0.1:1"]
    assert subprocess.run(command, env=environment, capture_output=True).returncode == 3


def test_every_setting_is_listed(cli):
    listed = cli.out("-X", "list", "topic", "list")
    assert "bootstrap.servers" in listed
    assert "max.poll.records" in listed
