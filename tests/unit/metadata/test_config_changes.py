"""Operations on settings (KIP-339): what each does to a list, and what is refused, as Kafka 3.9 does both."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from kbroker.config.kafka_config import KafkaConfig
from kbroker.config.log import LogConfig
from kbroker.metadata.core.config_entries import (
    Change,
    ConfigOperation,
    changed_broker,
    changed_topic,
)
from kclient.wire.errors import InvalidConfig, InvalidRequest, KafkaError

SET, DELETE, APPEND, SUBTRACT = ConfigOperation
POLICY, SEGMENT = "cleanup.policy", "segment.bytes"
Changed = Callable[[Mapping[str, str], list[Change]], dict[str, str]]


def of_topic(overrides: Mapping[str, str], changes: list[Change]) -> dict[str, str]:
    return changed_topic(overrides, changes, LogConfig())


def of_broker(overrides: Mapping[str, str], changes: list[Change]) -> dict[str, str]:
    return changed_broker(overrides, changes, KafkaConfig())


@pytest.mark.parametrize(
    ("before", "operation", "value", "after"),
    [
        (None, APPEND, "compact", "delete,compact"),  # to the default
        ("compact", APPEND, "delete", "compact,delete"),
        ("compact", APPEND, "compact", "compact"),
        ("compact", APPEND, " delete , compact", "compact,delete"),
        ("compact", APPEND, "", "compact"),
        ("compact,delete", SUBTRACT, "delete", "compact"),
        ("compact", SUBTRACT, "delete", "compact"),
        ("compact", SET, "delete", "delete"),
        ("compact", DELETE, "ignored", None),
        ("compact", DELETE, None, None),
        (None, DELETE, None, None),
    ],
)
def test_a_list_is_changed(
    before: str | None, operation: int, value: str | None, after: str | None
) -> None:
    overrides = {SEGMENT: "1000000"} | ({} if before is None else {POLICY: before})
    expected = {SEGMENT: "1000000"} | ({} if after is None else {POLICY: after})
    assert of_topic(overrides, [Change(POLICY, operation, value)]) == expected


@pytest.mark.parametrize("changed", [of_topic, of_broker])
@pytest.mark.parametrize("operation", [SET, APPEND, SUBTRACT])
def test_null_is_no_value(changed: Changed, operation: int) -> None:
    name = POLICY if changed is of_topic else "log.cleanup.policy"
    with pytest.raises(InvalidRequest, match="null is no value"):
        changed({}, [Change(name, operation, None)])


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ([Change(SEGMENT, APPEND, "1")], InvalidConfig, "segment.bytes: is not a list"),
        ([Change(SEGMENT, SUBTRACT, "1")], InvalidConfig, "segment.bytes: is not a list"),
        ([Change("a.b", APPEND, "1")], InvalidConfig, "'a.b': unknown topic setting"),
        ([Change("a.b", SET, "1")], InvalidConfig, "'a.b': unknown topic setting"),
        ([Change(POLICY, 4, "compact")], InvalidRequest, "there is no operation 4"),
        ([Change(POLICY, -1, "compact")], InvalidRequest, "there is no operation -1"),
        ([Change(POLICY, APPEND, "shred")], InvalidConfig, "shred"),
        (
            [Change(POLICY, SET, "compact"), Change(POLICY, APPEND, "delete")],
            InvalidRequest,
            "a setting is changed twice",
        ),
    ],
)
def test_a_change_is_refused(changes: list[Change], error: type[KafkaError], text: str) -> None:
    with pytest.raises(error, match=text):
        of_topic({POLICY: "delete"}, changes)


def test_a_list_may_be_emptied_where_empty_is_a_value() -> None:
    throttled = "leader.replication.throttled.replicas"
    found = of_topic({throttled: "0:1,1:2"}, [Change(throttled, SUBTRACT, "0:1,1:2")])
    assert found == {throttled: ""}
    with pytest.raises(InvalidConfig, match=POLICY):
        of_topic({POLICY: "compact"}, [Change(POLICY, SUBTRACT, "compact")])
