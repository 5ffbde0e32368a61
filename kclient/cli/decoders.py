"""Decoders of keys and values for `kclient consume -s key=...`: bytes -> text, number, or object."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Decoder = Callable[[bytes], Any]

_NUMBERS = {
    "int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q",
    "uint8": ">B", "uint16": ">H", "uint32": ">I", "uint64": ">Q", "float": ">f", "double": ">d",
}  # fmt: skip
"""Big-endian, as Kafka's serializers of numbers write them."""

NAMES = ("bytes", "hex", "json", "avro", *_NUMBERS)
HELP = "bytes, hex, json, avro, int32, int64, double, ... or numbers as '>q'"


def decoders(chosen: tuple[str, ...], schema: str | None) -> dict[str, Decoder]:
    """Return the decoders of "key" and "value" for -s options; *schema* alone decodes values. Raise ValueError."""
    found: dict[str, Decoder] = {}
    for text in chosen or (("value=avro",) if schema else ()):
        which, _, name = text.partition("=")
        if which not in ("key", "value"):
            raise ValueError(f"-s {text}: expected key=DECODER or value=DECODER")
        decoder = _decoder(name, schema)
        if decoder is not None:
            found[which] = decoder
    return found


def _decoder(name: str, schema: str | None) -> Decoder | None:
    if name == "bytes":
        return None
    if name == "json":
        return json.loads
    if name == "hex":
        return lambda data: data.hex()
    if name == "avro":
        if schema is None:
            raise ValueError("-s ...=avro needs --avro FILE.avsc, the schema to read with")
        return _avro(Path(schema))
    form = _NUMBERS.get(name, name)
    if form[:1] not in ("<", ">") or len(form) == 1:
        raise ValueError(
            f"{name!r} is no decoder: expected one of {', '.join(NAMES)}, or numbers such as '>q' or '<hI'"
        )
    try:
        numbers = struct.Struct(form)
    except struct.error as problem:
        raise ValueError(f"{name!r} is no decoder: {problem}") from None

    def unpacked(data: bytes) -> Any:
        if len(data) != numbers.size:
            raise ValueError(f"{len(data)} bytes; {name} has {numbers.size}")
        found = numbers.unpack(data)
        return found[0] if len(found) == 1 else list(found)

    return unpacked


def _avro(schema: Path) -> Decoder:
    from kclient.avro import AvroDeserializer
    from kclient.errors import SerializationError

    try:
        return AvroDeserializer(json.loads(schema.read_text(encoding="utf-8")))
    except ValueError as problem:
        raise ValueError(f"--avro {schema} is not JSON: {problem}") from None
    except SerializationError as problem:  # The schema is none, or the extra is missing.
        raise click.ClickException(str(problem)) from None
