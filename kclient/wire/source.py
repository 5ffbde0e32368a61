"""Generated Python source: the parts from which readers and writers of structs are built."""

import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

from kclient.wire.primitives import (
    error_text,
    malformed,
    next_tag,
    skip_tags,
    too_many,
    uvarint_tail,
    write_uvarint,
)
from kclient.wire.structs import Field, WireStruct

NO_UUID = bytes(16)
MAX_STRING = 0x7FFF


class Source:
    """The lines of a generated function, and the fixed-size values that are to be merged."""

    def __init__(self, cls: type[WireStruct], version: int, flexible: bool) -> None:
        self.cls = cls
        self.version = version
        self.flexible = flexible
        self.lines: list[str] = []
        self.indent = 1
        self.run: list[tuple[str, str]] = []
        self.names: dict[str, Any] = {
            "UUID": UUID,
            "NO_UUID": NO_UUID,
            "error_text": error_text,
            "malformed": malformed,
            "too_many": too_many,
            "uvarint_tail": uvarint_tail,
            "write_uvarint": write_uvarint,
            "skip_tags": skip_tags,
            "next_tag": next_tag,
            "unpack_from": struct.unpack_from,
            "pack": struct.pack,
        }
        self._serial = 0

    def add(self, line: str) -> None:
        """Append a line at the current indentation."""
        self.lines.append("    " * self.indent + line)

    def fresh(self, prefix: str) -> str:
        """Return an unused name."""
        self._serial += 1
        return f"{prefix}{self._serial}"

    def bind(self, prefix: str, value: object) -> str:
        """Make *value* available to the function; return its name there."""
        name = self.fresh(prefix)
        self.names[name] = value
        return name

    def where(self, field: Field) -> str:
        """Return a string literal with the field's name, for errors."""
        return repr(f"{self.cls.__name__}.{field.name}")

    def merged(self) -> struct.Struct:
        """Return one `struct.Struct` for the values in `run`."""
        return struct.Struct(">" + "".join(code for code, _ in self.run))

    def function(self, signature: str) -> Callable[..., Any]:
        """Compile the lines to a function of *signature*, e.g. "read(buf, pos, end, left)"."""
        source = f"def {signature}:\n" + "\n".join(self.lines or ["    pass"])
        label = f"<{signature.partition('(')[0]} {self.cls.__name__} v{self.version}>"
        # The source is made of WIRE lines of our own modules, never of input.
        exec(compile(source, label, "exec"), self.names)  # noqa: S102
        made: Callable[..., Any] = self.names[signature.partition("(")[0]]
        return made
