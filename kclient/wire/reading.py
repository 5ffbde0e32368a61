"""Readers: from the bytes of a struct, in one version, to the struct (see `kclient.wire.codec`)."""

from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cache
from typing import Any

from kclient.wire.primitives import Buffer
from kclient.wire.source import MAX_STRING, Source
from kclient.wire.structs import (
    FIXED,
    Field,
    WireStruct,
    fields_of,
    least_size_of_type,
    nested_struct,
)

Reader = Callable[[Buffer, int, int, list[int]], tuple[Any, int]]
"""(buffer, position, end, [elements still allowed, elements allowed]) -> (object, position after it)."""


class _ReaderSource(Source):
    def flush(self) -> None:
        if self.run:
            merged = self.merged()
            unpack = self.bind("unpack_from_", merged.unpack_from)
            targets = ", ".join(name for _, name in self.run)
            self.add(f"{targets}, = {unpack}(buf, pos)")
            self.add(f"pos += {merged.size}")
            for code, name in self.run:
                if code == "16s":
                    self.add(f"{name} = UUID(bytes={name}) if {name} != NO_UUID else None")
            self.run = []

    def length(self, code: str) -> str:
        """Emit the reading of a size or count into a variable: -1 null, never above 2^32."""
        name = self.fresh("n")
        if self.flexible:
            self.flush()
            self.add(f"{name} = buf[pos]")
            self.add("pos += 1")
            self.add(f"if {name} > 127: {name}, pos = uvarint_tail(buf, pos, {name})")
            self.add(f"{name} -= 1")
        else:
            self.run.append((code, name))
            self.flush()
        return name

    def null_check(self, count: str, target: str, field: Field, nullable: bool) -> None:
        """Emit what happens for a negative size; leave open the else branch for the value."""
        if nullable:
            self.add(f"if {count} == -1: {target} = None")
            self.add(f"elif {count} < 0: raise malformed({self.where(field)}, 'negative size')")
        else:
            self.add(
                f"if {count} < 0: raise malformed({self.where(field)}, 'null or a negative size')"
            )
        self.add("else:")
        self.indent += 1

    def value(self, field: Field, target: str) -> None:
        nullable = field.may_be_null(self.version)
        if field.is_array:
            self.array(field, target, nullable)
        elif field.type in FIXED:
            self.run.append((FIXED[field.type][0], target))
        elif field.type in ("string", "bytes"):
            self.text(field, target, nullable)
        elif nullable:
            marker = self.fresh("n")
            self.run.append(("b", marker))
            self.flush()
            self.add(f"if {marker} < 0: {target} = None")
            self.add("else:")
            self.indent += 1
            self.struct(field, target)
            self.indent -= 1
        else:
            self.struct(field, target)

    def struct(self, field: Field, target: str) -> None:
        self.flush()
        nested = reader(nested_struct(self.cls, field.type), self.version, self.flexible)
        self.add(f"{target}, pos = {self.bind('read_', nested)}(buf, pos, end, left)")

    def text(self, field: Field, target: str, nullable: bool) -> None:
        is_string = field.type == "string"
        size = self.length("h" if is_string else "i")
        self.null_check(size, target, field, nullable)
        self.add(f"stop = pos + {size}")
        limit = f" or {size} > {MAX_STRING}" if is_string and self.flexible else ""
        self.add(f"if stop > end{limit}: raise malformed({self.where(field)}, f'{{{size}}} bytes')")
        convert = "str(buf[pos:stop], 'utf-8')" if is_string else "bytes(buf[pos:stop])"
        self.add(f"{target} = {convert}")
        self.add("pos = stop")
        self.indent -= 1

    def array(self, field: Field, target: str, nullable: bool) -> None:
        count = self.length("i")
        self.null_check(count, target, field, nullable)
        least = least_size_of_type(self.cls, field.type, self.version, self.flexible)
        self.add(f"if {count} * {max(least, 1)} > end - pos:")
        self.add(f"    raise malformed({self.where(field)}, f'{{{count}}} elements')")
        self.add(f"left[0] -= {count}")
        self.add(f"if left[0] < 0: raise too_many({self.where(field)}, left)")
        if field.type in FIXED and field.type != "uuid":
            code, size = FIXED[field.type]
            self.add(f"{target} = list(unpack_from(f'>{{{count}}}{code}', buf, pos))")
            self.add(f"pos += {count} * {size}")
        else:
            item, append = self.fresh("item"), self.fresh("append")
            self.add(f"{target} = []")
            self.add(f"{append} = {target}.append")
            self.add(f"for _ in range({count}):")
            self.indent += 1
            element = Field(field.name, field.type, False, field.versions, None, None)
            self.value(element, item)
            self.flush()
            self.add(f"{append}({item})")
            self.indent -= 1
        self.indent -= 1

    def tags(self, tagged: list[tuple[Field, str]]) -> None:
        """Emit the tagged-field section; the targets hold their defaults already."""
        self.flush()
        if not tagged:
            self.add("if buf[pos]: pos = skip_tags(buf, pos, end, left)")
            self.add("else: pos += 1")
            return
        self.add("count = buf[pos]")
        self.add("pos += 1")
        self.add("if count > 127: count, pos = uvarint_tail(buf, pos, count)")
        self.add("left[0] -= count")
        self.add(f"if left[0] < 0: raise too_many('{self.cls.__name__}: tagged fields', left)")
        self.add("tag = -1")
        self.add("for _ in range(count):")
        self.indent += 1
        self.add("tag, pos, tag_end = next_tag(buf, pos, end, tag)")
        for field, target in tagged:
            self.add(f"if tag == {field.tag}:")
            self.indent += 1
            self.value(field, target)
            self.flush()
            self.add("if pos != tag_end:")
            self.add(
                f"    raise malformed({self.where(field)}, 'its size differs from that of its tag')"
            )
            self.indent -= 1
        self.add("pos = tag_end")
        self.indent -= 1


@cache
def reader(cls: type[WireStruct], version: int, flexible: bool) -> Reader:
    """Return the reader of *cls* in *version*. `read_message` translates its exceptions."""
    source = _ReaderSource(cls, version, flexible)
    targets: dict[str, str] = {}
    tagged: list[tuple[Field, str]] = []
    defaults = _default_expressions(cls, source)
    for index, field in enumerate(fields_of(cls)):
        if not field.versions.has(version):
            continue
        target = targets[field.name] = f"v{index}"
        if field.tag is None:
            source.value(field, target)
        else:
            tagged.append((field, target))
    source.flush()
    for field, target in tagged:
        source.add(f"{target} = {defaults[field.name]}")
    if flexible:
        source.tags(tagged)
    arguments = ", ".join(targets.get(f.name) or defaults[f.name] for f in fields(cls))
    source.add(f"return {source.bind('made_', cls)}({arguments}), pos")
    return source.function("read(buf, pos, end, left)")


def _default_expressions(cls: type[WireStruct], source: Source) -> dict[str, str]:
    """Return for each field an expression that creates its default."""
    found = {}
    for field in fields(cls):
        if field.default_factory is not MISSING:
            found[field.name] = source.bind("make_", field.default_factory) + "()"
        else:
            found[field.name] = source.bind("default_", field.default)
    return found
