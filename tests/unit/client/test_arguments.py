"""Every client of every API takes the same shapes of arguments; other shapes are refused with the right call."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

import kclient
from kclient import aio, tx
from kclient.arguments import config_text, consumer_arguments, names_in, partitions_in, poll_timeout
from kclient.errors import ClientClosed, SerializationError
from kclient.producer.record_serializer import RecordSerializer
from kclient.types import OffsetAndMetadata, TopicPartition
from tests.kit.scripted_cluster import now

SETTINGS = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}
T0 = TopicPartition("t", 0)
Make = Callable[..., Any]
APIS = pytest.mark.parametrize("api", [kclient, aio, tx], ids=["blocking", "async", "twisted"])


@pytest.fixture
def make() -> Iterator[Make]:
    """Create clients that are closed after the test; none of them connects."""
    made = []

    def create(api: Any, kind: str, *args: Any, **keywords: Any) -> Any:
        if api is not kclient:
            keywords["reactor"] = Clock()
        client = getattr(api, kind)(*args, **keywords)
        made.append((kind, client))
        return client

    yield create
    for kind, client in made:
        # A commit of what was read would be tried for seconds.
        closing = client.close(**{"autocommit": False} if kind == "Consumer" else {})
        if inspect.iscoroutine(closing):
            Deferred.fromCoroutine(closing)


@APIS
@pytest.mark.parametrize("kind", ["Producer", "Consumer", "AdminClient"])
def test_a_dict_comes_first_or_is_the_keyword_config_or_settings_are_keywords(
    api: Any, kind: str, make: Make
) -> None:
    for client in (
        make(api, kind, {"bootstrap.servers": "a:1"}),
        make(api, kind, config={"bootstrap.servers": "a:1"}),
        make(api, kind, bootstrap_servers=["a:1"]),
    ):
        core = getattr(client, "_core", client)
        assert core.config.bootstrap_servers == "a:1"


@APIS
def test_topics_are_a_list_or_strings(api: Any, make: Make) -> None:
    for consumer in (
        make(api, "Consumer", SETTINGS, ["t", "u"]),
        make(api, "Consumer", SETTINGS, "t", "u"),
        make(api, "Consumer", ["t", "u"], config=SETTINGS),
        make(api, "Consumer", "t", "u", bootstrap_servers="127.0.0.1:1", group_id="g"),
    ):
        core = getattr(consumer, "_core", consumer)
        assert core._subscription._topics == {"t", "u"}


@APIS
@pytest.mark.parametrize("kind", ["Producer", "Consumer", "AdminClient"])
def test_an_address_in_place_of_the_settings_is_refused_with_the_right_call(
    api: Any, kind: str, make: Make
) -> None:
    with pytest.raises(TypeError, match=rf'{kind}\({{"bootstrap\.servers": "'):
        make(api, kind, "localhost:9092")


@pytest.mark.parametrize(
    ("given", "config", "why"),
    [
        (("t", SETTINGS), None, "the configuration comes first"),
        ((SETTINGS, "t"), SETTINGS, "two configurations"),
        (("t",), "localhost:9092", "is no dict"),
        ((SETTINGS, [b"t"]), None, "b't' is no str"),
        ((SETTINGS, 5), None, "5 is no str"),
        ((SETTINGS, [TopicPartition("t", 0)]), None, "consumer.assign takes partitions"),
    ],
)
def test_what_cannot_be_right_is_refused(given: Any, config: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        consumer_arguments(given, config)


def test_one_name_is_a_list_of_one_and_not_its_letters() -> None:
    assert names_in("orders", "f(...)") == ["orders"]
    assert names_in({"a": 1, "b": 2}, "f(...)") == ["a", "b"]


def test_one_partition_is_a_list_of_one() -> None:
    tp = TopicPartition("t", 0)
    assert partitions_in(tp, "assign") == partitions_in([("t", 0)], "assign") == [tp]  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"'t' is no partition; expected assign\(\[TopicPartition"):
        partitions_in("t", "assign")  # type: ignore[arg-type]


@pytest.mark.parametrize("call", ["describe_topics", "wait_for_topics"])
def test_the_admin_client_takes_one_name(call: str, make: Make) -> None:
    """``delete_topics("ab")`` deleted the topics "a" and "b"."""
    admin = make(tx, "AdminClient", SETTINGS)
    getattr(admin, call)("ab").addErrback(lambda _: None)
    assert admin.cluster._wanted == {"ab"}


@pytest.mark.parametrize(
    "call",
    [
        "describe_topics",
        "delete_topics",
        "wait_for_topics",
        "describe_groups",
        "delete_groups",
        "describe_transactions",
        "fence_producers",
    ],
)
def test_the_admin_client_refuses_what_is_no_name(call: str, make: Make) -> None:
    failures: list[Any] = []
    getattr(make(tx, "AdminClient", SETTINGS), call)([b"ab"]).addErrback(failures.append)
    assert isinstance(failures[0].value, TypeError)
    assert f"b'ab' is no str; expected {call}([" in str(failures[0].value)


# --- timeouts


@pytest.mark.parametrize(
    ("keywords", "seconds"),
    [({}, 0), ({"timeout": 0.2}, 0.2), ({"timeout_ms": 200}, 0.2), ({"timeout": 0}, 0)],
)
def test_a_poll_waits_for_seconds_or_by_the_name_of_kafka_python_for_milliseconds(
    keywords: dict[str, float], seconds: float
) -> None:
    taken = {"timeout": None, "timeout_ms": None, **keywords}
    assert poll_timeout((), **taken) == seconds


@APIS
@pytest.mark.parametrize("call", ["poll", "poll_batches", "poll_arrow"])
def test_a_timeout_without_its_unit_is_refused(api: Any, call: str, make: Make) -> None:
    """poll(1.0) waits for a second in confluent-kafka, for a millisecond in kafka-python: here it did the latter."""
    consumer = make(api, "Consumer", SETTINGS)
    with pytest.raises(TypeError, match=r"poll\(1.0\): name the unit: poll\(timeout=1.0\)"):
        outcome(getattr(consumer, call)(1.0))
    with pytest.raises(TypeError, match="give one of timeout"):
        outcome(getattr(consumer, call)(timeout=1, timeout_ms=1000))


def outcome(called: Any) -> Any:
    """Return the result of a call that has ended; raise its error."""
    if inspect.iscoroutine(called):
        called = Deferred.fromCoroutine(called)
    return now(called) if isinstance(called, Deferred) else called


def test_every_timeout_of_a_public_method_is_named_for_seconds() -> None:
    """timeout_ms is only beside timeout; a time span in other units is no parameter of the clients."""
    for api in (kclient, tx):
        for kind in ("Producer", "Consumer", "AdminClient"):
            methods = inspect.getmembers(getattr(api, kind), inspect.isfunction)
            for name, method in methods:
                if name.startswith("_"):
                    continue
                parameters = set(inspect.signature(method).parameters)
                in_ms = {p for p in parameters if p.endswith("_ms") and "timestamp" not in p}
                assert in_ms <= {"timeout_ms"}, (api, kind, name)
                assert not in_ms or "timeout" in parameters


def test_a_new_topic_of_another_library_is_refused_with_the_right_call(make: Make) -> None:
    from confluent_kafka.admin import NewTopic

    admin = make(tx, "AdminClient", SETTINGS)
    with pytest.raises(TypeError, match=r'is no kclient\.NewTopic; create_topics\({"orders"'):
        outcome(admin.create_topics([NewTopic("t", 1, 1)]))


# --- what is refused at the call, not by a later poll or request


@APIS
@pytest.mark.parametrize(
    ("offset", "why"), [(1.0, "1.0 is no offset"), ("1", "'1' is no offset"), (-1, "is negative")]
)
def test_a_position_is_an_int(api: Any, offset: Any, why: str, make: Make) -> None:
    """A float was sent in every fetch from then on, and each failed with a traceback in the log."""
    consumer = make(api, "Consumer", SETTINGS)
    consumer.assign(T0)
    with pytest.raises((TypeError, ValueError), match=why):
        consumer.seek(T0, offset)
    with pytest.raises((TypeError, ValueError), match=why):
        consumer.assign(T0, {T0: offset})
    consumer.seek(T0, OffsetAndMetadata(5))


@pytest.mark.parametrize("partition", [("t", "0"), ("t", -1), ("t", 1.0), (b"t", 0)])
def test_a_partition_is_a_name_and_a_number(partition: Any) -> None:
    with pytest.raises(TypeError, match="is no partition"):
        partitions_in([partition], "assign")


@APIS
@pytest.mark.parametrize("offsets", [[T0], {T0: "3"}, {T0: 1.5}, 5])
def test_offsets_to_commit_are_a_dict_of_ints(api: Any, offsets: Any, make: Make) -> None:
    consumer = make(api, "Consumer", SETTINGS)
    with pytest.raises(TypeError, match=r"is no dict; expected {TopicPartition|is no offset"):
        outcome(consumer.commit(offsets))


@APIS
def test_topics_and_a_pattern_exclude_each_other(api: Any, make: Make) -> None:
    with pytest.raises(TypeError, match="either topics or a pattern"):
        make(api, "Consumer", SETTINGS).subscribe(["t"], pattern="t.*")


@pytest.mark.parametrize("api", [kclient, tx], ids=["blocking", "twisted"])
@pytest.mark.parametrize("topic", [b"t", None, 5])
def test_a_topic_that_is_no_str_is_refused_and_not_asked_for(
    api: Any, topic: Any, make: Make
) -> None:
    """Every later request for metadata failed, of all topics."""
    producer = make(api, "Producer", SETTINGS)
    with pytest.raises(TypeError, match="is no name of a topic"):
        producer.send(topic, b"v")
    with pytest.raises(TypeError, match="is no name of a topic"):
        outcome(producer.partitions_for(topic))
    assert not getattr(producer, "_core", producer).cluster._wanted


@pytest.mark.parametrize("timestamp", [-1, 1.5, 1 << 63, "now"])
def test_a_timestamp_that_no_record_can_have_is_refused_alone(timestamp: Any) -> None:
    """The batch failed, and with it the records of other sends."""
    with pytest.raises(SerializationError, match="is no time"):
        RecordSerializer(None, None).row("t", b"v", None, None, timestamp)


def test_a_null_is_not_serialized() -> None:
    """With json.dumps a tombstone was the text "null"; with str.encode every record needed a key."""
    row = RecordSerializer(str.encode, json.dumps).row
    assert row("t", None, None, None, 1) == (0, 1, None, None, ())
    assert row("t", [1], "k", None, 1) == (0, 1, b"k", b"[1]", ())


@pytest.mark.parametrize(
    ("value", "text"),
    [(86400000, "86400000"), (0.5, "0.5"), (True, "true"), ("a", "a"), (None, None)],
)
def test_a_config_may_be_a_number(value: Any, text: str | None) -> None:
    assert config_text(value) == text


def test_configs_are_those_of_resources(make: Make) -> None:
    admin = make(tx, "AdminClient", SETTINGS)
    with pytest.raises(TypeError, match=r"'orders' is no ConfigResource; expected ConfigRes"):
        outcome(admin.alter_configs({"orders": {"retention.ms": "1"}}))


def test_an_offset_by_name_is_one_of_three(make: Make) -> None:
    admin = make(tx, "AdminClient", SETTINGS)
    with pytest.raises(ValueError, match="'newest' is none of earliest, latest, max_timestamp"):
        outcome(admin.list_offsets({T0: "newest"}))


@pytest.mark.parametrize("headers", [[("a",)], [("a", b"b", b"c")], [5]])
def test_headers_are_pairs(headers: Any) -> None:
    with pytest.raises(SerializationError, match="is no pair of a name and bytes"):
        RecordSerializer(None, None).row("t", b"v", None, headers, None)


@APIS
@pytest.mark.parametrize(
    ("kind", "keyword"), [("Consumer", "value_deserializer"), ("Producer", "key_serializer")]
)
def test_a_serializer_is_a_function(api: Any, kind: str, keyword: str, make: Make) -> None:
    with pytest.raises(TypeError, match=f"{keyword}=5 is no function"):
        make(api, kind, SETTINGS, **{keyword: 5})


@APIS
@pytest.mark.parametrize("kind", ["Producer", "Consumer", "AdminClient"])
def test_a_closed_client_does_not_start(api: Any, kind: str, make: Make) -> None:
    client = make(api, kind, SETTINGS)
    outcome(client.close())
    with pytest.raises(ClientClosed):
        outcome(client.start())
