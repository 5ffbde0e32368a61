"""server.properties: every problem at once, nothing of Kafka's own file refused without a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kbroker.config import BROKER_SETTINGS, TOPIC_SETTINGS, ConfigError, KafkaConfig, LogConfig
from kbroker.network.connection_quotas import ConnectionQuotas

GOOD = {"broker.id": "1", "zookeeper.connect": "127.0.0.1:2181/east", "log.dirs": "/tmp/kb-none"}

TWO_NAMES = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,EXTERNAL:PLAINTEXT,INTERNAL:PLAINTEXT"
}


def problems_of(**given: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        KafkaConfig.of({**GOOD, **{key.replace("_", "."): value for key, value in given.items()}})
    return caught.value.problems


def test_all_problems_are_listed_at_once() -> None:
    problems = problems_of(
        broker_id="five", num_partitions="0", listeners="X://h:1", log_cleanup_policy="burn"
    )
    assert [problem.split(":")[0] for problem in problems] == [
        "broker.id",
        "num.partitions",
        "log.cleanup.policy",
        "listeners",
    ]


@pytest.mark.parametrize("text", ["1e3", "0x10", "five", "5;6", "", "2147483648", "1_000", "١"])
def test_what_is_no_int_is_refused(text: str) -> None:
    assert problems_of(num_partitions=text)[0].startswith("num.partitions: ")


@pytest.mark.parametrize(
    "host", ["", "h", "a-b.c.", "127.0.0.1", "[::1]", "[fe80::1%eth0]", "bücher"]
)
def test_hosts_of_listeners(host: str) -> None:
    assert KafkaConfig.of({**GOOD, "listeners": f"PLAINTEXT://{host}:1"})


def test_numbers_may_have_blanks_around_them() -> None:
    assert KafkaConfig.of({**GOOD, "num.partitions": " 5 "}).num_partitions == 5


@pytest.mark.parametrize(("text", "value"), [("true", True), ("TRUE", True), ("False", False)])
def test_booleans_are_true_and_false_in_any_case(text: str, value: bool) -> None:
    assert KafkaConfig.of({**GOOD, "delete.topic.enable": text}).delete_topic_enable is value


@pytest.mark.parametrize("text", ["yes", "1", ""])
def test_other_words_are_no_booleans(text: str) -> None:
    assert problems_of(delete_topic_enable=text)


@pytest.mark.parametrize(
    "listeners",
    [
        "PLAINTEXT://h",
        "PLAINTEXT://h:65536",
        "PLAINTEXT://h:1,PLAINTEXT://h:2",
        "PLAINTEXT://h:1,B://:1",
        "WHAT://h:1",
        "SSL://h:1",
        "PLAINTEXT://a..b:1",
        f"PLAINTEXT://{64 * 'a'}:1",
        "nonsense",
        "",
    ],
)
def test_unusable_listeners_are_refused(listeners: str) -> None:
    assert problems_of(
        listeners=listeners,
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,B:PLAINTEXT,SSL:SSL",
    )


def test_ipv6_listeners_are_read() -> None:
    config = KafkaConfig.of({**GOOD, "listeners": "PLAINTEXT://[::1]:9092"})
    assert (config.endpoints[0].host, str(config.endpoints[0])) == ("::1", "PLAINTEXT://[::1]:9092")


def test_the_listener_between_brokers_is_advertised() -> None:
    problems = problems_of(
        listeners="PLAINTEXT://:9092,CLIENT://:9093",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,CLIENT:PLAINTEXT",
        advertised_listeners="CLIENT://broker.example:9093",
    )
    assert "PLAINTEXT is missing" in problems[0]


@pytest.mark.parametrize(
    ("listeners", "between"),
    [
        ("EXTERNAL://:9093,PLAINTEXT://:9092", "PLAINTEXT"),
        ("EXTERNAL://:9093,INTERNAL://:9092", "EXTERNAL"),
    ],
)
def test_brokers_use_the_listener_that_is_named_as_the_protocol_between_them(
    listeners: str, between: str
) -> None:
    """As in Kafka. Without such a listener the first one with the protocol counts; Kafka refuses to start."""
    config = KafkaConfig.of({**GOOD, **TWO_NAMES, "listeners": listeners})
    assert config.inter_broker_listener == between


def test_the_wildcard_cannot_be_advertised() -> None:
    assert "cannot be dialled" in problems_of(advertised_listeners="PLAINTEXT://0.0.0.0:9092")[0]


def test_a_listener_at_the_wildcard_advertises_localhost() -> None:
    assert str(KafkaConfig.of(GOOD).advertised[0]) == "PLAINTEXT://localhost:9092"


@pytest.mark.parametrize("connect", ["", "  ", "h:0", "h:1,,k:2", "h:1/a//b", "h:1/a,k:2/a"])
def test_unusable_zookeeper_connect_is_refused(connect: str) -> None:
    assert any("zookeeper.connect" in problem for problem in problems_of(zookeeper_connect=connect))


def test_an_unknown_key_is_a_warning_with_the_nearest_name() -> None:
    config = KafkaConfig.of({**GOOD, "log.retention.hour": "1"})
    assert "did you mean log.retention.hours?" in config.warnings[0]


def test_an_authorizer_is_not_ignored_in_silence() -> None:
    assert (
        "every client"
        in problems_of(authorizer_class_name="kafka.security.authorizer.AclAuthorizer")[0]
    )


def test_keys_without_effect_are_named_in_one_line() -> None:
    config = KafkaConfig.of({**GOOD, "num.io.threads": "8", "num.network.threads": "3"})
    assert config.warnings == ("accepted, no effect: num.io.threads, num.network.threads",)


@pytest.mark.parametrize(
    ("given", "retention_ms"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": "1"}, 3_600_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "2"}, 120_000),
        ({"log.retention.minutes": "2", "log.retention.ms": "7"}, 7),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_the_nearest_synonym_of_retention_counts(given: dict[str, str], retention_ms: int) -> None:
    assert KafkaConfig.of({**GOOD, **given}).log_defaults.retention_ms == retention_ms


@pytest.mark.parametrize("unit", ["ms", "minutes", "hours"])
def test_a_retention_of_0_is_refused_for_all_topics_of_a_broker(unit: str) -> None:
    """As in Kafka: every topic without a retention of its own would lose all its records."""
    given = {f"log.retention.{unit}": "0"}
    with pytest.raises(ConfigError, match="unlimited"):
        KafkaConfig.of({**GOOD, **given})
    with pytest.raises(ConfigError, match="unlimited"):
        KafkaConfig.of(GOOD).with_values(given)
    assert LogConfig().overridden({"retention.ms": "0"}).retention_ms == 0


@pytest.mark.parametrize(
    ("given", "jitter_ms"),
    [
        ({}, 0),
        ({"log.roll.jitter.hours": "2"}, 7_200_000),
        ({"log.roll.jitter.ms": "5", "log.roll.jitter.hours": "2"}, 5),
        ({"log.roll.jitter.ms": "0", "log.roll.jitter.hours": "2"}, 0),
    ],
)
def test_the_jitter_of_rolls_is_the_default_of_topics(
    given: dict[str, str], jitter_ms: int
) -> None:
    assert KafkaConfig.of({**GOOD, **given}).log_defaults.segment_jitter_ms == jitter_ms


def test_a_topics_own_settings_win() -> None:
    config = LogConfig().overridden({"cleanup.policy": "compact,delete", "segment.bytes": "1024"})
    assert (config.cleanup_policy, config.segment_bytes) == (("compact", "delete"), 1024)


@pytest.mark.parametrize(
    "given", [{"segment.byte": "1"}, {"cleanup.policy": ""}, {"retention.ms": "-2"}]
)
def test_bad_topic_settings_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        LogConfig().overridden(given)


def test_every_synonym_of_a_topic_setting_is_a_broker_setting() -> None:
    missing = {name for s in TOPIC_SETTINGS.values() for name in s.synonyms} - set(BROKER_SETTINGS)
    assert missing == set()


def test_each_round_of_compaction_has_memory_and_may_read() -> None:
    given = {"zookeeper.connect": "zk:2181", "log.cleaner.threads": "4"}
    KafkaConfig.of({**given, "log.cleaner.dedupe.buffer.size": str(4 << 20)})
    for wrong in (
        {"log.cleaner.dedupe.buffer.size": str((4 << 20) - 4)},
        {"log.cleaner.io.max.bytes.per.second": "0"},
    ):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            KafkaConfig.of({**given, **wrong})


def test_every_default_satisfies_its_own_bounds() -> None:
    for setting in [*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values()]:
        if setting.default is not None and setting.validator is not None:
            assert setting.validator(setting.default) is None, setting.name


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.mkdir(), "is a directory"),
        (lambda path: path.write_bytes(b"a=" + b"x" * (2 << 20)), "larger than"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_problem(make, problem: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "server.properties"
    make(path)
    with pytest.raises(ConfigError, match=problem) as raised:
        KafkaConfig.load(path)
    assert len(raised.value.problems) == 1


def test_overrides_win_over_the_file_and_must_be_pairs(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in GOOD.items()))
    assert KafkaConfig.load(path, ["broker.id=7"]).broker_id == 7
    with pytest.raises(ConfigError, match="is not key=value"):
        KafkaConfig.load(path, ["broker.id"])


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"max.connections.per.ip": "0"}, "names no address"),
        ({"max.connections.per.ip.overrides": "db-1:5"}, "'db-1:5' is not address:count"),
        ({"max.connections.per.ip.overrides": "10.0.0.1:5,7"}, "'7' is not address:count"),
        ({"max.connections.per.ip.overrides": "10.0.0.1:-5"}, "'-5' of '10.0.0.1:-5'"),
    ],
)
def test_limits_that_would_lock_out_or_have_no_effect_are_refused(
    given: dict[str, str], problem: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        KafkaConfig.of({**GOOD, **given})
    with pytest.raises(ConfigError, match=re.escape(problem)):
        KafkaConfig.of(GOOD).with_values(given)


def test_only_addresses_with_an_override_may_connect() -> None:
    given = {
        "max.connections.per.ip": "0",
        "max.connections.per.ip.overrides": "[::1]:2, 10.0.0.1:3, [::ffff:10.0.0.3]:1",
    }
    config = KafkaConfig.of({**GOOD, **given})
    quotas = ConnectionQuotas(config)
    hosts = ("::1", "10.0.0.1", "10.0.0.2", "10.0.0.3")
    assert [quotas.refusal(host, False, 0) is None for host in hosts] == [True, True, False, True]


@pytest.mark.parametrize("empty", ["", " "])
def test_empty_log_dirs_are_not_those_of_log_dir(empty: str) -> None:
    """`--override log.dirs=$UNSET` stored the data in /tmp/kafka-logs."""
    for more in ({}, {"log.dir": "/tmp/kb-none"}):
        with pytest.raises(ConfigError) as caught:
            KafkaConfig.of({**GOOD, **more, "log.dirs": empty})
        assert [problem.split(":")[0] for problem in caught.value.problems] == ["log.dirs"]


@pytest.mark.parametrize("text", ["", " ", ",", "/tmp/kb-none,"])
def test_an_empty_name_in_log_dir_is_refused(text: str) -> None:
    given = {key: value for key, value in GOOD.items() if key != "log.dirs"}
    with pytest.raises(ConfigError) as caught:
        KafkaConfig.of({**given, "log.dir": text})
    assert {problem.split(":")[0] for problem in caught.value.problems} == {"log.dir"}


def test_log_dir_counts_where_log_dirs_is_not_given() -> None:
    given = {key: value for key, value in GOOD.items() if key != "log.dirs"}
    assert KafkaConfig.of(given).directories == ("/tmp/kafka-logs",)
    assert KafkaConfig.of({**given, "log.dir": "/a, /b"}).directories == ("/a", "/b")
    assert KafkaConfig.of({**GOOD, "log.dir": ""}).directories == ("/tmp/kb-none",)
