"""Records and rows as text."""

import json
import sys
from uuid import UUID

import click
import pytest
import yaml
from click.testing import CliRunner

from kclient.cli.commands import kclient
from kclient.cli.consume import _form
from kclient.cli.formats import envelope, formatter, from_envelope, heading, unescaped
from kclient.cli.output import FORMATS, show, table
from kclient.cli.stdin import _lines
from kclient.types import Record

RECORD = Record(
    topic="t",
    partition=3,
    offset=47,
    timestamp=1_700_000_000_123,
    timestamp_type=0,
    key=b"k\xff",
    value="größe".encode(),
    headers=[("a", b"1"), ("a", None), ("b", b"\xff")],
    leader_epoch=0,
    serialized_key_size=2,
    serialized_value_size=7,
)
TOMBSTONE = RECORD._replace(key=None, value=None, leader_epoch=None, headers=())


@pytest.mark.parametrize(
    ("template", "written"),
    [
        ("%t %p %o\\n", b"t 3 47\n"),
        ("%k|%v", b"k\xff|" + "größe".encode()),
        ("%s", "größe".encode()),
        ("%K %V %S", b"2 7 7"),
        ("%d", b"1700000000123"),
        ("%T %T{%Y}", b"1700000000123 2023"),
        ("%R%s", b"\0\0\0\7" + "größe".encode()),
        ("%d{%Y-%m-%d}", b"2023-11-14"),
        ("%k{hex} %v{base64}", b"6bff Z3LDtsOfZQ=="),
        ("%h %H", b"a=1,a=NULL,b=\\xff 3"),
        ("%e", b"0"),
        ("100%%\\t\\\\\\x00\\xff", b"100%\t\\\0\xff"),
        ("größe %o", "größe 47".encode()),
        ("%d{strftime[%H:%M]}", b"22:13"),
        (
            '{"k":%k{json},"v":%v{json},"o":%o{json},"h":%h{json}}',
            '{"k":"k\\\\xff","v":"größe","o":47,"h":[["a", "1"], ["a", null], ["b", "\\\\xff"]]}'.encode(),
        ),
        ("%h{%k=%v{hex};}", b"a=31;a=;b=ff;"),
        ("%k{unpack[>H]} %k{unpack[<BB]}", b"27647 107 255"),
        ("%k{unpack[>I]}", b"?6bff"),
        ("50% %-5d %", b"50% %-5d %"),
    ],
)
def test_every_escape_is_written(template, written):
    assert formatter(template)(RECORD) == written


def test_nulls_are_written_as_nothing_with_size_minus_one():
    record = TOMBSTONE._replace(serialized_key_size=-1, serialized_value_size=-1)
    assert formatter("[%k|%v|%K|%V|%e]")(record) == b"[||-1|-1|]"
    assert formatter("%R%s")(record) == b"\xff\xff\xff\xff"


def test_raw_is_the_value_alone():
    assert formatter("raw")(RECORD) == RECORD.value
    assert formatter("value")(RECORD) == RECORD.value + b"\n"


def test_a_template_of_json_is_json_whatever_the_fields():
    template = '{"k":%k{json},"v":%v{json},"h":%h{json},"e":%e{json}}'
    for record in (RECORD, TOMBSTONE, RECORD._replace(key=b'"\n', value={"n": None})):
        line = json.loads(formatter(template)(record))
        value = record.value
        assert line["v"] == (value.decode() if isinstance(value, bytes) else value)


def test_meta_only_is_the_envelope_without_the_value():
    line = formatter("json", meta_only=True)(RECORD).decode()
    whole = envelope(RECORD)
    del whole["value"], whole["value_encoding"]
    assert json.loads(line) == whole
    with pytest.raises(ValueError, match="it has no value"):
        from_envelope(line)
    null = formatter("json", meta_only=True)(TOMBSTONE._replace(serialized_value_size=-1))
    assert from_envelope(null.decode())[1] is None
    with pytest.raises(ValueError, match="--meta-only"):
        formatter("%v", meta_only=True)


def test_control_records_are_not_produced():
    with pytest.raises(ValueError, match=r"control record \(COMMIT\)"):
        from_envelope('{"key": "COMMIT", "control": "COMMIT"}')


@pytest.mark.parametrize(
    "template", ["%x", "%v{rot13}", "%o{hexx}", "%v{hex", "%k{unpack[>Z]}", "%h{%t}"]
)
def test_an_unknown_escape_is_refused(template):
    with pytest.raises(ValueError, match="%"):
        formatter(template)


def test_the_envelope_has_headers_as_a_list_and_names_the_encoding_of_bytes():
    assert envelope(RECORD) == {
        "topic": "t",
        "partition": 3,
        "offset": 47,
        "timestamp": 1_700_000_000_123,
        "timestamp_type": 0,
        "leader_epoch": 0,
        "key": "a/8=",
        "key_encoding": "base64",
        "value": "größe",
        "value_encoding": "utf8",
        "headers": [["a", "1", "utf8"], ["a", None, "null"], ["b", "/w==", "base64"]],
        "key_size": 2,
        "value_size": 7,
    }


def test_an_envelope_is_one_line_of_json():
    line = formatter("json")(RECORD._replace(value=b"two\nlines"))
    assert line.count(b"\n") == 1
    assert json.loads(line)["value"] == "two\nlines"


def test_a_short_envelope_written_by_hand_is_enough():
    assert from_envelope('{"value": "v"}') == (None, b"v", [], None)
    assert from_envelope('{"key": "k", "value": {"a": 1}}') == (b"k", b'{"a": 1}', [], None)


@pytest.mark.parametrize(
    "line",
    [
        '{"user": 7, "action": "login"}',
        '{"timestamp": 1700000000000, "user": 7}',
        '{"topic": "t", "partition": 0, "offset": 4, "timestamp": 5}',
        '{"key": "k", "payload": "the value of kcat -J"}',
        '{"key": "k", "Value": "v"}',
        '"value"',
        "7",
        "null",
    ],
)
def test_an_object_that_is_no_envelope_is_no_record_without_a_value(line: str) -> None:
    """It was produced as a null record, and the exit code was 0."""
    with pytest.raises(ValueError, match=r"not a record in JSON.*\bvalue\b.*--input lines"):
        from_envelope(line)


def test_every_form_of_the_envelope_is_accepted() -> None:
    control = {**envelope(TOMBSTONE), "control": None}
    for written in (envelope(RECORD), envelope(TOMBSTONE), control, {}):
        from_envelope(json.dumps(written))
    assert from_envelope('{"key": "k"}') == (b"k", None, [], None)
    assert from_envelope('{"headers": [["a", "1", "utf8"]]}') == (None, None, [("a", b"1")], None)


def test_an_unknown_encoding_is_refused() -> None:
    """It was taken for utf8."""
    with pytest.raises(ValueError, match=r"value_encoding.*'hex'"):
        from_envelope('{"value": "00ff", "value_encoding": "hex"}')
    with pytest.raises(ValueError, match="'hex'"):
        from_envelope('{"value": "v", "headers": [["a", "00", "hex"]]}')


@pytest.mark.parametrize(
    "line",
    ["", "no json", "[1]", '{"value": "!", "value_encoding": "base64"}', '{"headers": [["a"]]}'],
)
def test_what_is_no_envelope_is_refused(line):
    with pytest.raises(ValueError, match="not a record in JSON"):
        from_envelope(line)


def test_records_as_csv():
    assert heading("csv") == (
        b"topic,partition,offset,timestamp,key,key_encoding,value,value_encoding,headers\n"
    )
    lines = [formatter("csv")(record) for record in (RECORD, TOMBSTONE)]
    assert lines == [
        't,3,47,1700000000123,a/8=,base64,größe,utf8,"a=1,a=NULL,b=\\xff"\n'.encode(),
        b"t,3,47,1700000000123,,null,,null,\n",
    ]
    avro = RECORD._replace(key=None, value={"n": 1}, headers=())
    assert formatter("csv")(avro) == b't,3,47,1700000000123,,null,"{""n"": 1}",deserialized,\n'
    assert heading("json") == b""


@pytest.mark.parametrize(
    ("form", "row_format", "expected"),
    [(None, "text", "json"), (None, "csv", "csv"), (None, "jsonl", "json"), ("%v", "text", "%v"),
     ("csv", "csv", "csv"), ("json", "jsonl", "json")],
)  # fmt: skip
def test_the_form_of_records_follows_either_option(form, row_format, expected):
    assert _form(form, row_format) == expected


@pytest.mark.parametrize(("form", "row_format"), [("%v", "csv"), ("json", "csv"), ("raw", "json")])
def test_two_forms_of_records_are_refused(form, row_format):
    with pytest.raises(click.UsageError, match="give one of -f"):
        _form(form, row_format)


def test_escapes_of_an_option_are_bytes():
    assert unescaped(r"\t") == b"\t"
    assert unescaped(r"ä\x01") == "ä".encode() + b"\x01"


# --- rows

ROWS = [
    {"name": "a", "size": 5, "note": None, "ids": [1, 2]},
    {"name": "long", "size": 500, "note": "x", "ids": []},
]


def test_a_table_is_aligned_with_numbers_to_the_right():
    assert table(ROWS, ("name", "size", "note", "ids")).splitlines() == [
        "NAME  SIZE  NOTE  IDS",
        "a        5  -     1,2",
        "long   500  x",
    ]


def test_csv_has_empty_cells_and_no_python(capsys):
    rows = [{"ids": [1, 2], "none": None, "yes": True, "text": 'a,"b"', "rest": {}}]
    show(rows, ("ids", "none", "yes", "text"), "csv")
    assert capsys.readouterr().out == 'ids,none,yes,text\n"1,2",,true,"a,""b"""\n'
    assert table(rows, ("none", "yes")).split() == ["NONE", "YES", "-", "true"]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("value", [UUID(int=1), b"bytes", {"set"}])
def test_what_is_no_cell_is_not_printed_by_its_repr(form, value):
    with pytest.raises(TypeError):
        show([{"cell": value}], ("cell",), form)


def test_a_table_without_rows_is_its_heading():
    assert table([], ("name", "some_size")) == "NAME  SOME-SIZE"


@pytest.mark.parametrize(
    ("form", "written"),
    [
        ("csv", "name,size\na,5\nlong,500\n"),
        (
            "jsonl",
            "".join(json.dumps(row) + "\n" for row in ROWS),
        ),
    ],
)
def test_rows_for_programs(form, written, capsys):
    show(ROWS, ("name", "size"), form)
    assert capsys.readouterr().out == written


def test_json_shows_every_key_whatever_the_columns(capsys):
    show(ROWS, ("name",), "json")
    assert json.loads(capsys.readouterr().out) == ROWS


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("consume t --format wide", "records have no wide: --format json or csv, or -f"),
        ("consume t --format yaml", "records have no yaml: --format json or csv, or -f"),
        ("log dump . --format wide", "log dump has no wide: --format jsonl has every field"),
        ("group export g --format yaml", "export writes CSV; "),
    ],
)
def test_a_format_that_a_command_does_not_have_is_refused(words, message):
    ended = CliRunner().invoke(kclient, words.split())
    assert (ended.exit_code, message in ended.output) == (2, True), ended.output


def test_yaml_without_its_extra_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    ended = CliRunner().invoke(kclient, ["context", "list", "--format", "yaml"])
    assert ended.exit_code == 2
    assert "which is not installed: pip install 'kbroker[yaml]'" in ended.output


def test_a_wide_table_has_every_column_and_nested_values_as_json(capsys):
    rows = [
        {"topic": "a", "isr": [1, 2], "racks": {"1": "x"}},
        {"topic": "b", "isr": [], "moves": [{"to": 3}], "racks": None},
    ]
    show(rows, ("isr", "topic"), "wide")
    assert capsys.readouterr().out.splitlines() == [
        "ISR  TOPIC  RACKS       MOVES",
        '1,2  a      {"1": "x"}  -',
        '     b      -           [{"to": 3}]',
    ]


def test_yaml_is_read_as_what_json_has(capsys):
    same = [1, 2]
    rows = [
        {"text": "yes", "number": "012", "none": None, "size": 5, "ids": same, "isr": same},
        {"text": "größe: #1\n- x", "nested": {"1": [True, {}]}, "share": 0.5, "isr": (1,)},
    ]
    show(rows, ("size",), "yaml")
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed) == json.loads(json.dumps(rows))
    assert "&" not in printed
    assert list(yaml.safe_load(printed)[0]) == list(rows[0])


# --- lines


class Trickle:
    """A stream that gives what is there, like a pipe."""

    def __init__(self, *pieces):
        self._pieces = list(pieces)

    def read1(self, _size):
        return self._pieces.pop(0) if self._pieces else b""

    read = read1


def test_lines_come_as_soon_as_they_are_whole():
    pieces = _lines(Trickle(b"a\nb", b"c\n\r\n", b"d\r\n\xff\n", b"rest"))
    assert list(pieces) == [[b"a"], [b"bc", b""], [b"d", b"\xff"], [b"rest"]]


def test_a_line_may_be_longer_than_a_piece():
    assert list(_lines(Trickle(b"a", b"b", b"c\n"))) == [[b"abc"]]
