"""`kaudit diff` names every Avro field that differs and no other, whatever the schemas and values are.

Numbers in names of tests are those of the invariants in `spark_jobs.avro_fields`.
"""

from __future__ import annotations

import io
import itertools
import json
import string
from typing import Any

import fastavro
from hypothesis import given, settings
from hypothesis import strategies as st

from kclient.avro import AvroSerializer
from spark_jobs.avro_fields import (
    ArrayNode,
    Comparison,
    Decoded,
    Default,
    Leaf,
    MapNode,
    Node,
    Parsed,
    RecordNode,
    Schemas,
    compare,
)
from tests.kit.property_tests import examples

TEXT = st.text(string.ascii_letters + 'é"].[', max_size=5)
LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "string": TEXT,
    "bytes": st.binary(max_size=4),
}
SYMBOLS = ["RED", "GREEN", "BLUE"]
DEFAULTS = {"int": 7, "string": "none", "boolean": True, "double": 2.5}


@st.composite
def schemas(draw: st.DrawFn, names: Any, depth: int = 2) -> Any:
    kinds = [
        "leaf",
        "leaf",
        "enum",
        "fixed",
        *(("record", "array", "map", "union") if depth else ()),
    ]
    match draw(st.sampled_from(kinds)):
        case "leaf":
            return draw(st.sampled_from([*LEAVES]))
        case "enum":
            return {"type": "enum", "name": f"E{next(names)}", "symbols": SYMBOLS}
        case "fixed":
            return {"type": "fixed", "name": f"F{next(names)}", "size": 2}
        case "array":
            return {"type": "array", "items": draw(schemas(names, depth - 1))}
        case "map":
            return {"type": "map", "values": draw(schemas(names, depth - 1))}
        case "union":
            return ["null", draw(records(names, depth - 1)), "int", draw(records(names, depth - 1))]
    return draw(records(names, depth - 1))


@st.composite
def records(draw: st.DrawFn, names: Any, depth: int = 2) -> Any:
    return {
        "type": "record",
        "name": f"R{next(names)}",
        "fields": [
            {"name": f"f{number}", "type": draw(schemas(names, depth))}
            for number in range(draw(st.integers(1, 4)))
        ],
    }


def values(schema: Any) -> st.SearchStrategy[Any]:
    if isinstance(schema, str):
        return LEAVES[schema]
    if isinstance(schema, list):
        return st.one_of(
            *(
                values(each)
                if isinstance(each, str)
                else st.tuples(st.just(each["name"]), values(each))
                for each in schema
            )
        )
    match schema["type"]:
        case "enum":
            return st.sampled_from(SYMBOLS)
        case "fixed":
            return st.binary(min_size=2, max_size=2)
        case "array":
            return st.lists(values(schema["items"]), max_size=3)
        case "map":
            return st.dictionaries(TEXT, values(schema["values"]), max_size=3)
    return st.fixed_dictionaries({each["name"]: values(each["type"]) for each in schema["fields"]})


def parts(value: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], str]:
    """Return every part of a generated value with its own text: containers have their kind, leaves their value."""
    if isinstance(value, tuple):
        return {**parts(value[1], path), path: value[0]}
    if isinstance(value, dict | list):
        numbered = value.items() if isinstance(value, dict) else enumerate(value)
        found = {path: type(value).__name__}
        for name, each in numbered:
            found |= parts(each, (*path, name))
        return found
    return {path: repr(value)}


def expected(left: Any, right: Any) -> set[tuple[Any, ...]]:
    """Return the highest parts that differ."""
    ours, theirs = parts(left), parts(right)
    differ = {path for path in {**ours, **theirs} if ours.get(path) != theirs.get(path)}
    return {path for path in differ if not any(path[:n] in differ for n in range(len(path)))}


def as_text(path: tuple[Any, ...], value: Any) -> str:
    found = ""
    for part in path:
        value = value[1] if isinstance(value, tuple) else value
        if isinstance(part, int):
            found += f"[{part}]"
        elif part[:1] == "f" and part[1:].isdigit() and is_record(value):
            found += f".{part}"
        else:
            found += f"[{json.dumps(part)}]"
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list):
            value = value[part] if part < len(value) else None
    return found.removeprefix(".")


def is_record(value: Any) -> bool:
    return isinstance(value, dict) and "f0" in value


def framed(schema: Any, value: Any) -> bytes:
    data = AvroSerializer(schema)(value)
    assert data is not None
    return data


def compared(schema: Any, left: Any, right: Any) -> Comparison:
    parsed = Parsed(schema, "s.avsc")
    found = compare(Schemas(parsed, [], {}), framed(schema, left), framed(schema, right))
    assert found.decoded
    return found


@st.composite
def changed(draw: st.DrawFn, schema: Any, value: Any) -> Any:
    """Return *value* with some of its parts drawn again."""
    if draw(st.integers(0, 5)) == 0:
        return draw(values(schema))
    if isinstance(value, tuple):
        (branch,) = [each for each in schema if isinstance(each, dict) and each["name"] == value[0]]
        return value[0], draw(changed(branch, value[1]))
    if isinstance(schema, list | str) or schema["type"] in ("enum", "fixed"):
        return value
    if schema["type"] == "array":
        return [draw(changed(schema["items"], each)) for each in value]
    if schema["type"] == "map":
        return {name: draw(changed(schema["values"], each)) for name, each in value.items()}
    return {
        each["name"]: draw(changed(each["type"], value[each["name"]])) for each in schema["fields"]
    }


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_1_2_every_changed_part_is_named_and_no_other(data: st.DataObject) -> None:
    schema = data.draw(records(itertools.count(), 2))
    left = data.draw(values(schema))
    right = data.draw(changed(schema, left))
    found = compared(schema, left, right)
    both = {as_text(path, left) for path in expected(left, right)}
    assert [each.path for each in found.differences if each.path not in both] == []
    assert both == {each.path for each in found.differences}
    assert len(both) == len(found.differences)
    assert compared(schema, left, left).differences == ()


@st.composite
def evolved(draw: st.DrawFn, schema: Any) -> Any:
    """Return a reader's schema for values of the record *schema*: fields added, renamed, promoted and dropped."""
    fields: list[Any] = []
    for each in schema["fields"]:
        kind = each["type"]
        if isinstance(kind, dict) and kind["type"] == "record":
            kind = draw(evolved(kind))
        if isinstance(kind, str):
            kind = draw(st.sampled_from([kind, *PROMOTED.get(kind, ())]))
        field = {"name": each["name"], "type": kind}
        match draw(st.sampled_from(["same", "same", "renamed", "dropped"])):
            case "renamed":
                fields.append({**field, "name": f"new_{each['name']}", "aliases": [each["name"]]})
            case "same":
                fields.append(field)
    for number, kind in enumerate(draw(st.lists(st.sampled_from([*DEFAULTS]), max_size=2))):
        fields.append({"name": f"added{number}", "type": kind, "default": DEFAULTS[kind]})
    if draw(st.booleans()):
        fields.append(
            {"name": "tags", "type": ["null", {"type": "array", "items": "int"}], "default": None}
        )
    return {**schema, "fields": draw(st.permutations(fields))}


PROMOTED = {"int": ("long", "double"), "string": ("bytes",), "float": ("double",)}


def as_read(node: Node, schema: Any) -> Any:
    """Return the part of a tree that the reader's schema has, as plain values."""
    match node:
        case Default(inner):
            return as_read(inner, schema)
        case Leaf(value):
            return value
        case ArrayNode(items):
            return [as_read(each, None) for each in items]
        case MapNode(entries):
            return {name: as_read(each, None) for name, each in entries.items()}
        case RecordNode(_, fields):
            known = None
            if isinstance(schema, dict):
                known = {each["name"]: each["type"] for each in schema["fields"]}
            return {
                name: as_read(each, None if known is None else known[name])
                for name, each in fields.items()
                if known is None or name in known
            }


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_3_the_part_of_the_reader_is_what_schema_resolution_gives(data: st.DataObject) -> None:
    writer = data.draw(records(itertools.count(), 1))
    reader = data.draw(evolved(writer))
    value = data.draw(values(writer))
    schemas_ = Schemas(Parsed(reader, "reader"), [Parsed(writer, "writer")], {})
    decoded = schemas_.decode(framed(writer, value))
    assert isinstance(decoded, Decoded)
    body = io.BytesIO(framed(writer, value)[10:])
    resolved = fastavro.schemaless_reader(
        body, fastavro.parse_schema(writer), fastavro.parse_schema(reader)
    )
    assert repr(_sorted(as_read(decoded.node, reader))) == repr(_sorted(resolved))
    assert compare(schemas_, framed(writer, value), framed(writer, value)).differences == ()


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(each) for each in value] if isinstance(value, list) else value


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_1_a_change_is_found_between_two_schemas_of_writers(data: st.DataObject) -> None:
    old = data.draw(records(itertools.count(), 1))
    new = {**old, "fields": [*old["fields"], {"name": "age", "type": "int", "default": 3}]}
    left, right = data.draw(values(old)), data.draw(values(old))
    age = data.draw(st.sampled_from([3, 4]))
    schemas_ = Schemas(Parsed(new, "new"), [Parsed(old, "old")], {})
    found = compare(schemas_, framed(old, left), framed(new, {**right, "age": age}))
    paths = {as_text(path, left) for path in expected(left, right)}
    assert {each.path for each in found.differences} == {*paths, "age"}
    (at_age,) = [each for each in found.differences if each.path == "age"]
    assert at_age.equal_by_default is (age == 3)
    assert (at_age.source, at_age.target) == (Default(Leaf(3)), Leaf(age))
