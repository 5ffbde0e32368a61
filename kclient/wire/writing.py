"""Writers: from a struct to its bytes in one version (see `kclient.wire.codec`)."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from kclient.wire.source import MAX_STRING, Source
from kclient.wire.structs import FIXED, Field, WireStruct, fields_of, nested_struct

Writer = Callable[[bytearray, Any], None]
"""Append the object to the bytearray."""

StepWriter = Callable[[bytearray, Any], Iterator[None]]
"""Append the object to the bytearray, and yield after every struct of its own arrays."""


class _WriterSource(Source):
    steps = False
    """Whether to yield after every struct of an array."""

    def flush(self) -> None:
        if self.run:
            pack = self.bind("pack_", self.merged().pack)
            values = ", ".join(expression for _, expression in self.run if expression)
            self.add(f"out += {pack}({values})")
            self.run = []

    def length(self, code: str, expression: str) -> None:
        """Emit the writing of a size or count; *expression* is -1 for null."""
        if self.flexible:
            self.flush()
            name = self.fresh("n")
            self.add(f"{name} = {expression} + 1")
            self.add(f"if {name} < 128: out.append({name})")
            self.add(f"else: write_uvarint(out, {name})")
        else:
            self.run.append((code, expression))
            self.flush()

    def value(self, field: Field, expression: str) -> None:
        nullable = field.may_be_null(self.version)
        if field.is_array:
            self.array(field, expression, nullable)
        elif field.type == "uuid":
            name = self.fresh("u")
            self.add(f"{name} = {expression}")
            self.run.append(("16s", f"NO_UUID if {name} is None else {name}.bytes"))
        elif field.type in FIXED:
            self.run.append((FIXED[field.type][0], expression))
        elif field.type in ("string", "bytes"):
            self.text(field, expression, nullable)
        elif nullable:
            self.flush()
            self.add(f"if {expression} is None: out.append(255)")
            self.add("else:")
            self.indent += 1
            self.add("out.append(1)")
            self.struct(field, expression)
            self.indent -= 1
        else:
            self.struct(field, expression)

    def struct(self, field: Field, expression: str) -> None:
        self.flush()
        nested = writer(nested_struct(self.cls, field.type), self.version, self.flexible)
        self.add(f"{self.bind('write_', nested)}(out, {expression})")

    def text(self, field: Field, expression: str, nullable: bool) -> None:
        data = self.fresh("s")
        is_string = field.type == "string"
        encoded = f"{expression}.encode()" if is_string else expression
        if field.name == "error_message":
            encoded = f"error_text({expression})"
        size = f"len({data})"
        if nullable:
            null = self.fresh("null")
            self.add(f"{null} = {expression} is None")
            encoded = f"b'' if {null} else {encoded}"
            size = f"(-1 if {null} else len({data}))"
        self.add(f"{data} = {encoded}")
        if is_string and self.flexible:
            self.add(f"if len({data}) > {MAX_STRING}: raise ValueError('string too long')")
        self.length("h" if is_string else "i", size)
        self.add(f"out += {data}")

    def array(self, field: Field, expression: str, nullable: bool) -> None:
        values = self.fresh("a")
        self.add(f"{values} = {expression}")
        if nullable:
            self.length("i", f"(-1 if {values} is None else len({values}))")
            self.add(f"if {values}:")
        else:
            self.length("i", f"len({values})")
            self.add(f"if {values}:")
        self.indent += 1
        if field.type in FIXED and field.type != "uuid":
            code = FIXED[field.type][0]
            self.add(f"out += pack(f'>{{len({values})}}{code}', *{values})")
        else:
            item = self.fresh("item")
            self.add(f"for {item} in {values}:")
            self.indent += 1
            element = Field(field.name, field.type, False, field.versions, None, None)
            self.value(element, item)
            self.flush()
            if self.steps:
                self.add("yield")
            self.indent -= 1
        self.indent -= 1

    def tags(self, tagged: list[Field]) -> None:
        """Emit the tagged-field section: only what differs from its default is written."""
        if not tagged:
            self.run.append(("x", ""))
            self.flush()
            return
        self.flush()
        self.add("body = out")
        self.add("tags = []")
        default = self.bind("default_", self.cls())
        for field in sorted(tagged, key=lambda field: field.tag or 0):
            self.add(f"if o.{field.name} != {default}.{field.name}:")
            self.indent += 1
            self.add("out = bytearray()")
            steps, self.steps = self.steps, False
            self.value(field, f"o.{field.name}")
            self.flush()
            self.steps = steps
            self.add(f"tags.append(({field.tag}, out))")
            self.indent -= 1
        self.add("out = body")
        self.add("write_uvarint(out, len(tags))")
        self.add("for tag, data in tags:")
        self.add("    write_uvarint(out, tag)")
        self.add("    write_uvarint(out, len(data))")
        self.add("    out += data")


@cache
def writer(cls: type[WireStruct], version: int, flexible: bool) -> Writer:
    """Return the writer of *cls* in *version*. `write_message` translates its exceptions."""
    return _written(_WriterSource(cls, version, flexible)).function("write(out, o)")


@cache
def step_writer(cls: type[WireStruct], version: int, flexible: bool) -> StepWriter:
    """Return a writer that yields between the structs of the arrays of *cls* itself.

    The caller may empty the bytearray at every yield, if it keeps the bytes.
    """
    source = _WriterSource(cls, version, flexible)
    source.steps = True
    _written(source)
    source.add("yield")
    return source.function("write_in_steps(out, o)")


def _written(source: _WriterSource) -> _WriterSource:
    """Add to *source* the code that writes its class."""
    present = [field for field in fields_of(source.cls) if field.versions.has(source.version)]
    for field in present:
        if field.tag is None:
            source.value(field, f"o.{field.name}")
    if source.flexible:
        source.tags([field for field in present if field.tag is not None])
    source.flush()
    return source
