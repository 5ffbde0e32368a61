"""Compares two Avro values field by field, each read with the schema of its own writer.

A value becomes a tree of records, arrays, maps and leaves. Its shape is that of its writer's schema, so no field that
was written is dropped. The reader's schema adds what Avro's schema resolution adds. That is the names of renamed fields
(aliases), promoted numbers and strings, and the defaults of fields that the writer's schema lacks. A default is marked,
because no log has it. Values are compared, types are not: 5 as an int and 5 as a long are equal. Two leaves with equal
stored values that their writers' logical types read differently are a difference of its own kind (`stored_alike`).

Invariants (tests cite the numbers):
 1. a leaf that differs in what was written is in a difference, and so is a field that only one writer's schema has;
 2. equal trees have no difference;
 3. the reader's part of a tree is the value that Avro's schema resolution gives.

In: the bytes of two values, schemas.  Out: `Comparison`.  Pure.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from kclient.avro import Schema, fingerprint, frame_of
from kclient.errors import SerializationError
from spark_jobs.avro_logical import LOGICAL, reading

Scalar: TypeAlias = bool | int | float | str | bytes | None

_NAMED = frozenset({"record", "error", "enum", "fixed"})
_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_BRANCHES: dict[type, tuple[str, ...]] = {
    type(None): ("null",),
    bool: ("boolean",),
    int: ("int", "long"),
    float: ("float", "double"),
    str: ("string",),
    bytes: ("bytes",),
    list: ("array",),
    dict: ("map",),
}


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value without parts. *logical* is the schema of its logical type."""

    value: Scalar
    logical: Mapping[str, Any] | None = None
    branch_known: bool = field(default=True, compare=False)
    """False if an int or a long was written: the value does not show which, nor then its logical type."""


@dataclass(frozen=True, slots=True)
class RecordNode:
    """A record: its name without namespace, and its fields."""

    name: str
    fields: Mapping[str, Node]


@dataclass(frozen=True, slots=True)
class ArrayNode:
    """An array."""

    items: Sequence[Node]


@dataclass(frozen=True, slots=True)
class MapNode:
    """A map."""

    entries: Mapping[str, Node]


@dataclass(frozen=True, slots=True)
class Default:
    """A field that its writer's schema lacks: the default of the reader's schema."""

    node: Node


Node: TypeAlias = Leaf | RecordNode | ArrayNode | MapNode | Default


@dataclass(frozen=True, slots=True)
class Difference:
    """A part in which two values differ. A side is None if it has no such part."""

    path: str
    source: Node | None
    target: Node | None

    @property
    def equal_by_default(self) -> bool:
        """Whether a side has the value, or the parts that differ, only as a default that equals the other side's."""
        if not (isinstance(self.source, Default) or isinstance(self.target, Default)):
            return False
        left, right = _without_mark(self.source), _without_mark(self.target)
        return (
            left is not None
            and right is not None
            and all(each.equal_by_default for each in differences(left, right))
        )

    @property
    def stored_alike(self) -> bool:
        """Whether both sides have the same stored value, and only its logical types differ."""
        left, right = self.source, self.target
        return isinstance(left, Leaf) and isinstance(right, Leaf) and _same(left.value, right.value)


class UnknownWriter(Exception):
    """No schema was given for the writer of a value."""


class Parsed:
    """A schema with its named types."""

    def __init__(self, schema: Schema, label: str) -> None:
        import fastavro

        self.label = label
        """Its name in messages: its file."""
        self.fingerprint = fingerprint(schema)
        self._names: dict[str, Any] = {}
        self.root = fastavro.parse_schema(_plain(schema), self._names)

    def resolve(self, schema: Any) -> Any:
        """Return the definition of *schema* if it is the name of a type, else *schema*."""
        return self._names.get(schema, schema) if isinstance(schema, str) else schema

    def read(self, data: bytes, start: int) -> Any:
        """Return the value in *data* from *start* on, with the names of named union branches."""
        import fastavro

        stream = io.BytesIO(data)
        stream.seek(start)
        try:
            value = fastavro.schemaless_reader(stream, self.root, None, return_named_type=True)
        except Exception as problem:
            raise SerializationError(f"not a value of {self.label}: {problem!r}") from problem
        if rest := len(stream.read()):
            raise SerializationError(f"{rest} bytes are left over after the value of {self.label}")
        return value


class Schemas:
    """The schemas of writers, by fingerprint and by schema id, and the reader's."""

    def __init__(
        self, reader: Parsed, writers: Sequence[Parsed], ids: Mapping[int, Parsed]
    ) -> None:
        self.reader = reader
        self._by_fingerprint = {
            each.fingerprint: each for each in (*ids.values(), *writers, reader)
        }
        self._by_id = dict(ids)

    def decode(self, data: bytes | None) -> Decoded:
        """Return *data* as a tree; raise SerializationError if it cannot be decoded, UnknownWriter without a schema."""
        if data is None:
            return Decoded(Leaf(None), "null")
        frame = frame_of(data)
        writer = (
            self._by_id.get(cast("int", frame.schema_id))
            if frame.fingerprint is None
            else self._by_fingerprint.get(frame.fingerprint)
        )
        if writer is None:
            option = "--avro FILE" if frame.fingerprint else f"--schema-id {frame.schema_id}=FILE"
            raise UnknownWriter(f"written with {frame}, of which no schema was given ({option})")
        value = writer.read(data, frame.size)
        try:
            node = _Tree(writer, self.reader).node(writer.root, value, self.reader.root)
        except RecursionError:
            raise SerializationError("the value is nested too deeply") from None
        return Decoded(node, f"{frame}, {writer.label}")


@dataclass(frozen=True, slots=True)
class Decoded:
    """A value as a tree, and the name of its writer's schema."""

    node: Node
    writer: str


@dataclass(frozen=True, slots=True)
class Undecoded:
    """A value that cannot be decoded, and why."""

    problem: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two values: how each was written, and the fields that differ. Without *differences* bytes may differ."""

    source: Decoded | Undecoded
    target: Decoded | Undecoded
    differences: tuple[Difference, ...]
    same_bytes: bool

    @property
    def decoded(self) -> bool:
        """Whether both values were decoded, so that they were compared."""
        return isinstance(self.source, Decoded) and isinstance(self.target, Decoded)


def compare(schemas: Schemas, source: bytes | None, target: bytes | None) -> Comparison:
    """Compare two framed values; None is a tombstone."""
    left, right = _tried(schemas, source), _tried(schemas, target)
    found: tuple[Difference, ...] = ()
    if isinstance(left, Decoded) and isinstance(right, Decoded):
        found = tuple(differences(left.node, right.node))
    return Comparison(left, right, found, source == target)


def _tried(schemas: Schemas, data: bytes | None) -> Decoded | Undecoded:
    try:
        return schemas.decode(data)
    except (SerializationError, UnknownWriter) as problem:
        return Undecoded(str(problem))


def differences(left: Node, right: Node, path: str = "") -> Iterator[Difference]:
    """Yield the smallest parts in which *left* and *right* differ, in the order of the fields."""
    match left, right:
        case Default(), Default():
            return  # the same default of the same reader
        case RecordNode(name, ours), RecordNode(other, theirs) if name == other:
            parts = [(f"{path}.{each}".lstrip("."), each) for each in {**ours, **theirs}]
            yield from _of_parts(ours, theirs, parts)
        case MapNode(ours), MapNode(theirs):
            yield from _of_parts(
                ours,
                theirs,
                [(f"{path}[{json.dumps(each)}]", each) for each in {**ours, **theirs}],
            )
        case ArrayNode(mine), ArrayNode(yours):
            numbers = range(max(len(mine), len(yours)))
            yield from _of_parts(
                dict(enumerate(mine)),
                dict(enumerate(yours)),
                [(f"{path}[{each}]", each) for each in numbers],
            )
        case Leaf(), Leaf() if _same(left.value, right.value) and _read_alike(left, right):
            return
        case _:
            yield Difference(path, left, right)


def _of_parts(
    ours: Mapping[Any, Node], theirs: Mapping[Any, Node], parts: Sequence[tuple[str, Any]]
) -> Iterator[Difference]:
    for path, part in parts:
        left, right = ours.get(part), theirs.get(part)
        if left is None or right is None:
            if not (isinstance(left, Default) or isinstance(right, Default)):
                yield Difference(path, left, right)
        else:
            yield from differences(left, right, path)


def _same(left: Scalar, right: Scalar) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return struct.pack("d", left) == struct.pack("d", right)  # NaN equals NaN; 0.0 is not -0.0
    if isinstance(left, bool) is not isinstance(right, bool):
        return False
    return left == right


def _read_alike(left: Leaf, right: Leaf) -> bool:
    """Return whether two equal stored values mean the same; also if a logical type is not known."""
    if left.value is None or not (left.branch_known and right.branch_known):
        return True
    return reading(left.value, left.logical) == reading(right.value, right.logical)


def _without_mark(node: Node | None) -> Node | None:
    return node.node if isinstance(node, Default) else node


def _plain(schema: Any) -> Any:
    """Return *schema* with logical types renamed, so that the decoder returns what was written."""
    if isinstance(schema, str) and schema.lstrip()[:1] in "{[":
        schema = json.loads(schema)
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {LOGICAL if name == "logicalType" else name: each for name, each in schema.items()}
    for name in ("type", "items", "values"):
        if name in found:
            found[name] = _plain(found[name])
    if isinstance(found.get("fields"), list):
        found["fields"] = [
            {**each, "type": _plain(each["type"])} if "type" in each else each
            for each in found["fields"]
        ]
    return found


def _kind(schema: Any) -> str:
    return schema if isinstance(schema, str) else cast("str", schema["type"])


def _last_name(schema: Any) -> str:
    return cast("str", schema["name"]).rpartition(".")[2]


class _Tree:
    """Makes the tree of one value."""

    def __init__(self, writer: Parsed, reader: Parsed) -> None:
        self._writer = writer
        self._reader = reader

    def node(self, schema: Any, value: Any, reader: Any | None) -> Node:
        """Return *value*, written with *schema*. *reader* is the reader's schema of this part, None if it has none."""
        schema = self._writer.resolve(schema)
        known = True
        if isinstance(schema, list):
            schema, value, known = self._branch(schema, value)
        reader = self._matching(schema, reader)
        match _kind(schema):
            case "record" | "error":
                return self._record(schema, value, reader)
            case "array":
                part = None if reader is None else reader["items"]
                return ArrayNode([self.node(schema["items"], each, part) for each in value])
            case "map":
                part = None if reader is None else reader["values"]
                return MapNode(
                    {key: self.node(schema["values"], each, part) for key, each in value.items()}
                )
        value = value if reader is None else _promoted(value, _kind(reader))
        return _leaf(schema, value, branch_known=known)

    def _branch(self, union: Sequence[Any], value: Any) -> tuple[Any, Any, bool]:
        """Return the branch of *union* of *value*, the value without the branch's name, and whether it is known."""
        branches = [self._writer.resolve(each) for each in union]
        if isinstance(value, tuple):
            name, value = value
            named = (each for each in branches if isinstance(each, dict))
            return next(each for each in named if each.get("name") == name), value, True
        kinds = _BRANCHES[type(value)]
        found = [each for each in branches if _kind(each) in kinds]
        # The value does not show which of an int and a long was written; then no logical type is shown either.
        return (found[0], value, True) if len(found) == 1 else (_kind(found[0]), value, False)

    def _matching(self, schema: Any, reader: Any | None) -> Any | None:
        """Return the reader's schema that reads values of *schema*, by Avro's rules; None if there is none."""
        if reader is None:
            return None
        reader = self._reader.resolve(reader)
        candidates = reader if isinstance(reader, list) else [reader]
        candidates = [self._reader.resolve(each) for each in candidates]
        kind = _kind(schema)
        for each in candidates:
            if _kind(each) == kind and (kind not in _NAMED or _names_match(schema, each)):
                return each
        return next((each for each in candidates if _kind(each) in _PROMOTIONS.get(kind, ())), None)

    def _record(self, schema: Any, value: Mapping[str, Any], reader: Any | None) -> RecordNode:
        written = {each["name"] for each in schema["fields"]}
        read_as: dict[str, Any] = {}
        added: dict[str, Node] = {}
        for each in [] if reader is None else reader["fields"]:
            names = (each["name"], *each.get("aliases", ()))
            source = next((name for name in names if name in written), None)
            if source is not None:
                read_as[source] = each
            elif "default" in each:
                added[each["name"]] = Default(self._default_of(each))
        fields: dict[str, Node] = {}
        for each in schema["fields"]:
            as_read = read_as.get(each["name"])
            name = each["name"] if as_read is None else as_read["name"]
            part = None if as_read is None else as_read["type"]
            fields[name] = self.node(each["type"], value[each["name"]], part)
        return RecordNode(_last_name(schema if reader is None else reader), {**fields, **added})

    def _default_of(self, part: Mapping[str, Any]) -> Node:
        """Return the default of a field of the reader's schema; raise SerializationError if its type cannot have it."""
        try:
            return self._default(part["type"], part["default"])
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            raise SerializationError(
                f"a default of {self._reader.label} is invalid: that of {part['name']}"
            ) from None

    def _default(self, schema: Any, value: Any) -> Node:
        """Return a default of the reader's schema, which is JSON there."""
        schema = self._reader.resolve(schema)
        if isinstance(schema, list):
            branches = [self._reader.resolve(each) for each in schema]
            schema = next((each for each in branches if _fits(_kind(each), value)), branches[0])
        match _kind(schema):
            case "record" | "error":
                return RecordNode(
                    _last_name(schema),
                    {
                        each["name"]: self._default(
                            each["type"], value.get(each["name"], each.get("default"))
                        )
                        for each in schema["fields"]
                    },
                )
            case "array":
                return ArrayNode([self._default(schema["items"], each) for each in value])
            case "map":
                return MapNode(
                    {key: self._default(schema["values"], each) for key, each in value.items()}
                )
            case "bytes" | "fixed" if isinstance(value, str):
                return _leaf(schema, value.encode("latin-1"))
            case "float" if isinstance(value, (int, float)) and not isinstance(value, bool):
                return _leaf(schema, _float32(value))
        return _leaf(schema, _promoted(value, _kind(schema)))


def _leaf(schema: Any, value: Scalar, *, branch_known: bool = True) -> Leaf:
    logical = schema if isinstance(schema, dict) and LOGICAL in schema else None
    return Leaf(value, logical, branch_known)


def _float32(value: float) -> float:
    """Return *value* as a float of 32 bits holds it; as it is if none does."""
    try:
        return cast("float", struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return value


def _names_match(writer: Any, reader: Any) -> bool:
    aliases = (each.rpartition(".")[2] for each in reader.get("aliases", ()))
    return _last_name(writer) in (_last_name(reader), *aliases)


def _promoted(value: Any, kind: str) -> Any:
    """Return *value* as the reader's *kind* has it. An integer that no float is equal to stays as it was written."""
    if isinstance(value, int) and not isinstance(value, bool):
        promoted = float(value) if kind in ("float", "double") else value
        return promoted if promoted == value else value
    if kind == "string" and isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value.encode() if kind == "bytes" and isinstance(value, str) else value


def _fits(kind: str, value: Any) -> bool:
    """Return whether the JSON *value* may be a default of a branch of *kind*."""
    if kind in ("record", "error", "map"):
        return isinstance(value, dict)
    if kind in ("enum", "fixed", "bytes"):
        return isinstance(value, str)
    if kind in ("float", "double") and isinstance(value, int) and not isinstance(value, bool):
        return True
    return kind in _BRANCHES.get(type(value), ())
