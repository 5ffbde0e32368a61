"""Settings as clients see and change them."""

import time

import pytest

from kbroker.config import KafkaConfig
from kbroker.metadata.core.config_entries import (
    BrokerLayers,
    Change,
    ConfigSource,
    broker_entries,
    changed_broker,
    changed_topic,
    check_remaining,
    default_broker_entries,
    effective_broker_config,
    topic_entries,
    usable_broker_config,
    usable_topic_config,
)
from kclient.wire.errors import InvalidConfig, InvalidRequest

SET, DELETE, APPEND, SUBTRACT = range(4)


def config(**given):
    base = {"zookeeper.connect": "z:2181", "broker.id": "1", "log.dirs": "/nowhere"}
    return KafkaConfig.of({**base, **{k.replace("_", "."): v for k, v in given.items()}})


def entry(name, overrides=None, *, static=None, dynamic=None, default=None):
    """Resolve one topic setting: (value, source, [(synonym, value, source)])."""
    static = static or config()
    layers = BrokerLayers(static, dynamic or {}, default or {})
    effective = static.with_values({**layers.dynamic_default, **layers.dynamic}).log_defaults
    effective = effective.overridden(overrides or {})
    (found,) = topic_entries(overrides or {}, effective, layers, [name])
    assert not found.read_only
    return found.value, found.source, [(s.name, s.value, s.source) for s in found.synonyms]


def test_a_default_is_named_after_the_place_it_comes_from():
    value, source, synonyms = entry("retention.ms")
    assert (value, source) == ("604800000", ConfigSource.DEFAULT)
    assert synonyms == [("log.retention.hours", "168", ConfigSource.DEFAULT)]


def test_a_setting_of_the_file_precedes_the_default():
    value, source, synonyms = entry("retention.ms", static=config(log_retention_minutes="1"))
    assert (value, source) == ("60000", ConfigSource.STATIC_BROKER)
    assert synonyms[0] == ("log.retention.minutes", "1", ConfigSource.STATIC_BROKER)


def test_the_nearest_place_decides():
    value, source, synonyms = entry(
        "retention.ms",
        {"retention.ms": "1"},
        static=config(log_retention_ms="4"),
        dynamic={"log.retention.ms": "2"},
        default={"log.retention.ms": "3"},
    )
    assert (value, source) == ("1", ConfigSource.DYNAMIC_TOPIC)
    assert [(v, int(s)) for _, v, s in synonyms] == [
        ("1", 1),
        ("2", 2),
        ("3", 3),
        ("4", 4),
        ("168", 5),
    ]


def test_a_setting_without_a_broker_level_has_its_own_default():
    value, source, synonyms = entry("leader.replication.throttled.replicas")
    assert (value, source) == ("", ConfigSource.DEFAULT)
    assert synonyms == [("leader.replication.throttled.replicas", "", ConfigSource.DEFAULT)]


def test_a_brokers_settings_show_whether_they_can_change():
    static = config(num_partitions="7")
    layers = BrokerLayers(static, {}, {})
    entries = {e.setting.name: e for e in broker_entries(static, layers)}
    assert entries["num.partitions"].value == "7"
    assert entries["num.partitions"].source is ConfigSource.STATIC_BROKER
    assert entries["num.partitions"].read_only
    assert not entries["min.insync.replicas"].read_only


def test_secrets_are_never_shown():
    layers = BrokerLayers(config(), {}, {})
    for found in broker_entries(config(), layers):
        if found.setting.sensitive:
            assert found.value is None
            assert all(s.value is None for s in found.synonyms)


def test_the_cluster_wide_defaults_are_only_what_is_set():
    layers = BrokerLayers(config(), {}, {"log.retention.ms": "3"})
    (found,) = default_broker_entries(layers)
    assert (found.setting.name, found.value, found.source) == ("log.retention.ms", "3", 3)


# -- changes -----------------------------------------------------------------------------------


def change(overrides, *changes):
    return changed_topic(overrides, [Change(*c) for c in changes], config().log_defaults)


def test_settings_are_set_and_deleted():
    assert change({"retention.ms": "1"}, ("retention.ms", DELETE, None)) == {}
    assert change({}, ("retention.ms", SET, "5")) == {"retention.ms": "5"}
    assert change({}, ("retention.ms", DELETE, None)) == {}


def test_lists_are_appended_to_and_subtracted_from():
    assert change({}, ("cleanup.policy", APPEND, "compact")) == {"cleanup.policy": "delete,compact"}
    both = {"cleanup.policy": "delete,compact"}
    assert change(both, ("cleanup.policy", SUBTRACT, "delete")) == {"cleanup.policy": "compact"}
    assert change(both, ("cleanup.policy", APPEND, "compact")) == both


def throttled(first, last):
    return ",".join(f"{n}:{n}" for n in range(first, last))


def test_a_list_does_not_grow_beyond_what_a_response_can_carry():
    name = "leader.replication.throttled.replicas"
    there = change({}, (name, SET, throttled(1000, 4200)))
    with pytest.raises(InvalidConfig, match="38999 bytes, the limit is 32767"):
        change(there, (name, APPEND, throttled(5000, 5700)))
    assert change(there, (name, SUBTRACT, throttled(1000, 4199))) == {name: "4199:4199"}


def test_long_lists_are_compared_in_one_turn():
    name = "leader.replication.throttled.replicas"
    there = {name: throttled(1000, 2000) + "," + throttled(100_000, 130_000)}
    before = time.thread_time()
    changed = change(there, (name, SUBTRACT, throttled(100_000, 130_000)))
    assert changed == {name: throttled(1000, 2000)}
    assert time.thread_time() - before < 1, "where each is compared with each it takes 5 s"


@pytest.mark.parametrize(
    ("name", "operation", "value", "error"),
    [
        ("retention.ms", SET, "soon", InvalidConfig),
        ("segment.bytes", SET, "1", InvalidConfig),
        ("retention.ms", SET, None, InvalidRequest),
        ("retention.ms", APPEND, "1", InvalidConfig),
        ("retention.ms", 9, "1", InvalidRequest),
        ("nonsense", SET, "1", InvalidConfig),
        ("cleanup.policy", SET, "", InvalidConfig),
        ("cleanup.policy", SUBTRACT, "delete", InvalidConfig),
        ("min.compaction.lag.ms", SET, "99999999999999999999", InvalidConfig),
    ],
)
def test_bad_changes_are_refused(name, operation, value, error):
    with pytest.raises(error):
        change({}, (name, operation, value))


def test_a_setting_changed_twice_is_refused():
    with pytest.raises(InvalidRequest):
        change({}, ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))


def test_what_is_wrong_already_does_not_stand_in_the_way():
    stored = {"retention.ms": "soon", "old.name": "x"}
    assert change(stored, ("segment.ms", SET, "5")) == {**stored, "segment.ms": "5"}
    assert change(stored, ("old.name", DELETE, None)) == {"retention.ms": "soon"}


def test_settings_that_do_not_go_together_are_refused():
    with pytest.raises(InvalidConfig, match=r"max\.compaction"):
        change({"max.compaction.lag.ms": "5"}, ("min.compaction.lag.ms", SET, "10"))


def test_fixed_broker_settings_cannot_be_changed_while_it_runs():
    with pytest.raises(InvalidRequest, match="dynamically"):
        changed_broker({}, [Change("num.partitions", SET, "3")], config())
    assert changed_broker({}, [Change("min.insync.replicas", SET, "2")], config()) == {
        "min.insync.replicas": "2"
    }
    with pytest.raises(InvalidConfig):
        changed_broker({}, [Change("min.insync.replicas", SET, "0")], config())


def test_the_advertised_listeners_are_those_of_one_broker():
    name, value = "advertised.listeners", "PLAINTEXT://broker.example:9092"
    asked = [Change(name, SET, value)]
    assert changed_broker({}, asked, config()) == {name: value}
    with pytest.raises(InvalidRequest, match="at default cluster level: advertised"):
        changed_broker({}, asked, config(), is_default=True)
    assert usable_broker_config({name: value}) == ({name: value}, [])
    assert usable_broker_config({name: value}, is_default=True)[0] == {}
    with pytest.raises(InvalidConfig, match="listener OTHER has no protocol"):
        changed_broker({}, [Change(name, SET, "OTHER://broker.example:9092")], config())


def test_the_listener_between_brokers_is_not_removed_from_a_running_broker():
    """The other brokers look for the one of server.properties: without it they reach this broker no more."""
    protocols = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,A:PLAINTEXT,B:PLAINTEXT"}
    for between in ("PLAINTEXT", "B"):
        static = config(**protocols, listeners=f"{between}://:9092")
        both = effective_broker_config(static, {"listeners": f"A://:9093,{between}://:9092"})[0]
        assert both.inter_broker_listener == between
        for running in (static, both):
            with pytest.raises(InvalidConfig, match=f"listeners: {between} is missing"):
                changed_broker({}, [Change("listeners", SET, "A://:9093")], running)
            with pytest.raises(InvalidConfig, match=f"advertised.listeners: {between} is missing"):
                changed_broker({}, [Change("advertised.listeners", SET, "A://a:9093")], both)
        # One that an earlier version accepted does not count at the next start.
        at_start, problems = effective_broker_config(static, {"listeners": "A://:9093"})
        assert (at_start.listeners, len(problems)) == (static.listeners, 1)


def test_a_setting_is_not_deleted_if_others_would_lose_their_effect():
    """As in Kafka, which checks what is left: here the listener B would close, and its clients with it."""
    static = config(listeners="PLAINTEXT://:9092")
    before = {
        "listeners": "PLAINTEXT://:9092,B://:9093",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,B:PLAINTEXT",
    }
    layers = BrokerLayers(static, before, {})
    without_map = {"listeners": before["listeners"]}
    with pytest.raises(InvalidConfig, match="listener B has no protocol"):
        check_remaining(layers, before, without_map)
    check_remaining(layers, before, {})
    # What does not go together already does not stand in the way.
    check_remaining(layers, without_map, {**without_map, "min.insync.replicas": "2"})
    # The default of the cluster is deleted for this broker's own settings, too.
    default = {"log.cleaner.dedupe.buffer.size": str(400 << 20)}
    layers = BrokerLayers(static, {"log.cleaner.threads": "200"}, default)
    with pytest.raises(InvalidConfig, match="below 1048576"):
        check_remaining(layers, default, {}, is_default=True)


def test_settings_that_need_each_other_keep_their_effect_beside_one_that_cannot_be_used():
    """In every order: message.max.bytes is above a socket.request.max.bytes that was lowered in the file."""
    static = config(listeners="PLAINTEXT://:9092", **{"socket.request.max.bytes": "2000000"})
    good = {
        "advertised.listeners": "PLAINTEXT://a:9092,B://a:9093",
        "listeners": "PLAINTEXT://:9092,B://:9093",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,B:PLAINTEXT",
    }
    for order in (list(good.items()), list(reversed(good.items()))):
        stored = {"message.max.bytes": "3000000", **dict(order)}
        found, problems = effective_broker_config(static, stored)
        assert {name: found.given.get(name) for name in stored} == {
            **good,
            "message.max.bytes": None,
        }
        assert [problem.partition(":")[0] for problem in problems] == ["message.max.bytes"]


def test_listeners_that_only_go_together_stay_beside_a_value_that_cannot_be_used():
    """Neither the listeners nor what is advertised can be used alone where a listener takes another one's place."""
    static = config(
        listeners="PLAINTEXT://:9092,C://:9093",
        **{
            "advertised.listeners": "PLAINTEXT://h:9092,C://h:9093",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,C:PLAINTEXT,D:PLAINTEXT",
        },
    )
    values = {
        "listeners": "PLAINTEXT://:9092,D://:9094",
        "advertised.listeners": "PLAINTEXT://h:9092,D://h:9094",
    }
    effective, problems = effective_broker_config(static, {**values, "log.retention.ms": "0"})
    assert [problem.partition(":")[0] for problem in problems] == ["log.retention.ms"]
    assert [each.listener for each in effective.advertised] == ["PLAINTEXT", "D"]
    assert effective.log_retention_ms is None


def test_settings_that_brokers_do_not_know_cost_nothing_beside_one_that_cannot_be_used(monkeypatch):
    """A configuration for each of some thousand took the reactor's thread for seconds."""
    built = []
    with_values = type(config()).with_values

    def counted(self, given):
        built.append(given)
        return with_values(self, given)

    monkeypatch.setattr(type(config()), "with_values", counted)
    unknown = {f"x{n}": "" for n in range(50)}
    effective, problems = effective_broker_config(config(), {**unknown, "log.retention.ms": "0"})
    assert len(problems) == 1
    assert len(built) < 10
    assert effective.given.keys() >= unknown.keys()


def test_deleting_a_setting_that_is_unknown_and_not_there_is_no_error():
    """MirrorMaker 2 deletes settings at its target that only its source knows."""
    assert change({}, ("nonsense", DELETE, None)) == {}
    assert changed_broker({}, [Change("nonsense", DELETE, None)], config()) == {}


def test_a_broker_stores_settings_that_it_does_not_know_and_shows_no_value():
    stored = changed_broker({}, [Change("my.reporter.key", SET, "secret")], config())
    assert stored == {"my.reporter.key": "secret"}
    assert usable_broker_config(stored) == (stored, [])
    assert effective_broker_config(config(), stored)[1] == []
    for layers, source in (
        (BrokerLayers(config(), stored, stored), ConfigSource.DYNAMIC_BROKER),
        (BrokerLayers(config(), {}, stored), ConfigSource.DYNAMIC_DEFAULT_BROKER),
        (BrokerLayers(config(my_reporter_key="secret"), {}, {}), ConfigSource.STATIC_BROKER),
    ):
        (found,) = broker_entries(config(), layers, ["my.reporter.key"])
        assert (found.value, found.source, found.setting.sensitive) == (None, source, True)
        assert {synonym.value for synonym in found.synonyms} == {None}
    (found,) = default_broker_entries(BrokerLayers(config(), {}, stored))
    assert found.value is None
    for operation in (APPEND, SUBTRACT):
        with pytest.raises(InvalidConfig, match="unknown"):
            changed_broker(stored, [Change("my.reporter.key", operation, "x")], config())


def test_unknown_settings_of_a_broker_do_not_fill_the_znode():
    many = [Change(f"name.{n}", SET, "x" * 90) for n in range(1000)]
    with pytest.raises(InvalidConfig, match="the limit is 65536"):
        changed_broker({}, many, config())
    assert len(changed_broker({}, many[:600], config())) == 600


def test_a_broker_setting_that_does_not_go_with_the_others_is_refused():
    with pytest.raises(InvalidConfig, match=r"socket\.request\.max\.bytes"):
        changed_broker({}, [Change("message.max.bytes", SET, "200000000")], config())


def test_a_broker_setting_that_does_not_go_with_the_others_is_left_out_alone():
    stored = {"message.max.bytes": "200000000", "min.insync.replicas": "2"}
    effective, problems = effective_broker_config(config(), stored)
    assert effective.min_insync_replicas == 2
    assert effective.message_max_bytes == config().message_max_bytes
    assert len(problems) == 1


def test_a_log_directory_that_fails_does_not_undo_dynamic_settings(tmp_path):
    directory = tmp_path / "log"
    static = config(log_dirs=str(directory))
    directory.touch()  # as a disk that was mounted read-only: a new start would refuse it
    effective, problems = effective_broker_config(static, {"min.insync.replicas": "2"})
    assert (effective.min_insync_replicas, problems) == (2, [])


def test_a_topic_setting_that_does_not_go_with_a_default_is_left_out_alone():
    """The broker's default may have changed since the topic's setting was accepted."""
    stored = {
        "max.compaction.lag.ms": "5",
        "min.insync.replicas": "2",
        "min.compaction.lag.ms": "9",
    }
    usable, problems = usable_topic_config(stored, config().log_defaults)
    assert usable == {"max.compaction.lag.ms": "5", "min.insync.replicas": "2"}
    assert len(problems) == 1


def test_what_zookeeper_holds_is_used_as_far_as_it_can_be():
    stored = {"retention.ms": "soon", "segment.ms": "5", "nonsense": "1"}
    usable, problems = usable_topic_config(stored, config().log_defaults)
    assert usable == {"segment.ms": "5"}
    assert len(problems) == 2
    usable, problems = usable_broker_config(
        {"num.partitions": "4", "min.insync.replicas": "2", "num.replica.fetchers": "no"}
    )
    assert usable == {"min.insync.replicas": "2"}
    assert len(problems) == 2
