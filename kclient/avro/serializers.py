"""Serializer and deserializer of Avro values. See the package for the two frames."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from kclient.errors import SerializationError

Schema = Mapping[str, Any] | list[Any] | str
"""An Avro schema as JSON values, or as its JSON text."""

_CONFLUENT = struct.Struct(">bI")
_SINGLE_OBJECT: Final = b"\xc3\x01"
_FINGERPRINT_SIZE = 8


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError as problem:
        raise SerializationError(
            "Avro needs fastavro, which is not installed", hint="pip install 'kbroker[avro]'"
        ) from problem
    return fastavro


def _parsed(schema: Schema) -> Any:
    fastavro = _fastavro()
    loaded = (
        json.loads(schema) if isinstance(schema, str) and schema.lstrip()[:1] in "{[" else schema
    )
    try:
        return fastavro.parse_schema(loaded)
    except Exception as problem:
        raise SerializationError(f"not an Avro schema: {problem}") from problem


def fingerprint(schema: Schema) -> bytes:
    """Return the 8-byte CRC-64-AVRO fingerprint of *schema*, as in single-object encoding."""
    fastavro = _fastavro()
    canonical = fastavro.schema.to_parsing_canonical_form(_parsed(schema))
    # fastavro returns the hex of the number's little-endian bytes, the wire format.
    return bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))


class Frame(NamedTuple):
    """What precedes a value: the name of its writer's schema, which is either an id or a fingerprint."""

    size: int
    schema_id: int | None = None
    fingerprint: bytes | None = None

    def __str__(self) -> str:
        """Return the name of the writer's schema, as errors show it."""
        if self.fingerprint is None:
            return f"schema id {self.schema_id}"
        return f"fingerprint {self.fingerprint.hex()}"


def frame_of(data: bytes) -> Frame:
    """Return the frame at the start of *data*; raise SerializationError if there is none."""
    whole = len(_SINGLE_OBJECT) + _FINGERPRINT_SIZE
    if data[:2] == _SINGLE_OBJECT and len(data) >= whole:
        return Frame(whole, fingerprint=bytes(data[2:whole]))
    if data[:1] == b"\x00" and len(data) >= _CONFLUENT.size:
        return Frame(_CONFLUENT.size, schema_id=_CONFLUENT.unpack_from(data)[1])
    raise SerializationError(
        f"{len(data)} bytes without an Avro frame (neither 00 + schema id nor c3 01 + fingerprint)"
    )


class AvroSerializer:
    """Converts values to framed Avro: Confluent's frame with a *schema_id*, single-object encoding without one."""

    def __init__(self, schema: Schema, *, schema_id: int | None = None) -> None:
        self._write = _fastavro().schemaless_writer
        self._schema = _parsed(schema)
        if schema_id is None:
            self._frame = _SINGLE_OBJECT + fingerprint(schema)
        else:
            self._frame = _CONFLUENT.pack(0, schema_id)

    def __call__(self, value: Any, context: Any = None) -> bytes | None:
        """Return *value* as bytes, None (a tombstone) for None; raise SerializationError if it does not fit."""
        if value is None:
            return None
        out = io.BytesIO()
        out.write(self._frame)
        try:
            self._write(out, self._schema, value)
        except Exception as problem:
            raise SerializationError(
                f"the value does not fit its Avro schema: {problem}"
            ) from problem
        return out.getvalue()


class AvroDeserializer:
    """Decodes framed Avro to the shape of *schema*.

    *writers* are further schemas of writers (single-object encoding); *ids* are the schemas of a registry by id
    (Confluent's frame). With one schema only, an unknown Confluent id is decoded with that one.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        writers: Iterable[Schema] = (),
        ids: Mapping[int, Schema] | None = None,
    ) -> None:
        self._read = _fastavro().schemaless_reader
        self._reader = _parsed(schema)
        self._by_fingerprint = {fingerprint(each): _parsed(each) for each in (schema, *writers)}
        self._by_id = None if ids is None else {key: _parsed(each) for key, each in ids.items()}

    def __call__(self, data: bytes | None, context: Any = None) -> Any:
        """Return the value in *data*; raise SerializationError for an unknown schema or frame."""
        if data is None:
            return None
        writer, start = self._writer_of(data)
        stream = io.BytesIO(data)
        stream.seek(start)
        try:
            value = self._read(stream, writer, self._reader)
        except Exception as problem:
            raise SerializationError(f"not a value of its Avro schema: {problem!r}") from problem
        rest = stream.read()
        if rest:
            raise SerializationError(f"{len(rest)} bytes are left over after the Avro value")
        return value

    def _writer_of(self, data: bytes) -> tuple[Any, int]:
        frame = frame_of(data)
        if frame.fingerprint is not None:
            if frame.fingerprint not in self._by_fingerprint:
                raise SerializationError(
                    f"written with an unknown schema ({frame})",
                    hint="pass the schema of its writer in *writers*",
                )
            return self._by_fingerprint[frame.fingerprint], frame.size
        if self._by_id is None:
            return self._reader, frame.size
        if frame.schema_id not in self._by_id:
            raise SerializationError(
                f"written with {frame}, which is unknown", hint="add it to ids"
            )
        return self._by_id[frame.schema_id], frame.size
