"""What kmirror reports about the writes to a topic of its own."""

from __future__ import annotations

from kclient.errors import KafkaTimeoutError
from mirrormaker.internal_topic import WriteReports


def test_each_change_is_reported_once() -> None:
    lines: list[tuple[str, str]] = []
    reports = WriteReports("evidence e", lambda what, text: lines.append((what, text)))
    reports.written(None)
    reports.dropped(0, "0 were dropped")
    assert lines == []
    for _ in range(2):
        reports.written(KafkaTimeoutError("no answer"))
        reports.dropped(7, "7 were dropped")
    assert [text for _, text in lines] == ["cannot be written: no answer", "7 were dropped"]
    for _ in range(2):
        reports.written(None)
    reports.dropped(9, "9 were dropped")
    assert lines[2:] == [("evidence e", "is written again"), ("evidence e", "9 were dropped")]
