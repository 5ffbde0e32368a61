"""Creates the functions that read and write a struct from its description.

Theory of operation
===================
A message, and every struct inside it, is a dataclass with a class attribute ``WIRE``. It describes the encoding of the
fields, one line per field in wire order, in the syntax of Kafka's message definitions::

    "rack string 1+ null=1+"                   name, type, versions that have it, versions with null
    "supported_features []SupportedFeatureKey 3+ tag=0"      a tagged field (KIP-482)

A type is a primitive, ``string``, ``bytes``, the class name of a struct in the same module, or ``[]`` and one of these.
One dataclass serves all versions: a field that a version lacks is not written, and has its default after reading. For
each (struct, version) in use a reader and a writer are generated once as Python source, as `dataclasses` does for
``__init__``. Adjacent numbers and the length after them become one `struct` call; this makes a Metadata response of
10,000 partitions affordable.

Rules of reading, for any bytes:
1. A count is compared with the remaining bytes, at the element's smallest size, before anything is allocated. A message
   may not have more elements in all than its reader allows (`TooManyElements`). Two bytes of an element can become a
   hundred of an object. Elements are the values of every array and the tagged fields.
2. null where the version has no null, negative or too large sizes, invalid UTF-8, varints above five bytes, tags out of
   order: `MalformedMessage` only.
3. Unknown tagged fields are skipped.

One exception: a bool is any byte but 0, as in Kafka's reader.
"""

import struct
from collections.abc import Iterator
from typing import Any

from kclient.wire.errors import MalformedMessage
from kclient.wire.primitives import Buffer
from kclient.wire.reading import reader
from kclient.wire.structs import WireStruct
from kclient.wire.writing import step_writer, writer

_READ_ERRORS = (struct.error, IndexError, ValueError, OverflowError, MemoryError)
_WRITE_ERRORS = (struct.error, AttributeError, TypeError, ValueError, OverflowError)


def read_struct(
    cls: type[WireStruct],
    version: int,
    flexible: bool,
    buf: Buffer,
    pos: int,
    max_elements: int,
) -> tuple[Any, int]:
    """Read a *cls* at *pos*; return it and the position after it. Raise MalformedMessage if it is invalid."""
    try:
        return reader(cls, version, flexible)(buf, pos, len(buf), [max_elements, max_elements])
    except _READ_ERRORS as error:
        raise MalformedMessage(f"{cls.__name__} v{version}: {error}") from None


def read_message(
    cls: type[WireStruct],
    version: int,
    flexible: bool,
    buf: Buffer,
    pos: int,
    max_elements: int,
) -> Any:
    """Read a *cls* from *pos* to the end of *buf*; remaining bytes raise MalformedMessage, too."""
    message, stop = read_struct(cls, version, flexible, buf, pos, max_elements)
    if stop != len(buf):
        raise MalformedMessage(f"{cls.__name__} v{version}: {len(buf) - stop} bytes too many")
    return message


def write_message(
    cls: type[WireStruct], version: int, flexible: bool, out: bytearray, message: object
) -> None:
    """Append *message*, a *cls*; raise ValueError with its name if a field's value cannot be written."""
    if type(message) is not cls:
        raise ValueError(f"expected a {cls.__name__}, got a {type(message).__name__}")
    try:
        writer(cls, version, flexible)(out, message)
    except _WRITE_ERRORS as error:
        raise ValueError(f"{cls.__name__} v{version} cannot be written: {error}") from error


def write_in_steps(
    cls: type[WireStruct], version: int, flexible: bool, out: bytearray, message: object
) -> Iterator[None]:
    """Like `write_message`, with a yield after every struct of the arrays of *message* itself.

    At a yield the caller may remove the content of *out*.
    """
    if type(message) is not cls:
        raise ValueError(f"expected a {cls.__name__}, got a {type(message).__name__}")
    try:
        yield from step_writer(cls, version, flexible)(out, message)
    except _WRITE_ERRORS as error:
        raise ValueError(f"{cls.__name__} v{version} cannot be written: {error}") from error
