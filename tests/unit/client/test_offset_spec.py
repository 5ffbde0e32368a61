"""The grammar of -o, a line for every form."""

import pytest

from kclient.cli.offset_spec import Anchor, Bound, OffsetSpec, parse_offsets

NOW = 1_700_000_000_000
START, END, STORED = Bound(Anchor.START), Bound(Anchor.END), Bound(Anchor.STORED)


def offset(number):
    return Bound(Anchor.OFFSET, number)


def at(ms):
    return Bound(Anchor.TIME, ms)


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("start", START, None),
        ("beginning", START, None),
        ("earliest", START, None),
        ("oldest", START, None),
        ("end", END, None),
        ("latest", END, None),
        ("newest", END, None),
        ("stored", STORED, None),
        ("0", offset(0), None),
        ("47", offset(47), None),
        ("+2", Bound(Anchor.START, 2), None),
        ("-3", Bound(Anchor.END, -3), None),
        ("47:99", offset(47), offset(99)),
        ("47:", offset(47), None),
        (":99", START, offset(99)),
        (":end", START, END),
        ("-3:end", Bound(Anchor.END, -3), END),
        ("stored:end", STORED, END),
        ("@1700000000123", at(1_700_000_000_123), None),
        ("@2004-03-07T02:08:51.860Z", at(1_078_625_331_860), None),
        ("@1700000000", at(1_700_000_000_000), None),
        ("@-1h", at(NOW - 3_600_000), None),
        ("@-90s", at(NOW - 90_000), None),
        ("@-5m", at(NOW - 300_000), None),
        ("@-2d", at(NOW - 172_800_000), None),
        ("@-1w", at(NOW - 604_800_000), None),
        ("@-250ms", at(NOW - 250), None),
        ("@2023-11-14", at(1_699_920_000_000), None),
        ("@2023-11-14T22:13:20", at(1_700_000_000_000), None),
        ("@2023-11-14T22:13:20Z", at(1_700_000_000_000), None),
        ("@2023-11-14T23:13:20+01:00", at(1_700_000_000_000), None),
        ("@-1h:end", at(NOW - 3_600_000), END),
        ("@-1h:@-5m", at(NOW - 3_600_000), at(NOW - 300_000)),
        ("@1700000000:1700000009", at(1_700_000_000_000), at(1_700_000_009_000)),
        (
            "@2023-11-14T22:13:20:2023-11-14T22:13:21",
            at(1_700_000_000_000),
            at(1_700_000_001_000),
        ),
    ],
)
def test_every_form_is_read(text, first, last):
    assert parse_offsets(text, now_ms=NOW) == OffsetSpec(first, last)


@pytest.mark.parametrize("text", ["", "yesterday", "4x", "1:2:3", "1.5", "+", "-", "--3", "0x10"])
def test_what_is_no_offset_is_refused_with_the_forms_that_are(text):
    with pytest.raises(ValueError, match="expected start, end, stored"):
        parse_offsets(text, now_ms=NOW)


@pytest.mark.parametrize("text", ["@", "@soon", "@-1y", "@12345", "@1700000000:soon"])
def test_what_is_no_time_is_refused_with_the_forms_that_are(text):
    with pytest.raises(ValueError, match="expected 13-digit ms"):
        parse_offsets(text, now_ms=NOW)
