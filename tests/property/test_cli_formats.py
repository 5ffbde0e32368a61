"""`consume -f json` and `produce --input json` are inverse, byte for byte."""

from hypothesis import given
from hypothesis import strategies as st

from kclient.cli.formats import formatter, from_envelope, joined, value_end
from kclient.types import Record
from tests.kit.record_batches import header_lists, maybe_bytes

anything = maybe_bytes | st.text().map(str.encode)


@given(anything, anything, header_lists, st.integers(-1, 1 << 60))
def test_the_envelope_survives_the_way_back(key, value, headers, timestamp):
    record = Record("t", 0, 1, timestamp, 0, key, value, headers)
    line = formatter("json")(record)
    assert line.endswith(b"\n")
    assert b"\n" not in line[:-1]
    assert from_envelope(line.decode()) == (key, value, headers, timestamp)


templates = st.sampled_from(
    ["raw", "value", "json", "csv", r"%v\n", "%s", r"%v;\x41", "%v{hex}", "%v%%", "%k=%v", "v"]
)


@given(templates, st.lists(anything | st.integers(), max_size=5))
def test_records_together_are_printed_as_one_after_the_other(template, values):
    write = formatter(template)
    records = [Record("t", 0, n, 1, 0, None, value) for n, value in enumerate(values)]
    expected = b"".join(write(record) for record in records)
    assert joined(records, write, value_end(template)) == expected
