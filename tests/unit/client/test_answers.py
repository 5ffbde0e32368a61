"""The text of errors in responses: the subject once, the cause, and a hint that is not there already."""

from __future__ import annotations

import pytest

from kclient.admin.configs import ConfigResource, ResourceType
from kclient.cli.answers import about
from kclient.cli.offset_spec import parse_offsets
from kclient.net.answers import error_of
from kclient.types import TopicPartition
from kclient.wire.errors import ErrorCode


@pytest.mark.parametrize(
    ("code", "subject", "message", "text"),
    [
        (36, "topic 'orders'", "topic orders already exists", "topic orders already exists"),
        (36, "topic 'orders'", "Topic 'orders' already exists.", "Topic 'orders' already exists."),
        (36, "topic 'orders'", "topic orders-eu exists", "topic 'orders': topic orders-eu exists"),
        (40, "topic 'x'", "foo: unknown topic setting", "topic 'x': foo: unknown topic setting"),
        (
            17,
            "topic 'a b'",
            "topic name 'a b' has other characters",
            "topic name 'a b' has other characters",
        ),
        (37, "topic 't'", "topic t has 2 partitions", "topic t has 2 partitions"),
        (42, TopicPartition("t", 0), "no log of partition t-0", "no log of partition t-0"),
        (42, TopicPartition("t", 0), "refused", "t-0: refused"),
        (40, ConfigResource(ResourceType.TOPIC, "t"), "bad", "topic 't': bad"),
    ],
)
def test_the_subject_of_an_error_is_there_once(
    code: int, subject: object, message: str, text: str
) -> None:
    assert str(error_of(code, subject, message)) == f"{ErrorCode(code).name}: {text}"
    assert str(error_of(code, subject, f"{ErrorCode(code).name}: {message}")).endswith(f": {text}")


def test_a_line_of_the_command_has_the_name_once() -> None:
    exists = error_of(36, "topic 'orders'", "topic orders already exists")
    assert about("orders", exists) == "TOPIC_ALREADY_EXISTS: topic orders already exists"
    refused = error_of(36, "creating", "it exists")
    assert about("orders", refused) == "orders: TOPIC_ALREADY_EXISTS: creating: it exists"


@pytest.mark.parametrize(
    ("spec", "text"), [("junk", "'junk' is not an"), ("junk:7", "'junk' in 'junk:7' is not an")]
)
def test_an_offset_that_is_none_is_quoted_once(spec: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}"):
        parse_offsets(spec, now_ms=0)
