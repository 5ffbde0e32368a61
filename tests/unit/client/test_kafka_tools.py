"""Kafka's tools in `kclient`: the parts that need no cluster. Those of the lines are in tests/compat."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest
from click.testing import CliRunner

from kclient.cli.commands import kclient
from kclient.cli.kafka_tools import java_numbers, java_order, producer_performance, tool
from kclient.cli.kafka_tools.command import TOOLS, tool_of
from kclient.cli.kafka_tools.line_reader import LineError, LineReader
from kclient.cli.kafka_tools.message_formatter import FormatterError, formatter
from kclient.cli.kafka_tools.options import OPTIONAL, Option, OptionError, not_honoured, parse
from kclient.cli.kafka_tools.topic_filter import topic_filter
from kclient.types import Record, TopicPartition
from kclient.wire.records import Record as Sent
from kclient.wire.records import encode_batch

JAVA = "org.apache.kafka.common.serialization."

OPTIONS = (
    Option("help"),
    Option("version"),
    Option("topic", value="topic"),
    Option("partitions", value="#", kind=int, default=1),
    Option("list"),
    Option("state", takes=OPTIONAL, only_with=("list",)),
    Option("names", value="names", separator=","),
    not_honoured("zookeeper", "removed", kafka=False),
    not_honoured("ip", "no rates"),
)


@pytest.mark.parametrize(
    "words",
    [
        ["--topic", "t"],
        ["--topic=t"],
        ["-topic", "t"],
        ["-topic=t", "ignored"],
        ["x", "--topic", "t", "--"],
    ],
)
def test_an_option_has_one_or_two_dashes_and_its_value_behind_it(words: list[str]) -> None:
    assert parse(OPTIONS, words).value("topic") == "t"


def test_the_next_word_is_a_value_whatever_it_looks_like() -> None:
    given = parse(OPTIONS, ["--topic", "--list"])
    assert (given.value("topic"), given.has("list")) == ("--list", False)
    assert parse(OPTIONS, ["--topic="]).value("topic") == ""
    assert not parse(OPTIONS, ["--", "--list"]).has("list")


def test_an_optional_value_is_no_option() -> None:
    assert parse(OPTIONS, ["--list", "--state"]).value("state") is None
    assert parse(OPTIONS, ["--state", "--list"]).has("list")
    assert parse(OPTIONS, ["--list", "--state", "stable"]).value("state") == "stable"


def test_values_are_converted_when_they_are_used() -> None:
    given = parse(OPTIONS, ["--partitions", "x", "--topic", "a", "--topic", "b", "--names", "a,b"])
    with pytest.raises(OptionError, match="Cannot parse argument 'x' of option partitions"):
        given.value("partitions")
    with pytest.raises(OptionError, match="Found multiple arguments for option topic"):
        given.value("topic")
    assert given.values("topic") == given.values("names") == ["a", "b"]
    assert parse(OPTIONS, []).value("partitions") == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--nix"], "nix is not a recognized option"),
        (["--topi", "t"], "topi is not a recognized option"),
        (["-xyz"], "x is not a recognized option"),
        (["--topic"], "Option topic requires an argument"),
        (["--state"], r"Option\(s\) \[state\] are unavailable"),
        (["--zookeeper", "z"], "zookeeper is not a recognized option: removed"),
        (["--ip=1"], "ip is not supported: no rates"),
    ],
)
def test_what_joptsimple_refuses_is_refused(words: list[str], text: str) -> None:
    with pytest.raises(OptionError, match=f"^{text}"):
        parse(OPTIONS, words)


def test_keys_have_the_order_of_a_hash_map() -> None:
    # As Java 17 prints them: 14 keys have 32 buckets.
    assert java_order.string_hash("retention.ms") == -1_339_220_362 & 0xFFFFFFFF
    assert java_order.strings(["size", "isFuture", "partition", "offsetLag"]) == [
        "partition",
        "size",
        "offsetLag",
        "isFuture",
    ]
    numbers = [13, 1, 10, 0, 12, 11, 5, 4, 3, 2, 9, 8, 7, 6]
    keys = [f"key-{n}" for n in range(14)]
    assert java_order.strings(keys) == [keys[n] for n in numbers]
    assert java_order.partition_hash(TopicPartition("a", 0)) == 31 * 31 + 97
    # As kafka-topics --describe printed topics with these names.
    topics = ["big", "nonexist-x", "autoc", "x1", "a.b", "c926874"]
    assert java_order.described_topics(sorted(topics)) == topics


def test_a_filter_of_topics_is_a_regular_expression_of_whole_names() -> None:
    matches = topic_filter('"orders, pay.*"')
    assert [matches(name) for name in ("orders", "payments", "orders2", "x-orders")] == [
        True,
        True,
        False,
        False,
    ]


def test_numbers_are_those_of_java() -> None:
    assert doctest.testmod(java_numbers).failed == 0
    below_powers_of_ten = (9.999999999999998e-4, 9.999999999999997e22, 1e22, 1e23, -2.5e-8)
    assert [*map(java_numbers.double, below_powers_of_ten)] == [
        "9.999999999999998E-4",
        "9.999999999999997E22",
        "1.0E22",
        "1.0E23",
        "-2.5E-8",
    ]


def test_a_payload_decides_no_exit_code_of_dump_log(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    batch = encode_batch([Sent(0, 0, None, b"cannot be read: a text of a program")])
    path.write_bytes(batch)
    words = ["kafka-dump-log", "--print-data-log", "--skip-record-metadata", "--files", str(path)]
    assert CliRunner().invoke(kclient, words).exit_code == 0
    path.write_bytes(batch + batch[:-1])
    torn = CliRunner().invoke(kclient, words)
    assert "invalid bytes at the end of" in torn.output
    assert torn.exit_code == 0, "as in Kafka"
    (tmp_path / f"{0:020d}.snapshot").write_bytes(b"no snapshot")
    words[-1] = f"{tmp_path / f'{0:020d}.snapshot'},{path}"
    assert CliRunner().invoke(kclient, words).exit_code == 1


@pytest.mark.parametrize(
    "words",
    [
        "kafka-topics --list --bootstrap-server h:1 --command-config",
        "kafka-cluster cluster-id -b h:1 --config",
        "kafka-delete-records --bootstrap-server h:1 --offset-json-file",
    ],
)
def test_a_file_that_is_no_text_is_an_error_of_one_line(words: str, tmp_path: Path) -> None:
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe=1\n")
    done = CliRunner().invoke(kclient, [*words.split(), str(path)])
    assert done.output == f"{path} is no text in UTF-8\n"
    assert done.exit_code == 1


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("headers.separator", "[", "no regular expression"),
        ("key.separator", "", "is empty"),
        ("headers.delimiter", "", "is empty"),
    ],
)
def test_a_separator_that_cannot_split_is_refused(name: str, text: str, problem: str) -> None:
    with pytest.raises(LineError, match=problem):
        LineReader({"parse.key": "true", "parse.headers": "true", name: text})


def test_an_offset_of_other_digits_is_a_usage_error() -> None:
    words = "kafka-console-consumer --bootstrap-server h:1 --topic t --partition 0 --offset \u00b2"
    done = CliRunner().invoke(kclient, words.split())
    assert "The provided offset value '\u00b2' is incorrect." in done.stderr
    assert done.exit_code == 1


def test_a_load_warns_of_settings_without_an_effect_and_refuses_what_is_no_file_of_payloads(
    tmp_path: Path,
) -> None:
    words = (
        "kafka-producer-perf-test --topic t --num-records 1 --throughput -1 --payload-file {} "
        "--payload-delimiter {} --producer-props bootstrap.servers=h:1 send.buffer.bytes=7"
    )
    (tmp_path / "file").touch()
    done = CliRunner().invoke(kclient, words.format(tmp_path, ";").split())
    assert done.stderr == (
        f"WARN send.buffer.bytes has no effect in kclient\n{tmp_path} (Is a directory)\n"
    )
    assert done.exit_code == 1
    assert producer_performance.read_payloads(b"a\r\n\xff\n\n", "\\n") == [b"a\r", b"\xff"]
    with pytest.raises(tool.Failure, match="delimiter"):
        producer_performance.read_payloads(b"a", "")


@pytest.mark.parametrize("name", TOOLS)
def test_without_options_a_tool_prints_its_usage(name: str) -> None:
    done = CliRunner().invoke(kclient, [name])
    has_help = name in (
        "kafka-producer-perf-test", "kafka-verifiable-producer", "kafka-verifiable-consumer"
    )  # fmt: skip
    assert done.exit_code == (0 if has_help else 1)
    assert "Traceback" not in done.output
    assert (
        name in ("kafka-cluster", "kafka-dump-log", "kafka-producer-perf-test")
        or "--bootstrap-server" in done.output
    )


def test_a_tool_has_the_name_of_its_script_too_and_one_that_is_not_here_a_reason() -> None:
    done = CliRunner().invoke(kclient, ["kafka-topics.sh", "--version"])
    assert (done.exit_code, done.output.split()[0]) == (0, "3.9.1")
    done = CliRunner().invoke(kclient, ["kafka-storage.sh", "format"])
    assert done.exit_code == 2
    assert "kclient has no kafka-storage: only clusters with KRaft" in done.output
    done = CliRunner().invoke(kclient, ["kafka-nix"])
    assert "No such command" in done.output


def test_options_of_kclient_before_the_name_are_refused() -> None:
    done = CliRunner().invoke(kclient, ["-b", "x:1", "kafka-topics", "--list"])
    assert done.exit_code == 2
    assert "-b before its name does not count" in done.output


def test_settings_without_an_effect_are_named_in_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("client.id=me\ninterceptor.classes=x\n")
    assert tool.properties_of(str(file)) == {"client.id": "me", "interceptor.classes": "x"}
    assert tool.settings_of(["metric.reporters=y", "acks=1"]) == {
        "metric.reporters": "y",
        "acks": "1",
    }
    assert capsys.readouterr().err.splitlines() == [
        f"WARN {file}: interceptor.classes has no effect in kclient",
        "WARN metric.reporters has no effect in kclient",
    ]
    with pytest.raises(tool.Failure, match="No such file"):
        tool.properties_of(str(tmp_path / "nix"))


def test_the_line_reader_splits_headers_key_and_value() -> None:
    read = LineReader({"parse.key": "true", "parse.headers": "true", "null.marker": "-"})
    assert read(b"a:1,b:-\tk\tv\tw") == (b"k", b"v\tw", [("a", b"1"), ("b", None)], None, None)
    assert read(b"-\t-\t-") == (None, None, [], None, None)
    with pytest.raises(LineError, match="No key separator found on line number 3: 'a:1\tk'"):
        read(b"a:1\tk")
    with pytest.raises(LineError, match=r"property parse\.keys is not supported"):
        LineReader({"parse.keys": "true"})
    with pytest.raises(LineError, match=r"null\.marker and key\.separator may not be equal"):
        LineReader({"null.marker": ":", "key.separator": ":"})
    assert LineReader({"parse.key": "true", "ignore.error": "true"})(b"x") == (
        None,
        b"x",
        [],
        None,
        None,
    )


RECORD = Record("t", 3, 7, 1700, 0, b"\0\0\0\x05", None, [("h", b"1"), ("n", None)])


@pytest.mark.parametrize(
    ("properties", "line"),
    [
        ({}, b"null\n"),
        ({"print.value": "false"}, b""),
        ({"print.key": "true", "key.deserializer": f"{JAVA}IntegerDeserializer"}, b"5\tnull\n"),
        ({"print.partition": "true", "print.offset": "TRUE", "key.separator": "|"}, b"Partition:3|Offset:7|null\n"),
        ({"print.headers": "true", "headers.separator": ";", "null.literal": "-"}, b"h:1;n:-\t-\n"),
        ({"print.timestamp": "true", "line.separator": "$"}, b"CreateTime:1700\tnull$"),
    ],
)  # fmt: skip
def test_a_record_is_printed_as_by_the_default_formatter(
    properties: dict[str, str], line: bytes
) -> None:
    assert formatter("kafka.tools.DefaultMessageFormatter", properties)(RECORD) == line


@pytest.mark.parametrize(
    ("name", "properties", "text"),
    [
        ("com.example.Mine", {}, "cannot load Java classes"),
        ("DefaultMessageFormatter", {"print.keys": "true"}, "property print.keys is not supported"),
        ("DefaultMessageFormatter", {"value.deserializer": "x.Y"}, "value.deserializer=x.Y is not supported"),
    ],
)  # fmt: skip
def test_a_formatter_that_is_not_here_is_refused(
    name: str, properties: dict[str, str], text: str
) -> None:
    with pytest.raises(FormatterError, match=text):
        formatter(name, properties)


def test_a_shell_completes_the_options_of_kafka() -> None:
    assert "--topic" in tool_of("kafka-topics").names()
    assert "--zookeeper" not in tool_of("kafka-topics").names()
    assert "find-hanging" in tool_of("kafka-transactions").names()
