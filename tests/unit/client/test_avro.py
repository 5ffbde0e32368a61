"""Avro values: both frames, evolution, and errors."""

from __future__ import annotations

from typing import Any

import pytest

from kclient.avro import AvroDeserializer, AvroSerializer, fingerprint
from kclient.errors import SerializationError

V1: dict[str, Any] = {
    "type": "record",
    "name": "User",
    "fields": [{"name": "name", "type": "string"}],
}
V2: dict[str, Any] = {
    "type": "record",
    "name": "User",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "age", "type": ["null", "int"], "default": None},
    ],
}


def test_a_value_round_trips_in_single_object_encoding() -> None:
    data = AvroSerializer(V1)({"name": "Ann"})
    assert data is not None
    assert data[:2] == b"\xc3\x01"
    assert AvroDeserializer(V1)(data) == {"name": "Ann"}


def test_the_fingerprint_is_the_one_of_the_specification() -> None:
    # From the Avro specification: the CRC-64-AVRO of "int" is 0x7275d51a3f395c8f, little-endian on the wire.
    assert fingerprint('"int"'.strip('"')).hex() == "8f5c393f1ad57572"


def test_a_schema_id_gives_the_confluent_frame() -> None:
    data = AvroSerializer(V1, schema_id=7)({"name": "Ann"})
    assert data is not None
    assert data[:5] == b"\x00\x00\x00\x00\x07"
    assert AvroDeserializer(V1)(data) == {"name": "Ann"}
    assert AvroDeserializer(V2, ids={7: V1})(data) == {"name": "Ann", "age": None}


def test_an_older_writer_is_read_with_the_default_of_the_new_field() -> None:
    old = AvroSerializer(V1)({"name": "Ann"})
    assert AvroDeserializer(V2, writers=[V1])(old) == {"name": "Ann", "age": None}


def test_null_is_a_tombstone_both_ways() -> None:
    assert AvroSerializer(V1)(None) is None
    assert AvroDeserializer(V1)(None) is None


@pytest.mark.parametrize("data", [b"", b"plain text", b"\xc3\x01short"])
def test_bytes_without_a_frame_are_refused(data: bytes) -> None:
    with pytest.raises(SerializationError, match="without an Avro frame"):
        AvroDeserializer(V1)(data)


def test_an_unknown_writer_is_named_by_its_fingerprint() -> None:
    data = AvroSerializer(V2)({"name": "Ann", "age": 3})
    with pytest.raises(SerializationError, match=fingerprint(V2).hex()):
        AvroDeserializer(V1)(data)


def test_a_value_that_does_not_fit_its_schema_is_an_error() -> None:
    with pytest.raises(SerializationError, match="does not fit"):
        AvroSerializer(V1)({"name": 3})


def test_bytes_left_over_are_refused() -> None:
    data = AvroSerializer(V1)({"name": "Ann"})
    assert data is not None
    with pytest.raises(SerializationError, match="left over"):
        AvroDeserializer(V1)(data + b"x")


def test_no_schema_is_refused() -> None:
    with pytest.raises(SerializationError, match="not an Avro schema"):
        AvroSerializer({"type": "nonsense"})
