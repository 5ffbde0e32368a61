"""Times, durations, and topics with partitions in options."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.cli.time_spec import parse_datetime, parse_duration, time_text
from kclient.cli.topic_spec import parse_topic

NOON = 1_795_435_200_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-11-23T12:00:00.000", NOON),  # Kafka's form, in UTC
        ("2026-11-23T12:00:00.001", NOON + 1),
        ("2026-11-23T12:00:00Z", NOON),
        ("2026-11-23T13:00:00.000+01:00", NOON),
        ("2026-11-23T13:00:00.000+0100", NOON),
        ("2026-11-23", NOON - 43_200_000),
        ("1969-12-31T23:59:59.999", -1),
    ],
)
def test_datetimes(text, ms):
    assert parse_datetime(text) == ms


@given(
    st.integers(0, 253_370_764_800_000),  # the year 9999
    st.integers(-14 * 60, 14 * 60),
)
def test_every_millisecond_in_every_zone_is_read_exactly(ms, minutes):
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    zoned = moment.astimezone(timezone(timedelta(minutes=minutes)))
    assert parse_datetime(zoned.isoformat()) == ms
    assert parse_datetime(time_text(ms)) == ms


def test_a_time_beyond_all_datetimes_is_shown_as_a_number():
    assert time_text(1 << 62) == f"{1 << 62} ms"


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2026-13-01T00:00:00.000", "T12:00", "1700000000000"]
)
def test_what_is_no_datetime_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011 - fromisoformat's own text
        parse_datetime(text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("P1D", 86_400_000),
        ("PT1H", 3_600_000),
        ("PT90M", 5_400_000),
        ("PT0.5S", 500),
        ("PT0,25S", 250),
        ("PT1.S", 1000),
        ("P1DT2H3M4.005S", 93_784_005),
        ("pt1m", 60_000),
        ("-PT1H", -3_600_000),
        ("+PT1H", 3_600_000),
        ("P-1DT1H", -82_800_000),
        ("PT-0.5S", -500),
        ("P0D", 0),
        ("P99999999999999999999D", 99999999999999999999 * 86_400_000),
    ],
)
def test_durations_are_those_of_java(text, ms):
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    "text",
    ["", "P", "PT", "P1DT", "1D", "P1Y", "P1M", "P1W", "PT1D", "PT1", "PT.5S", "P1.5D", "PT1S1M",
     "PT0.1234567890S", " PT1S", "PT٣S"],
)  # fmt: skip
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="is not a duration: expected PnDTnHnMnS"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("t", ("t", None)),
        ("t:0", ("t", (0,))),
        ("t:2,0,2", ("t", (0, 2))),
    ],
)
def test_topics_with_partitions(text, parsed):
    assert parse_topic(text) == parsed


@pytest.mark.parametrize(
    "text", ["", ":0", "t:", "t:x", "t:-1", "t:0,", "t:0:1", "t:1_0", "t: 1", "t:٣"]
)
def test_what_is_no_topic_with_partitions_is_refused(text):
    with pytest.raises(ValueError, match="expected topic or topic:0,1,2"):
        parse_topic(text)
