"""The alarms of `kmirror run`: each begins once and ends once."""

from __future__ import annotations

from collections.abc import Callable

from kclient.types import TopicPartition
from mirrormaker.alarms import Alarms
from mirrormaker.link import PartitionLink
from mirrormaker.link_state import Cause, LinkState, LogEnds, Problem

NO_ANSWERS: Callable[[TopicPartition], float | None] = {}.get


def link(partition: int = 0, *, lag: int = 0, open_records: int = 0) -> PartitionLink:
    """Return a link that copies; the target ends at offset 100."""
    made = PartitionLink(TopicPartition("t", partition))
    made.start()
    made.located(0, LogEnds(0, 100, 0, 100))
    made.source_end = 100 + lag - open_records
    made.source_high_watermark = 100 + lag
    assert (made.state, made.lag) == (LinkState.COPYING, lag)
    return made


def test_lag_without_progress_is_an_alarm_that_begins_once_and_ends_once() -> None:
    alarms = Alarms(no_progress=60, lag=0)
    behind = link(lag=7)
    assert not alarms.look([behind], NO_ANSWERS, 0.0)
    assert not alarms.look([behind], {behind.tp: 59.0}.get, 59.0), "answers are no progress"
    assert alarms.look([behind], NO_ANSWERS, 60.0) == ["ALARM no progress for 60 s: t-0 (lag 7)"]
    assert str(alarms) == "ALARM 1 without progress"
    assert not alarms.look([behind], NO_ANSWERS, 99.0)
    behind.appended_end += 1
    assert alarms.look([behind], NO_ANSWERS, 100.0) == [
        "alarm of no progress ended: t-0 (progress again)"
    ]
    assert str(alarms) == ""
    assert not alarms.look([behind], NO_ANSWERS, 159.0)
    assert alarms.look([behind], NO_ANSWERS, 160.0)


def test_a_link_without_lag_needs_answers_only() -> None:
    alarms = Alarms(no_progress=60, lag=0)
    quiet = link()
    for now in range(0, 600, 10):
        assert not alarms.look([quiet], {quiet.tp: now - 5.0}.get, float(now))
    answered = {quiet.tp: 590.0}
    assert not alarms.look([quiet], answered.get, 649.0)
    assert alarms.look([quiet], answered.get, 650.0) == [
        "ALARM no progress for 60 s: t-0 (the source has not answered for 60 s)"
    ]
    assert alarms.look([quiet], {quiet.tp: 651.0}.get, 651.0) == [
        "alarm of no progress ended: t-0 (progress again)"
    ]


def test_records_that_arrive_after_a_quiet_time_get_the_whole_time() -> None:
    alarms = Alarms(no_progress=60, lag=0)
    quiet = link()
    alarms.look([quiet], NO_ANSWERS, 0.0)
    alarms.look([quiet], {quiet.tp: 500.0}.get, 500.0)
    quiet.source_high_watermark += 5
    assert not alarms.look([quiet], {quiet.tp: 559.0}.get, 559.0)
    assert alarms.look([quiet], {quiet.tp: 560.0}.get, 560.0)


def test_a_hung_transaction_and_unknown_log_ends_are_named() -> None:
    alarms = Alarms(no_progress=1, lag=0)
    hung, unread = link(lag=7, open_records=7), PartitionLink(TopicPartition("t", 1))
    alarms.look([hung, unread], NO_ANSWERS, 0.0)
    assert alarms.look([hung, unread], NO_ANSWERS, 1.0) == [
        "ALARM no progress for 1 s: t-0 (lag 7, all in open transactions), t-1 (its log ends cannot be read)"
    ]


def test_a_stopped_link_is_reported_by_its_stop_and_by_its_lag_only() -> None:
    alarms = Alarms(no_progress=60, lag=5)
    stopped = link(lag=2)
    alarms.look([stopped], NO_ANSWERS, -60.0)
    assert alarms.look([stopped], NO_ANSWERS, -1.0) == []
    assert alarms.look([stopped], NO_ANSWERS, 0.0) == ["ALARM no progress for 60 s: t-0 (lag 2)"]
    stopped.source_high_watermark += 5
    stopped.state, stopped.problem = LinkState.STOPPED, Problem(Cause.DIVERGED, "")
    assert alarms.look([stopped], NO_ANSWERS, 0.0) == [
        "alarm of no progress ended: t-0 (STOPPED)",
        "ALARM lag over 5 records: t-0 (lag 7)",
    ]
    assert not alarms.look([stopped], NO_ANSWERS, 1000.0)
    stopped.state, stopped.problem = LinkState.COPYING, None
    assert not alarms.look([stopped], NO_ANSWERS, 1059.0)
    assert alarms.look([stopped], NO_ANSWERS, 1060.0)


def test_a_lag_near_the_limit_is_not_reported_again_and_again() -> None:
    alarms = Alarms(no_progress=0, lag=10)
    behind = link(lag=10)
    lines = []
    for lag in (10, 11, 9, 11, 6, 5, 10, 6, 11):
        behind.source_high_watermark = 100 + lag
        lines += alarms.look([behind], NO_ANSWERS, 0.0)
    assert lines == [
        "ALARM lag over 10 records: t-0 (lag 11)",
        "alarm of lag ended: t-0 (lag 5)",
        "ALARM lag over 10 records: t-0 (lag 11)",
    ]


def test_partitions_share_a_line_that_names_a_few() -> None:
    alarms = Alarms(no_progress=60, lag=0)
    links = [link(n, lag=n + 1) for n in range(8)]
    alarms.look(links, NO_ANSWERS, 0.0)
    (line,) = alarms.look(links, NO_ANSWERS, 60.0)
    assert line.startswith("ALARM no progress for 60 s: t-0 (lag 1), t-1 (lag 2), ")
    assert line.endswith(" and 3 more")


def test_the_alarm_of_a_removed_partition_ends_and_its_successor_starts_afresh() -> None:
    alarms = Alarms(no_progress=60, lag=0)
    behind = link(lag=7)
    alarms.look([behind], NO_ANSWERS, 0.0)
    assert alarms.look([behind], NO_ANSWERS, 60.0)
    assert alarms.look([], NO_ANSWERS, 61.0) == [
        "alarm of no progress ended: t-0 (no longer mirrored)"
    ]
    assert not alarms.look([link(lag=7)], NO_ANSWERS, 62.0)
    assert not alarms.look([link(lag=7)], NO_ANSWERS, 125.0), "another link"


def test_the_time_without_progress_is_known_of_each_link_also_without_an_alarm() -> None:
    alarms = Alarms(no_progress=0, lag=0)
    behind, quiet, stopped, unseen = link(0, lag=7), link(1), link(2, lag=2), link(3, lag=1)
    stopped.state, stopped.problem = LinkState.STOPPED, Problem(Cause.DIVERGED, "")
    answered = {behind.tp: 99.0, quiet.tp: 95.0}
    for now in (10.0, 100.0):
        assert not alarms.look([behind, quiet, stopped], answered.get, now)

    def idle(each: PartitionLink, now: float = 100.0) -> float | None:
        return alarms.idle_time(each, answered.get, now)

    assert idle(behind) == 90.0, "answers are no progress while there is lag"
    assert idle(quiet) == 5.0, "since the source's last answer"
    assert idle(stopped) is None
    assert idle(unseen) is None
    behind.appended_end += 1
    assert idle(behind) == 0.0
    quiet.source_high_watermark += 5
    answered[quiet.tp] = 103.0
    assert idle(quiet, 104.0) == 4.0, "since the look at which it had no lag"
    alarms.look([behind, quiet, stopped], answered.get, 104.0)
    assert idle(quiet, 110.0) == 10.0
    assert idle(behind, 110.0) == 6.0
