"""librdkafka's own words about a member's place in its group."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer

from tests.chaos.group_metadata import generation_and_member


def test_generation_and_member_are_read() -> None:
    content = b"CGMDv2:" + (513).to_bytes(4, "little") + b"group\0rdkafka-7\0\x01"
    assert generation_and_member(content) == (513, "rdkafka-7")


def test_the_library_that_is_installed_writes_it_so() -> None:
    consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0})
    assert generation_and_member(consumer.consumer_group_metadata()) == (-1, "")
    consumer.close()


def test_anything_else_is_refused() -> None:
    with pytest.raises(ValueError, match="group metadata"):
        generation_and_member(b"CGMDv3:....")
