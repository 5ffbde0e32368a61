"""Acknowledged records against consumed ones: each way to differ is found, for the records of every library."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import confluent_kafka
import pytest

from kclient import KafkaError, Record, RecordMetadata
from kclient.testing import Acknowledged, assert_acked_equals_consumed


def consumed(offset: int, value: bytes | None, key: bytes | None = None) -> Record[bytes, bytes]:
    return Record("t", 0, offset, 0, 0, key, value)


def at(offset: int) -> RecordMetadata:
    return RecordMetadata("t", 0, offset, 0)


def three() -> Acknowledged:
    acked = Acknowledged()
    for offset, value in enumerate((b"a", b"b", b"c")):
        acked.add(at(offset), value)
    return acked


ALL = [consumed(0, b"a"), consumed(1, b"b"), consumed(2, b"c")]


def test_what_was_acknowledged_passes() -> None:
    assert_acked_equals_consumed(three(), ALL)
    assert (len(three()), three().topics) == (3, ["t"])


@pytest.mark.parametrize(
    ("records", "line"),
    [
        (ALL[:2], "    t-0 offset 2: b'c'"),
        ([*ALL[:2], consumed(2, b"x")], "    t-0 offset 2: b'c' was acknowledged, b'x' consumed"),
        ([*ALL, ALL[0]], "    t-0 offset 0: consumed twice"),
        ([*ALL, consumed(3, b"a")], "    t-0 offset 3: b'a' is acknowledged at another offset"),
        ([*ALL, consumed(3, b"x")], "    t-0 offset 3: b'x' was not sent"),
        ([*ALL, consumed(3, None)], "    t-0 offset 3: None was not sent"),
    ],
    ids=["lost", "changed", "repeated", "repeated", "extra", "extra"],
)
def test_each_difference_is_found(
    request: pytest.FixtureRequest, records: list[Any], line: str
) -> None:
    kind = request.node.callspec.id.rstrip("01")
    with pytest.raises(AssertionError) as failure:
        assert_acked_equals_consumed(three(), records)
    head, counted, found = str(failure.value).splitlines()
    assert head == "consumed is not what was acknowledged"
    assert (counted, found) == (f"{kind}: 1 beside 3 acknowledged records", line)


def test_records_may_be_repeated_at_least_once_and_not_lost() -> None:
    assert_acked_equals_consumed(three(), [*ALL, *ALL, consumed(3, b"a")], at_least_once=True)
    with pytest.raises(AssertionError, match="lost"):
        assert_acked_equals_consumed(three(), ALL[1:], at_least_once=True)


def test_an_unknown_outcome_may_be_stored_once() -> None:
    acked = three()
    acked.unknown("d")
    assert_acked_equals_consumed(acked, ALL)
    assert_acked_equals_consumed(acked, [*ALL, consumed(3, b"d")])
    with pytest.raises(AssertionError, match="extra: 1 "):
        assert_acked_equals_consumed(acked, [*ALL, consumed(3, b"d"), consumed(4, b"d")])


def test_keys_are_compared_where_they_were_given() -> None:
    acked = Acknowledged()
    acked.add(at(0), b"v", b"k")
    acked.add(at(1))
    assert_acked_equals_consumed(acked, [consumed(0, b"v", b"k"), consumed(1, b"anything")])
    with pytest.raises(AssertionError, match="changed"):
        assert_acked_equals_consumed(acked, [consumed(0, b"v", b"other"), consumed(1, b"w")])


def test_nothing_acknowledged_is_no_success() -> None:
    with pytest.raises(AssertionError, match="no record was acknowledged"):
        assert_acked_equals_consumed(Acknowledged(), [])


def test_acknowledgements_that_contradict_each_other_are_found() -> None:
    acked = three()
    acked.add(at(2), b"z")
    acked.add(at(-1), b"acks=0")
    with pytest.raises(
        AssertionError, match=r"(?s)two records.*t-0 offset 2.*acks=0 there is none"
    ):
        assert_acked_equals_consumed(acked, [*ALL[:2], consumed(2, b"z"), consumed(-1, b"acks=0")])


def test_long_lists_are_cut() -> None:
    acked = Acknowledged()
    for offset in range(25):
        acked.add(at(offset), b"v")
    (counted, *lines) = acked.problems_with([])
    assert counted == "lost: 25 beside 25 acknowledged records"
    assert (len(lines), lines[-1]) == (11, "    and 15 more")


def test_values_without_a_hash_are_counted() -> None:
    acked = Acknowledged()
    acked.add(at(0), {"id": 1})
    acked.unknown({"id": 2})
    assert acked.problems_with([consumed(0, {"id": 1}), consumed(1, {"id": 2})]) == []  # type: ignore[arg-type]


def test_messages_of_confluent_kafka() -> None:
    acked = Acknowledged()
    message = confluent_kafka.Message(topic="t", partition=0, offset=0, value=b"a", key=b"k")
    acked.on_delivery(None, message)
    failed = confluent_kafka.Message(topic="t", partition=0, offset=-1001, value=b"b")
    acked.on_delivery(confluent_kafka.KafkaError(-192), failed)
    assert_acked_equals_consumed(acked, [message])
    assert_acked_equals_consumed(acked, [consumed(0, b"a", b"k"), consumed(1, b"b")])
    error = confluent_kafka.Message(error=confluent_kafka.KafkaError(-191))
    with pytest.raises(ValueError, match="a Message with an error is no record"):
        assert_acked_equals_consumed(acked, [error])


def of_kclient(acked: Acknowledged, *, fails: bool) -> None:
    future: Future[RecordMetadata] = Future()
    assert acked.track(future, "v") is future
    if fails:
        future.set_exception(KafkaError("lost"))
    else:
        future.set_result(at(0))


def of_kafka_python(acked: Acknowledged, *, fails: bool) -> None:
    with warnings.catch_warnings(action="ignore"):  # its import of schemas
        from kafka.future import Future as KafkaPythonFuture
        from kafka.producer.future import RecordMetadata as KafkaPythonMetadata

    future: Any = KafkaPythonFuture()
    acked.track(future, "v")
    if fails:
        future.failure(RuntimeError("lost"))
    else:
        future.success(KafkaPythonMetadata("t", 0, None, 0, -1, 0, 1, -1, -1))


def of_aiokafka(acked: Acknowledged, *, fails: bool) -> None:
    async def main() -> None:
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        acked.track(future, "v")
        if fails:
            future.cancel()
        else:
            future.set_result(at(0))
        await asyncio.sleep(0)

    asyncio.run(main())


@pytest.mark.parametrize("library", [of_kclient, of_kafka_python, of_aiokafka])
def test_futures_of_every_library(library: Callable[..., None]) -> None:
    acked = Acknowledged()
    library(acked, fails=False)
    assert_acked_equals_consumed(acked, [consumed(0, b"v")])
    with pytest.raises(AssertionError, match="repeated"):  # the outcome is no longer unknown
        assert_acked_equals_consumed(acked, [consumed(0, b"v"), consumed(1, b"v")])
    library(acked, fails=True)
    assert_acked_equals_consumed(acked, [consumed(0, b"v"), consumed(1, b"v")])


def test_what_is_no_record_and_no_future_is_refused() -> None:
    with pytest.raises(TypeError, match="str is no future: pass what send"):
        Acknowledged().track("v", "v")
    with pytest.raises(TypeError, match="int is no record: it needs topic, partition and offset"):
        Acknowledged().add(1)
