"""Which entries of the checkpoint of high watermarks a start accepts."""

from __future__ import annotations

import pytest

from kbroker.log.offset_checkpoint_file import FoundLog, accepted_high_watermarks

KEY, OTHER = ("t", 0), ("t", 1)
LOG = FoundLog(log_end=10, recovery_point=6, has_topic_id=True)


@pytest.mark.parametrize(
    ("mark", "log", "after_power_loss", "by_kbroker", "accepted"),
    [
        (8, LOG, False, True, 8),
        (10, LOG, False, True, 10),
        (11, LOG, False, True, 0),
        (8, LOG, True, True, 6),
        (4, LOG, True, True, 4),
        (11, LOG, True, True, 0),
        (8, LOG._replace(has_topic_id=False), False, True, 0),
        (8, LOG._replace(has_topic_id=False), False, False, 8),
    ],
)
def test_a_high_watermark_is_accepted_as_far_as_the_log_shows_it(
    mark: int, log: FoundLog, after_power_loss: bool, by_kbroker: bool, accepted: int
) -> None:
    found = accepted_high_watermarks(
        {KEY: mark}, {KEY: log}, after_power_loss=after_power_loss, by_kbroker=by_kbroker
    )
    assert found == {KEY: accepted}


def test_an_entry_without_a_log_in_its_directory_concerns_no_log() -> None:
    found = accepted_high_watermarks(
        {KEY: 4, OTHER: 3}, {OTHER: LOG}, after_power_loss=False, by_kbroker=True
    )
    assert found == {OTHER: 3}, "the log of t-0 may be in another directory, and a later topic's"
