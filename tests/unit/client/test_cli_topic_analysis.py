"""The analysis of a topic's records: counts, estimates in bounded memory, and the line of progress."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kclient.cli.progress import Progress, share_line
from kclient.cli.topic_analysis import Analysis, DistinctCount, FrequentKeys
from kclient.cli.topic_analyze import summary_lines


def analysis(
    *records: tuple[int, int, bytes | None, bytes | None], codec: str = "none"
) -> Analysis:
    """Analyze one batch of (offset, timestamp, key, value)."""
    made = Analysis()
    made.add_batch(codec, 100, is_control=False)
    offsets, timestamps, keys, values = zip(*records, strict=True)
    made.add_records(offsets, timestamps, keys, values, [()] * len(records))
    return made


def test_records_are_counted() -> None:
    found = analysis(
        (0, 50, b"a", b"12345"), (1, 40, None, None), (5, 60, b"a", b"1"), codec="zstd"
    )
    found.add_batch("none", 70, is_control=True)
    found.add_batch("none", 30, is_control=False)
    found.add_records([9], [55], [b"bc"], [b""], [(("h", b"v"),)])
    row = found.row()
    assert row["frequent_keys"] == [{"key": "a", "records": 2}, {"key": "bc", "records": 1}]
    assert {name: row[name] for name in ("records", "batches", "control_batches", "bytes")} == {
        "records": 4, "batches": 2, "control_batches": 1, "bytes": 200,
    }  # fmt: skip
    assert row["codecs"] == {"zstd": 1, "none": 1}
    assert (row["null_keys"], row["null_values"], row["headers"]) == (1, 1, 1)
    assert (row["key_bytes"], row["value_bytes"], row["value_size_max"]) == (4, 6, 5)
    assert (row["value_size_mean"], row["distinct_keys"]) == (2.0, 2)
    assert (row["first_timestamp"], row["last_timestamp"], row["late_timestamps"]) == (40, 60, 2)
    assert (row["holes"], row["missing_offsets"]) == (2, 6)


def test_sizes_are_below_a_power_of_two() -> None:
    found = analysis(*((n, 0, None, bytes(size)) for n, size in enumerate([0, 1, 5, 7, 300])))
    assert (found.value_size_below(0.2), found.value_size_below(0.5)) == (1, 8)
    assert found.value_size_below(0.99) == 512
    assert Analysis().value_size_below(0.5) is None


def test_the_total_is_the_sum_of_the_partitions() -> None:
    one = analysis((0, 50, b"a", b"x"), (2, 40, b"b", None))
    two = analysis((7, 90, b"a", b"yyy"), codec="lz4")
    total = Analysis()
    for each in (one, two, Analysis()):
        total.merge(each)
    row = total.row()
    assert (row["records"], row["bytes"], row["distinct_keys"], row["holes"]) == (3, 200, 2, 1)
    assert (row["first_timestamp"], row["last_timestamp"], row["value_size_max"]) == (40, 90, 3)
    assert row["frequent_keys"][0] == {"key": "a", "records": 2}
    assert row["codecs"] == {"none": 1, "lz4": 1}


@pytest.mark.parametrize("number", [0, 1, 100, 5_000, 60_000])
def test_distinct_keys_are_estimated(number: int) -> None:
    count = DistinctCount()
    for _ in range(2):
        count.add(b"key-%d" % n for n in range(number))
    assert abs(count.estimate - number) <= 0.06 * number


def test_a_frequent_key_is_found_among_many() -> None:
    """One record in 20 has the key; a count is at most 1 % of all records too low."""
    rng = random.Random(7)
    keys = [b"hot" if rng.random() < 0.05 else b"%d" % rng.getrandbits(40) for _ in range(40_000)]
    frequent = FrequentKeys()
    for begin in range(0, len(keys), 500):
        frequent.add(Counter(keys[begin : begin + 500]))
        assert len(frequent.top(1000)) <= 100
    ((key, number),) = frequent.top(1)
    assert key == b"hot"
    assert keys.count(b"hot") - 400 <= number <= keys.count(b"hot")


def test_long_keys_are_kept_in_part() -> None:
    frequent = FrequentKeys()
    frequent.add(Counter({bytes(10_000): 3}))
    assert frequent.top(1) == [(bytes(256), 3)]


def test_the_summary_of_nothing_is_one_line() -> None:
    assert summary_lines(Analysis().row()) == [("Records", "none")]
    lines = dict(summary_lines(analysis((0, 0, None, None)).row()))
    assert lines["Keys"] == "about 0 distinct; 100.0 % of the records have none"


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("quiet", "is_terminal"), [(False, True), (True, True), (False, False)])
def test_progress_begins_after_two_seconds_at_a_terminal(
    quiet: bool,
    is_terminal: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    clock = Clock()
    progress = Progress(clock, quiet=quiet)
    for seconds in (1.0, 2.0, 2.1, 2.6):
        clock.now = 100.0 + seconds
        progress.show(f"at {clock.now:g}")
    progress.clear()
    shown = "\rat 102\rat 102.6\r        \r" if is_terminal and not quiet else ""
    assert capsys.readouterr().err == shown


def test_the_line_of_progress() -> None:
    assert share_line("reading", 0, 10, 3.0) == "reading: 0 %"
    assert share_line("reading", 4, 10, 8.0) == "reading: 40 %, 12 s left"
    assert (
        share_line("reading", 10, 10, 8.0) == share_line("reading", 0, 0, 8.0) == "reading: 100 %"
    )
