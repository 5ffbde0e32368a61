"""Requests that are answered in several turns of the reactor: what they answer is what small ones do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kbroker.apis.api00_produce import LARGE_PARTITIONS
from kbroker.apis.api01_fetch import LARGE
from kclient.wire import messages
from kclient.wire.error_codes import ErrorCode
from kclient.wire.fetch import FetchPartition
from kclient.wire.schema.describe_groups import DescribedGroup, DescribeGroupsResponse
from kclient.wire.versions import ApiKey
from tests.kit.logs import batch_of
from tests.unit.apis.kit import ApiBroker

MANY = LARGE + 1


def want(index: int, offset: int = 0) -> FetchPartition:
    return FetchPartition(index, offset, 1 << 20)


def after_turns(broker: ApiBroker, answer: Any) -> Any:
    """Return what *answer* fires with once the clock has been turned."""
    assert isinstance(answer, Deferred)
    assert not answer.called, "answered in the turn in which it came"
    for _ in range(10):
        broker.clock.advance(0)
    assert answer.called
    return answer.result


def answers_of(answer: Any) -> list[Any]:
    """Return a list that will have what *answer* fires with."""
    answers: list[Any] = []
    answer.addCallback(answers.append)
    return answers


@pytest.fixture
def led(broker: ApiBroker) -> ApiBroker:
    broker.lead("t", 3)
    return broker


def test_a_large_produce_has_an_outcome_for_every_batch(led: ApiBroker) -> None:
    count = LARGE_PARTITIONS + 100
    outcomes = after_turns(led, led.produce(*[batch_of(1000, value=bytes(100))] * count))
    assert [each.index for each in outcomes] == list(range(count))
    assert [each.error_code for each in outcomes[:3]] == [0, 0, 0]
    assert {each.error_code for each in outcomes[3:]} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert led.replica_manager.partition("t", 2).log.log_end_offset == 1  # type: ignore[union-attr]


def test_a_large_fetch_is_answered_for_all_its_partitions(led: ApiBroker) -> None:
    led.produce(batch_of(1000), batch_of(1000))
    response = after_turns(led, led.fetch(*(want(n % 3) for n in range(MANY))))
    answers = response.topics[0].partitions
    assert [each.partition for each in answers] == [n % 3 for n in range(MANY)]
    assert [each.records_size > 0 for each in answers[:3]] == [True, True, False]


def test_a_large_fetch_waits_for_records_and_is_answered_after_the_first(led: ApiBroker) -> None:
    wanted = [want(n % 3) for n in range(MANY)]
    answers = answers_of(led.fetch(*wanted, max_wait_ms=500))
    for _ in range(10):
        led.clock.advance(0.01)
    assert not answers
    led.produce(batch_of(1000))
    for _ in range(10):
        led.clock.advance(0)
    assert answers[0].topics[0].partitions[0].records_size > 0


def test_a_large_fetch_is_answered_when_its_time_is_over(led: ApiBroker) -> None:
    answers = answers_of(led.fetch(*(want(n % 3) for n in range(MANY)), max_wait_ms=500))
    led.clock.advance(0)
    led.clock.advance(0.4)
    assert not answers
    led.clock.advance(0.2)
    assert len(answers[0].topics[0].partitions) == MANY


def test_a_session_begun_by_a_large_fetch_misses_nothing(led: ApiBroker) -> None:
    wanted = [want(n) for n in range(MANY)]
    first = after_turns(led, led.fetch(*wanted, session_epoch=0))
    assert first.session_id
    led.produce(batch_of(1000))
    response = led.fetch(topics=[], session_id=first.session_id, session_epoch=1, max_wait_ms=0)
    found = {each.partition for each in response.topics[0].partitions if each.records_size}
    assert found == {0}


def test_a_large_fetch_releases_its_files_when_its_connection_is_lost(led: ApiBroker) -> None:
    answer = led.fetch(*(want(n % 3) for n in range(MANY)), max_wait_ms=500)
    answer.addErrback(lambda _: None)
    led.clock.advance(0.01)
    assert len(led.replica_manager.purgatory) == 1
    answer.cancel()
    assert len(led.replica_manager.purgatory) == 0


@pytest.mark.parametrize("version", [0, 5])
def test_an_answer_in_steps_is_the_answer_at_once(version: int, tmp_path: Path) -> None:
    groups = [
        DescribedGroup(group_id=f"g{number}", protocol_type="consumer" * 500)
        for number in range(100)
    ]
    response = DescribeGroupsResponse(groups=groups)
    whole = messages.encode_response(ApiKey.DESCRIBE_GROUPS, version, 7, response)
    parts: list[bytes] = []
    steps = messages.encode_response_in_steps(ApiKey.DESCRIBE_GROUPS, version, 7, response, parts)
    assert len(list(steps)) == 101
    assert b"".join(parts) == whole
    assert len(parts) > 1
