"""`kaudit diff`: what it prints for values, schemas and findings, and which findings it chooses."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kclient.avro import AvroSerializer
from spark_jobs.avro_diff import (
    Diff,
    FindingDiff,
    Status,
    difference_line,
    json_document,
    json_text,
    text,
    totals,
)
from spark_jobs.avro_fields import Comparison, Default, Leaf, Parsed, Schemas, Undecoded, compare
from spark_jobs.avro_logical import LOGICAL, meaning
from spark_jobs.cli import kaudit
from spark_jobs.commands.diff import _chosen, _schemas
from spark_jobs.verdict import ExitCode


def record(*fields: dict[str, Any], name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


PRICE = {"name": "price", "type": "long"}
V1 = record(PRICE)
V2 = record(
    PRICE, {"name": "note", "type": ["null", "string"], "default": None, "aliases": ["remark"]}
)
V0 = record(PRICE, {"name": "remark", "type": ["null", "string"]})
SCHEMAS = Schemas(Parsed(V2, "v2.avsc"), [Parsed(V1, "v1.avsc"), Parsed(V0, "v0.avsc")], {})


def framed(schema: Any, value: Any, schema_id: int | None = None) -> bytes:
    data = AvroSerializer(schema, schema_id=schema_id)(value)
    assert data is not None
    return data


def lines(found: Comparison) -> list[str]:
    return [difference_line(each, 200) for each in found.differences]


def of_field(kind: Any, left: Any, right: Any) -> str:
    schema = record({"name": "x", "type": kind})
    found = compare(
        Schemas(Parsed(schema, "x"), [], {}),
        framed(schema, {"x": left}),
        framed(schema, {"x": right}),
    )
    (line,) = lines(found)
    return line


def test_a_changed_field_is_named_with_both_values() -> None:
    found = compare(SCHEMAS, framed(V1, {"price": 5}), framed(V1, {"price": 7}))
    assert lines(found) == ["price: 5 -> 7"]


def test_a_default_is_shown_as_not_written() -> None:
    old = framed(V1, {"price": 5})
    assert lines(compare(SCHEMAS, old, framed(V2, {"price": 5, "note": None}))) == [
        "note: null (default, not written) = null"
    ]
    assert lines(compare(SCHEMAS, old, framed(V2, {"price": 5, "note": "late"}))) == [
        'note: null (default, not written) -> "late"'
    ]
    assert lines(compare(SCHEMAS, old, old)) == []


def test_a_renamed_field_is_one_field() -> None:
    old = framed(V0, {"price": 5, "remark": "late"})
    assert lines(compare(SCHEMAS, old, framed(V2, {"price": 5, "note": "late"}))) == []
    assert lines(compare(SCHEMAS, old, framed(V2, {"price": 5, "note": "soon"}))) == [
        'note: "late" -> "soon"'
    ]


def test_a_field_that_the_reader_does_not_know_is_compared_too() -> None:
    schemas = Schemas(Parsed(V1, "v1"), [Parsed(V0, "v0")], {})
    found = compare(
        schemas, framed(V0, {"price": 5, "remark": "a"}), framed(V0, {"price": 5, "remark": "b"})
    )
    assert lines(found) == ['remark: "a" -> "b"']
    found = compare(schemas, framed(V0, {"price": 5, "remark": "a"}), framed(V1, {"price": 5}))
    assert lines(found) == ['remark: "a" -> (not in the schema, or absent)']


@pytest.mark.parametrize(
    ("kind", "left", "right", "line"),
    [
        (["null", "string"], None, "a", 'x: null -> "a"'),
        (["int", "boolean"], 1, True, "x: 1 -> true"),
        ("double", 0.0, -0.0, "x: 0.0 -> -0.0"),
        ("bytes", b"\x00", b"\x01", "x: hex 00 -> hex 01"),
        ("string", "\x1b[2J", "b", r'x: "\u001b[2J" -> "b"'),
        (
            {"type": "array", "items": "int"},
            [1, 2],
            [1],
            "x[1]: 2 -> (not in the schema, or absent)",
        ),
        ({"type": "map", "values": "int"}, {'a"': 1}, {'a"': 2}, r'x["a\""]: 1 -> 2'),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            0,
            1500,
            "x: 0 (1970-01-01T00:00:00.000Z) -> 1500 (1970-01-01T00:00:01.500Z)",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
            Decimal("1.50"),
            Decimal("-0.01"),
            "x: hex 0096 (1.50) -> hex ff (-0.01)",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2},
            Decimal("123456789012345678901234567890.12"),
            Decimal("123456789012345678901234567890.13"),
            "x: hex 009bd30a3c645943dd1690a03a14 (123456789012345678901234567890.12) -> "
            "hex 009bd30a3c645943dd1690a03a15 (123456789012345678901234567890.13)",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 9},
            Decimal("0E-9"),
            Decimal("0.000000005"),
            "x: hex 00 (0.000000000) -> hex 05 (0.000000005)",
        ),
        (["null", {"type": "int", "logicalType": "date"}], None, 1, "x: null -> 1 (1970-01-02)"),
    ],
)
def test_values_as_text(kind: Any, left: Any, right: Any, line: str) -> None:
    assert of_field(kind, left, right) == line


def test_two_long_texts_show_where_they_differ_first() -> None:
    schema = record({"name": "x", "type": "string"})
    schemas = Schemas(Parsed(schema, "x"), [], {})
    values = (framed(schema, {"x": "a" * 500 + each}) for each in "bc")
    (found,) = compare(schemas, *values).differences
    assert difference_line(found, 20).endswith(
        'first difference at character 501: aaaaaaaab" -> aaaaaaaac")'
    )


def test_a_default_of_bytes_is_bytes() -> None:
    reader = record(PRICE, {"name": "raw", "type": "bytes", "default": "\u00ff"})
    schemas = Schemas(Parsed(reader, "reader"), [Parsed(V1, "v1")], {})
    found = compare(schemas, framed(V1, {"price": 1}), framed(reader, {"price": 1, "raw": b"\xff"}))
    (each,) = found.differences
    assert (each.source, each.target) == (Default(Leaf(b"\xff")), Leaf(b"\xff"))
    assert each.equal_by_default


def test_a_schema_id_is_never_guessed() -> None:
    schemas = Schemas(Parsed(V1, "v1"), [], {7: Parsed(V1, "seven")})
    known, unknown = framed(V1, {"price": 1}, 7), framed(V1, {"price": 1}, 8)
    assert compare(schemas, known, known).decoded
    found = compare(schemas, known, unknown)
    assert found.target == Undecoded(
        "written with schema id 8, of which no schema was given (--schema-id 8=FILE)"
    )
    assert not found.decoded


@pytest.mark.parametrize("data", [b"", b"plain", b"\xc3\x01short", framed(V1, {"price": 1}) + b"x"])
def test_what_is_no_avro_is_named_and_not_compared(data: bytes) -> None:
    found = compare(SCHEMAS, data, framed(V1, {"price": 1}))
    assert isinstance(found.source, Undecoded)
    assert not found.decoded
    assert found.differences == ()


def test_a_tombstone_differs_from_a_value_as_a_whole() -> None:
    assert lines(compare(SCHEMAS, None, framed(V1, {"price": 1}))) == [
        '(the value): null -> {"price": 1, "note": null}'
    ]
    assert lines(compare(SCHEMAS, None, None)) == []


FINDING = {
    "seq": 1,
    "class": "corrupt",
    "topic": "orders",
    "partition": 0,
    "src_offset": 5,
    "dst_offset": 5,
    "first_dst_offset": None,
    "records": 1,
    "last_offset": None,
}


def diff_of(*comparisons: Comparison) -> Diff:
    found = [FindingDiff(FINDING, Status.COMPARED, each) for each in comparisons]
    return Diff("run", found, left_out=2, one_side=3)


def test_equal_fields_in_other_bytes_are_no_silent_equality() -> None:
    old, new = framed(V1, {"price": 5}), framed(V2, {"price": 5, "note": None})
    output = text(diff_of(compare(SCHEMAS, old, new)), max_chars=200, max_lines=50)
    assert "no field differs; the bytes of the values differ" in output
    assert "v1.avsc -> fingerprint" in output
    assert "2 more findings were left out" in output
    assert "3 more findings name one record only" in output


def test_the_records_of_a_finding_that_were_not_compared_are_named() -> None:
    """One finding of a million records was "1 findings: 1 compared"."""
    found = compare(SCHEMAS, framed(V1, {"price": 1}), framed(V1, {"price": 2}))
    folded = {**FINDING, "records": 1_000_000, "last_offset": 1_000_004}
    whole = Diff(
        "run",
        [FindingDiff(each, Status.COMPARED, found) for each in (folded, FINDING)],
        found=30_000,
        written=10_000,
    )
    output = text(whole, max_chars=200, max_lines=50).splitlines()
    sentence = "the finding has 1000000 records or offsets, up to offset 1000004; this is the first"
    assert f"  {sentence}" in output
    assert "1 of them have more than one record: only the first one was compared" in output
    assert (
        "the audit found 30,000 findings, and wrote 10,000 of them: the others were not compared"
        in output
    )
    document = json_document(whole)
    sample = ("findings_of_many_records", "findings_found", "findings_written")
    assert [document[name] for name in sample] == [1, 30_000, 10_000]
    rest = [(each["records"], each["last_offset"]) for each in document["findings"]]
    assert rest == [(1_000_000, 1_000_004), (1, None)]


def test_one_record_each_and_all_findings_need_no_such_line() -> None:
    found = compare(SCHEMAS, framed(V1, {"price": 1}), framed(V1, {"price": 2}))
    whole = Diff("run", [FindingDiff(FINDING, Status.COMPARED, found)], found=1, written=1)
    output = text(whole, max_chars=200, max_lines=50)
    assert "first" not in output
    assert output.splitlines()[-2:] == ["1 findings: 1 compared", "  price: differs in 1"]


def test_findings_are_counted_by_field() -> None:
    schema = record({"name": "x", "type": {"type": "array", "items": "int"}})
    schemas = Schemas(Parsed(schema, "x"), [], {})
    left, right = framed(schema, {"x": [1, 2]}), framed(schema, {"x": [3, 4]})
    found = compare(schemas, left, right)
    both = diff_of(
        found, found, compare(SCHEMAS, framed(V1, {"price": 1}), framed(V1, {"price": 2}))
    )
    assert totals(both.diffs) == {"x[]": 2, "price": 1}


def test_the_json_has_values_defaults_and_absence_apart() -> None:
    schema = record(PRICE, {"name": "f", "type": ["double", "bytes"]})
    schemas = Schemas(Parsed(V2, "v2"), [Parsed(schema, "f")], {})
    found = compare(
        schemas,
        framed(schema, {"price": 5, "f": float("nan")}),
        framed(V2, {"price": 5, "note": "n"}),
    )
    document = json.loads(json.dumps(json_document(diff_of(found)), allow_nan=False))
    (finding,) = document["findings"]
    assert {each["field"]: (each["source"], each["target"]) for each in finding["differences"]} == {
        "f": ({"value": "nan"}, {"absent": True}),
        "note": ({"default": None}, {"value": "n"}),
    }
    assert document["fields"] == {"f": 1, "note": 1}


def test_findings_of_one_record_are_left_out_and_counted() -> None:
    missing = {**FINDING, "class": "missing", "seq": 2, "dst_offset": None}
    copy = {**FINDING, "class": "duplicate", "seq": 3, "src_offset": None, "first_dst_offset": 4}
    findings = [FINDING, missing, copy]
    assert _chosen(findings, None, 1, Path("report")) == ([FINDING], 1, 1)
    assert _chosen(findings, 3, 1, Path("report")) == ([copy], 0, 0)
    with pytest.raises(ValueError, match="it names one record only"):
        _chosen(findings, 2, 20, Path("report"))
    with pytest.raises(ValueError, match="no finding names two records"):
        _chosen([missing], None, 20, Path("report"))


def test_wrong_schemas_are_named_by_their_option(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.avsc", tmp_path / "bad.avsc"
    good.write_text(json.dumps(V1))
    bad.write_text('{"type": "nonsense"}')
    assert _schemas([good], [f"7={good}"]).reader.label == "good.avsc"
    for files, ids, expected in (
        ([bad], [], "--avro .*bad.avsc: not an Avro schema"),
        ([good], ["seven"], "--schema-id 'seven': expected ID=FILE"),
        ([good], [f"7={bad}"], "--schema-id .*bad.avsc: not an Avro schema"),
        ([good], [f"7={good}", f"7={good}"], "--schema-id 7: given twice"),
    ):
        with pytest.raises(ValueError, match=expected):
            _schemas(files, ids)
    bad.write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        _schemas([bad], [])


def test_a_directory_without_a_report_is_a_usage_error(tmp_path: Path) -> None:
    schema = tmp_path / "s.avsc"
    schema.write_text(json.dumps(V1))
    result = CliRunner().invoke(kaudit, ["diff", "--run", str(tmp_path), "--avro", str(schema)])
    assert result.exit_code == ExitCode.USAGE
    assert "no report.json" in result.output


def test_a_decimal_of_a_scale_below_zero_is_not_written_out() -> None:
    """Avro has none; a schema of a registry may: a digit for each of -1,000,000,000 took the memory of the machine."""
    assert meaning(b"\x05", {LOGICAL: "decimal", "precision": 5, "scale": -1000}) == "5E+1000"


def test_an_integer_that_no_float_is_equal_to_differs() -> None:
    written = record({"name": "x", "type": "long"})
    reader = record({"name": "x", "type": "double"})
    schemas = Schemas(Parsed(reader, "v2"), [Parsed(written, "v1")], {})
    least = 2**53
    left, right = (framed(written, {"x": value}) for value in (least, least + 1))
    found = compare(schemas, left, right)
    assert len(found.differences) == 1
    assert not compare(schemas, left, left).differences


def test_json_has_no_character_that_controls_a_terminal() -> None:
    written = record({"name": "x", "type": "string"})
    schemas = Schemas(Parsed(written, "v1"), [], {})
    values = (framed(written, {"x": value}) for value in ("\x9b31m\u202e\x7f", "b"))
    printed = json_text(diff_of(compare(schemas, *values)))
    assert printed.isascii()
    assert "\x7f" not in printed


def decimal(scale: int, precision: int = 9) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def logical(kind: str, name: str | None) -> dict[str, Any]:
    return {"type": kind} if name is None else {"type": kind, "logicalType": name}


def two_writers(
    left: Any, right: Any, value: Any, other: Any, reader: Any | None = None
) -> Comparison:
    """Compare *value* of a field of the type *left* with *other*, of the type *right*, by schema ids."""
    types = [record({"name": "p", "type": each}) for each in (left, right)]
    known = {number: Parsed(each, f"v{number}") for number, each in enumerate(types, 1)}
    plain = [
        framed(record({"name": "p", "type": _stored(each)}), {"p": one}, number)
        for number, (each, one) in enumerate(((left, value), (right, other)), 1)
    ]
    return compare(Schemas(reader or known[1], [], known), *plain)


def _stored(kind: Any) -> Any:
    """Return *kind* without logical types: the serializer takes stored values."""
    if isinstance(kind, list):
        return [_stored(each) for each in kind]
    return {k: v for k, v in kind.items() if k != "logicalType"} if isinstance(kind, dict) else kind


@pytest.mark.parametrize(
    ("left", "right", "value", "line"),
    [
        (decimal(2), decimal(3), b"\x05", "0.05 -> 0.005"),
        (
            logical("long", "timestamp-millis"),
            logical("long", "timestamp-micros"),
            1000,
            "1970-01-01T00:00:01.000Z -> 1970-01-01T00:00:00.001000Z",
        ),
        (
            logical("long", "time-micros"),
            logical("long", None),
            1000,
            "1000 (time-micros) -> 1000 (no logical type)",
        ),
        (["null", decimal(2)], ["null", decimal(3)], b"\x05", "0.05 -> 0.005"),
    ],
)
def test_values_that_are_stored_alike_and_read_differently_are_named_and_counted(
    left: Any, right: Any, value: Any, line: str
) -> None:
    found = two_writers(left, right, value, value)
    assert lines(found) == [f"p: stored alike, read differently: {line}"]
    output = text(diff_of(found), max_chars=200, max_lines=50)
    assert "no field differs" not in output
    assert "no stored value differs; the bytes of the values differ" in output
    assert "  p: stored alike, read differently in 1" in output
    document = json_document(diff_of(found))
    assert (document["fields"], document["fields_read_differently"]) == ({}, {"p": 1})
    assert document["findings"][0]["differences"][0]["stored_alike"] is True


@pytest.mark.parametrize(
    ("left", "right", "value"),
    [
        (decimal(2), decimal(2, precision=5), b"\x05"),
        (decimal(2), decimal(3), b"\x00"),
        (logical("long", "timestamp-millis"), logical("long", "timestamp-micros"), 0),
        (logical("string", "uuid"), logical("string", None), "a"),
        (["null", decimal(2)], ["null", decimal(3)], None),
        # Whether an int or a long was written is not known.
        (["int", logical("long", "timestamp-millis")], logical("long", "timestamp-millis"), 7),
    ],
)
def test_values_that_are_read_alike_are_no_difference(left: Any, right: Any, value: Any) -> None:
    assert lines(two_writers(left, right, value, value)) == []


def test_a_default_of_a_float_equals_the_value_as_it_is_written() -> None:
    price = {"name": "price", "type": "long"}
    for default in (0.1, 1, 16777217):
        reader = record(price, {"name": "f", "type": "float", "default": default})
        schemas = Schemas(Parsed(reader, "reader"), [Parsed(V1, "v1")], {})
        found = compare(
            schemas, framed(V1, {"price": 1}), framed(reader, {"price": 1, "f": default})
        )
        (each,) = found.differences
        assert each.equal_by_default, default
    reader = record(price, {"name": "f", "type": "float", "default": 1e300})
    schemas = Schemas(Parsed(reader, "reader"), [Parsed(V1, "v1")], {})
    found = compare(schemas, framed(V1, {"price": 1}), framed(reader, {"price": 1, "f": 0.5}))
    assert lines(found) == ["f: 1e+300 (default, not written) -> 0.5"]


def test_a_default_with_a_default_inside_is_equal_to_the_same_values() -> None:
    size = {"name": "size", "type": "int", "default": 3}
    box = record({"name": "kind", "type": "string", "default": "b"}, size, name="Box")
    small = record(box["fields"][0], name="Box")
    reader = record(PRICE, {"name": "box", "type": box, "default": {}})
    middle = record(PRICE, {"name": "box", "type": small})
    schemas = Schemas(Parsed(reader, "v3"), [Parsed(V1, "v1"), Parsed(middle, "v2")], {})
    old = framed(V1, {"price": 1})
    (same,) = compare(schemas, old, framed(middle, {"price": 1, "box": {"kind": "b"}})).differences
    assert same.equal_by_default
    (other,) = compare(schemas, old, framed(middle, {"price": 1, "box": {"kind": "c"}})).differences
    assert not other.equal_by_default


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("bytes", "\u0100"),
        ({"type": "array", "items": "bytes"}, ["\u0100"]),
        (record({"name": "y", "type": record(PRICE, name="Money")}, name="Inner"), {}),
    ],
)
def test_an_invalid_default_is_the_cause_that_is_named(kind: Any, default: Any) -> None:
    reader = record(PRICE, {"name": "raw", "type": kind, "default": default})
    schemas = Schemas(Parsed(reader, "reader.avsc"), [Parsed(V1, "v1")], {})
    old = framed(V1, {"price": 1})
    found = compare(schemas, old, old)
    assert found.source == Undecoded("a default of reader.avsc is invalid: that of raw")
