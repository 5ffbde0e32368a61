"""The link of one partition, event by event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kclient.errors import ConnectionClosed, KafkaTimeoutError
from kclient.types import TopicPartition
from kclient.wire.errors import (
    CorruptMessage,
    KafkaError,
    MessageTooLarge,
    TopicAuthorizationFailed,
)
from mirrormaker.lineage import Lineage
from mirrormaker.link import (
    CORRUPT_TRIES,
    FIRST_RETRY,
    LONGEST_DELAY,
    MAX_TRIES,
    PartitionLink,
)
from mirrormaker.link_state import (
    RETRIABLE_CAUSES,
    Cause,
    Effect,
    Finished,
    Gap,
    GapPolicy,
    LastBatch,
    LinkState,
    Locate,
    LogEnds,
    Problem,
    RecordGap,
    Recovered,
    ReportGap,
    Stopped,
)
from mirrormaker.marks import is_checked
from mirrormaker.runs import Run

TP = TopicPartition("t", 0)


def run(base: int, end: int, *, size: int = 10, crc: int = 0, missing: int = 0) -> Run:
    return Run(memoryview(bytes(size)), base, end, 1, end - base, missing, 1000, 3, crc or end)


def tail(end: int, *, crc: int = 0, base: int | None = None) -> LastBatch:
    return LastBatch(end - 1 if base is None else base, end, crc or end, 3)


def ends(source_start: int, source_end: int, target_end: int, target_start: int = 0) -> LogEnds:
    shared = source_start < target_end <= source_end
    return LogEnds(
        source_start,
        source_end,
        target_start,
        target_end,
        tail(target_end) if shared else None,
        tail(target_end) if target_start < target_end else None,
    )


def copying(at: LogEnds | None = None, **options: object) -> PartitionLink:
    link = PartitionLink(TP, **options)  # type: ignore[arg-type]
    assert link.start() == [Locate(0, 0.0)]
    link.located(0, at or ends(0, 10, 0))
    assert link.state is LinkState.COPYING
    return link


def with_appends(count: int) -> PartitionLink:
    """A link with so many appends of one offset each in flight."""
    link = copying()
    for offset in range(count):
        assert link.fetched(0, offset, run(offset, offset + 1), 10) == []
        link.next_append()
    assert link.in_flight == count
    return link


def recording(link: PartitionLink, at: LogEnds) -> list[Effect]:
    """Let a link find a gap, and write it into the ledger; return the effects of the next reading of both logs."""
    (effect,) = link.located(0, at)
    assert isinstance(effect, RecordGap)
    assert link.recorded(0, effect.gap) == [Locate(0, 0.0)]
    return link.located(0, at)


def stopped(effects: list[object]) -> Problem:
    (effect,) = effects
    assert isinstance(effect, Stopped)
    return effect.problem


# --- where to begin


def test_a_fresh_target_begins_where_the_source_does() -> None:
    link = copying(ends(5, 9, 0))
    assert (link.fetch_offset, link.appended_end, link.lag) == (5, 0, 4)
    link.fetched(0, 5, run(5, 7), 9)
    append = link.next_append()
    assert (append.expected_log_end, append.previous_crc) == (5, 0)


def test_or_before_it_where_the_source_begins_inside_a_batch() -> None:
    link = copying(ends(5, 9, 0))
    link.fetched(0, 5, run(3, 7), 9)
    assert link.next_append().expected_log_end == 3


def test_a_gap_at_the_beginning_is_part_of_the_copy() -> None:
    link = copying(ends(0, 9, 0), compacted=True)
    link.fetched(0, 0, run(4, 7), 9)
    assert link.next_append().expected_log_end == 0


def test_a_restart_goes_on_from_the_targets_log_end() -> None:
    link = copying(ends(0, 10, 7))
    assert (link.fetch_offset, link.fetched_epoch, link.lag) == (7, 3, 3)
    link.fetched(0, 7, run(7, 9), 10)
    append = link.next_append()
    assert (append.expected_log_end, append.previous_crc) == (7, 7), "behind the very batch"


def test_another_batch_before_the_targets_end_stops_it() -> None:
    link = PartitionLink(TP)
    other = LogEnds(0, 10, 0, 7, tail(7), tail(7, crc=99))
    problem = stopped(link.located(0, other))
    assert problem.cause is Cause.DIVERGED
    assert "CRC 0x00000063" in problem.detail


def test_a_batch_that_compaction_rewrote_may_differ() -> None:
    at = LogEnds(0, 10, 0, 7, tail(7), tail(7, crc=99))
    link = copying(at, compacted=True)
    link.fetched(0, 7, run(7, 8), 10)
    assert link.next_append().previous_crc == 99, "what the target has"


def test_a_target_that_ends_inside_a_batch_stops_it() -> None:
    link = PartitionLink(TP)
    at = LogEnds(0, 10, 0, 7, LastBatch(5, 9, 1), tail(7))
    assert stopped(link.located(0, at)).cause is Cause.STRADDLES


def test_a_target_ahead_of_the_source_stops_the_link_after_several_tries() -> None:
    link = PartitionLink(TP)
    for _ in range(MAX_TRIES - 1):
        (again,) = link.located(0, ends(0, 5, 7))
        assert isinstance(again, Locate)
    assert stopped(link.located(0, ends(0, 5, 7))).cause is Cause.TARGET_AHEAD


def test_a_watermark_that_lags_for_a_moment_is_waited_for() -> None:
    link = PartitionLink(TP)
    link.located(0, ends(0, 5, 7))
    assert link.located(0, ends(0, 8, 7)) == []
    assert link.state is LinkState.COPYING


def test_what_the_source_deleted_before_it_was_copied_stops_it() -> None:
    link = PartitionLink(TP)
    problem = stopped(link.located(0, ends(8, 10, 5)))
    assert problem.cause is Cause.RETENTION
    assert "offsets 5-7 are deleted" in problem.detail
    assert "gap.policy=skip" in problem.detail


def test_or_is_declared_and_skipped() -> None:
    link = PartitionLink(TP, gap_policy=GapPolicy.SKIP)
    gap = Gap(5, 8, Cause.RETENTION)
    assert recording(link, ends(8, 10, 5)) == [ReportGap(gap)]
    assert link.gaps == [gap]
    link.fetched(0, 8, run(8, 9), 10)
    assert link.next_append().expected_log_end == 5


@pytest.mark.parametrize(("base", "gap"), [(6, (5, 6)), (8, (5, 8)), (5, None), (4, None)])
def test_a_gap_ends_where_the_batch_begins_that_has_the_log_start_of_the_source(
    base: int, gap: tuple[int, int] | None
) -> None:
    """After DeleteRecords the log starts inside a batch, which the source sends whole: all of it is copied."""
    at = replace(ends(8, 10, 5), source_first_batch=tail(10, base=base))
    link = PartitionLink(TP, gap_policy=GapPolicy.SKIP)
    link.start()
    if gap is None:
        assert link.located(0, at) == []
    else:
        assert recording(link, at) == [ReportGap(Gap(*gap, Cause.RETENTION))]
    assert link.fetch_offset == 8
    effects = link.fetched(0, 8, run(base, 10), 10)
    if base < 5:
        assert stopped(effects).cause is Cause.STRADDLES
    else:
        assert (effects, link.next_append().expected_log_end) == ([], 5)


def test_a_refused_gap_names_the_batch_in_which_the_source_starts() -> None:
    link = PartitionLink(TP)
    link.start()
    at = replace(ends(8, 10, 5), source_first_batch=tail(10, base=7))
    assert stopped(link.located(0, at)).detail == (
        "offsets 5-6 are deleted, the source starts at 8, inside a batch that begins at 7; gap.policy=skip continues "
        "there"
    )


@pytest.mark.parametrize(("base", "until"), [(7, 7), (5, 5), (4, None)])
def test_a_recreated_topic_that_starts_inside_a_batch_is_continued_with_the_whole_batch(
    base: int, until: int | None
) -> None:
    link = PartitionLink(TP, lineage=RECREATED, gap_policy=GapPolicy.SKIP)
    link.start()
    at = replace(ends(8, 10, 5), source_first_batch=tail(10, base=base))
    if until is None:
        detail = stopped(link.located(0, at)).detail
        assert (
            "the new log starts at 8, inside a batch that begins at 4. kmirror truncate" in detail
        )
    else:
        gap = Gap(5, until, Cause.RECREATED, "first", "second")
        assert recording(link, at) == [ReportGap(gap)]


def test_nothing_is_fetched_or_appended_before_the_gap_is_in_the_ledger() -> None:
    link = PartitionLink(TP, gap_policy=GapPolicy.SKIP)
    gap = Gap(5, 8, Cause.RETENTION)
    assert link.located(0, ends(8, 10, 5)) == [RecordGap(0, gap)]
    assert not link.wants_fetch
    assert link.fetched(0, 8, run(8, 9), 10) == []
    assert not link.has_append
    assert link.gaps == [], "not reported before it is durable"


def test_a_gap_that_grows_while_it_is_recorded_is_recorded_again() -> None:
    link = PartitionLink(TP, gap_policy=GapPolicy.SKIP)
    link.located(0, ends(8, 10, 5))
    link.recorded(0, Gap(5, 8, Cause.RETENTION))
    assert link.located(0, ends(9, 10, 5)) == [RecordGap(0, Gap(5, 9, Cause.RETENTION))]


def test_a_gap_that_cannot_be_recorded_is_tried_again_and_never_passed() -> None:
    link = PartitionLink(TP, gap_policy=GapPolicy.SKIP)
    delays = []
    for _ in range(8):
        assert link.located(0, ends(8, 10, 5)) == [RecordGap(0, Gap(5, 8, Cause.RETENTION))]
        (again,) = link.not_recorded(0)
        assert isinstance(again, Locate)
        delays.append(again.delay)
    assert (delays, delays[-1]) == (sorted(delays), LONGEST_DELAY)
    assert not link.wants_fetch


def test_the_acknowledgement_of_an_earlier_generation_records_nothing() -> None:
    link = PartitionLink(TP, gap_policy=GapPolicy.SKIP)
    link.generation = 1
    link.located(1, ends(8, 10, 5))
    assert link.recorded(0, Gap(5, 8, Cause.RETENTION)) == []
    assert link.not_recorded(0) == []


def test_a_topic_is_not_marked_while_a_gap_of_a_partition_is_not_in_the_ledger() -> None:
    links = [PartitionLink(TP, lineage=RECREATED, gap_policy=GapPolicy.SKIP) for _ in range(2)]
    recording(links[0], ends(5, 10, 5))
    links[1].located(0, ends(5, 10, 5))
    assert not is_checked(links)
    links[1].recorded(0, Gap(5, 5, Cause.RECREATED, "first", "second"))
    assert not is_checked(links)
    links[1].located(0, ends(5, 10, 5))
    assert is_checked(links)


def test_logs_that_cannot_be_found_are_asked_for_again_and_again() -> None:
    link = PartitionLink(TP)
    delays = []
    for _ in range(12):
        (again,) = link.not_located(0, KafkaTimeoutError("no answer"))
        assert isinstance(again, Locate)
        delays.append(again.delay)
    assert delays == sorted(delays)
    assert delays[-1] == LONGEST_DELAY


def test_a_source_that_may_not_be_read_stops_it() -> None:
    link = PartitionLink(TP)
    problem = stopped(link.not_located(0, TopicAuthorizationFailed("no")))
    assert problem.cause is Cause.UNREADABLE


# --- copying


def test_appends_are_pipelined_each_behind_the_one_before() -> None:
    link = copying()
    for offset in range(3):
        link.fetched(0, offset, run(offset, offset + 1), 10)
    appends = [link.next_append() for _ in range(3)]
    assert [(a.expected_log_end, a.previous_crc) for a in appends] == [(0, 0), (1, 1), (2, 2)]
    assert (link.buffered_bytes, link.appended_end) == (30, 0)
    link.appended(0, 1)
    assert (link.buffered_bytes, link.appended_end, link.lag) == (20, 1, 9)


def test_an_answer_for_another_offset_or_generation_changes_nothing() -> None:
    link = copying()
    link.fetched(0, 0, run(0, 2), 10)
    assert link.fetched(0, 0, run(0, 2), 10) == []
    assert link.fetched(7, 2, run(2, 3), 10) == []
    assert (link.fetch_offset, link.buffered_bytes) == (2, 10)


def test_offsets_removed_by_compaction_are_no_gap_but_other_missing_offsets_are() -> None:
    quiet = copying(compacted=True)
    assert quiet.fetched(0, 0, run(3, 5), 10) == []
    strict = copying()
    gap = Gap(0, 5, Cause.COMPACTION)
    assert strict.fetched(0, 0, run(3, 5), 10) == [ReportGap(gap)]
    assert str(gap) == (
        "offsets 0-4 are copied with holes: the source has no records at some of these offsets any more (compaction)"
    )


def test_a_batch_from_before_the_targets_end_stops_it() -> None:
    link = copying(ends(0, 10, 7))
    assert stopped(link.fetched(0, 7, run(6, 9), 10)).cause is Cause.STRADDLES


# --- trouble


def test_a_refusal_forgets_the_whole_pipeline() -> None:
    link = with_appends(3)
    assert link.append_rejected(0, 1) == [Locate(1, 0.0)]
    assert (link.state, link.in_flight, link.buffered_bytes) == (LinkState.LOCATING, 0, 0)
    assert link.append_rejected(0, 1) == [], (
        "those behind it are refused too, and that changes nothing"
    )
    assert link.appended(0, 1) == []
    link.located(1, ends(0, 10, 1))
    assert link.fetch_offset == 1


def test_a_log_end_that_is_not_committed_yet_is_waited_for() -> None:
    link = with_appends(1)
    link.append_rejected(0, 5)
    (again,) = link.located(1, ends(0, 10, 3))
    assert isinstance(again, Locate)
    assert link.located(1, ends(0, 10, 5)) == []
    assert link.appended_end == 5


def test_a_lost_connection_forgets_the_whole_pipeline() -> None:
    link = with_appends(3)
    (again,) = link.append_failed(0, ConnectionClosed("gone"))
    assert isinstance(again, Locate)
    assert link.append_failed(0, ConnectionClosed("gone")) == []
    assert link.counts.rewinds == 1


def test_an_error_that_will_not_pass_stops_it() -> None:
    link = with_appends(1)
    problem = stopped(link.append_failed(0, TopicAuthorizationFailed("no")))
    assert problem.cause is Cause.REJECTED
    assert link.problem == problem


@pytest.mark.parametrize(
    ("error", "tries"),
    [(MessageTooLarge("9 bytes"), MAX_TRIES), (CorruptMessage("x"), CORRUPT_TRIES)],
)
def test_some_rejections_stop_the_link_after_several_tries(error: KafkaError, tries: int) -> None:
    link = copying()
    for _ in range(tries - 1):
        link.fetched(link.generation, 0, run(0, 1), 10)
        link.next_append()
        (again,) = link.append_failed(link.generation, error)
        assert isinstance(again, Locate)
        link.located(link.generation, ends(0, 10, 0))
    link.fetched(link.generation, 0, run(0, 1), 10)
    link.next_append()
    assert stopped(link.append_failed(link.generation, error)).cause is Cause.REJECTED


def test_a_damaged_batch_at_the_source_is_fetched_again_and_then_stops_the_link() -> None:
    link = copying()
    for _ in range(CORRUPT_TRIES - 1):
        assert link.corrupt(0, CorruptMessage("bad CRC")) == []
    assert stopped(link.corrupt(0, CorruptMessage("bad CRC"))).cause is Cause.CORRUPT


def test_out_of_range_waits_for_what_was_fetched() -> None:
    link = with_appends(2)
    assert link.out_of_range(0) == []
    assert not link.wants_fetch
    assert link.appended(0, 1) == []
    (again,) = link.appended(0, 2)
    assert isinstance(again, Locate)


def test_a_source_that_rejects_its_own_epoch_gets_fetches_without_one() -> None:
    link = copying(ends(0, 10, 7))
    link.out_of_range(0)
    link.located(1, ends(0, 10, 7))
    assert link.fetched_epoch == -1
    link.fetched(1, 7, run(7, 8), 10)
    assert link.fetched_epoch == -1


def lost_batch(at: LogEnds) -> LogEnds:
    """The same log ends, if the source has another batch below the target's end, of a later leader epoch."""
    other = LastBatch(at.target_end - 1, at.target_end, 99, 7)
    return replace(at, source_last_batch=other)


def test_a_compacted_source_that_lost_the_last_copied_batch_stops_the_link() -> None:
    """Its batches are not compared: the cleaner rewrites them. Its leader epochs show it (KIP-320)."""
    link = copying(ends(0, 7, 7), compacted=True)
    assert stopped(link.diverged(0)).cause is Cause.DIVERGED


@pytest.mark.parametrize("acknowledged", [0, 1, 2])
def test_or_that_lost_one_in_flight(acknowledged: int) -> None:
    link = copying(ends(0, 10, 0), compacted=True)
    for offset in range(2):
        link.fetched(0, offset, run(offset, offset + 1), 10)
        link.next_append()
    for offset in range(acknowledged):
        link.appended(0, offset + 1)
    if acknowledged < 2:
        (again,) = link.diverged(0)
        assert isinstance(again, Locate)
        link.located(1, lost_batch(ends(0, 10, 2)))  # the target had got both
        assert (link.fetch_offset, link.fetched_epoch) == (2, 3)
    assert stopped(link.diverged(link.generation)).cause is Cause.DIVERGED


def test_a_compacted_source_that_lost_what_was_only_fetched_is_copied_on() -> None:
    link = copying(ends(0, 10, 7), compacted=True)
    link.fetched(0, 7, run(7, 8), 10)
    (again,) = link.diverged(0)
    assert isinstance(again, Locate)
    link.located(1, ends(0, 9, 7))
    assert (link.state, link.fetched_epoch) == (LinkState.COPYING, 3)
    assert link.fetched(1, 7, run(7, 9), 9) == []


@pytest.mark.parametrize(
    ("policy", "before", "after"),
    [
        (GapPolicy.FAIL, ends(0, 10, 0), ends(5, 10, 0)),
        (GapPolicy.SKIP, ends(0, 10, 3), ends(5, 10, 3)),
    ],
)
def test_after_retention_at_the_source_fetches_carry_epochs_as_before(
    policy: GapPolicy, before: LogEnds, after: LogEnds
) -> None:
    link = copying(before, gap_policy=policy)
    link.out_of_range(0)
    for effect in link.located(1, after):
        if isinstance(effect, RecordGap):
            link.recorded(1, effect.gap)
            link.located(1, after)
    link.fetched(1, 5, run(5, 8), 10)
    assert link.fetched_epoch == 3  # a leader that lost offset 7 answers with a diverging epoch


def test_a_compacted_source_that_starts_above_the_target_has_no_epoch_to_compare() -> None:
    """The last copied batch is not the one below the fetch offset: in between may be a later epoch.

    A new leader with a lower log start then answers with a diverging epoch, although no record is lost.
    """
    link = copying(ends(0, 10, 3), compacted=True, gap_policy=GapPolicy.SKIP)
    link.out_of_range(0)
    after = ends(5, 10, 3)
    (effect,) = link.located(1, after)
    assert isinstance(effect, RecordGap)
    link.recorded(1, effect.gap)
    link.located(1, after)
    assert (link.fetch_offset, link.fetched_epoch) == (5, -1)
    assert isinstance(link.diverged(1)[0], Locate)
    link.located(2, ends(2, 10, 3))  # the new leader still has what the target ends with
    assert (link.fetch_offset, link.fetched_epoch) == (3, 3)


# --- the lineage

RECREATED = Lineage("second", "first")


@pytest.mark.parametrize("at", [ends(0, 10, 5), ends(5, 10, 5), ends(7, 10, 5), ends(0, 3, 5)])
@pytest.mark.parametrize("compacted", [True, False])
def test_a_recreated_topic_stops_it_wherever_the_new_log_lies(at: LogEnds, compacted: bool) -> None:
    link = PartitionLink(TP, lineage=RECREATED, compacted=compacted)
    link.start()
    problem = stopped(link.located(0, at))
    assert problem.cause is Cause.RECREATED
    assert "topic id first became second; the target has records up to offset 5" in str(problem)
    assert problem.gap is not None
    assert (problem.gap.first, problem.gap.before, problem.gap.after) == (5, "first", "second")


@pytest.mark.parametrize(("start", "until"), [(5, 5), (8, 8)])
def test_or_is_continued_behind_a_declared_gap(start: int, until: int) -> None:
    link = PartitionLink(TP, lineage=RECREATED, gap_policy=GapPolicy.SKIP)
    link.start()
    gap = Gap(5, until, Cause.RECREATED, "first", "second")
    assert recording(link, ends(start, 10, 5)) == [ReportGap(gap)]
    assert link.fetched(0, start, run(start, 10), 10) == []
    assert link.next_append().expected_log_end == 5
    link.append_rejected(0, 5)
    assert link.located(1, ends(start, 10, 5)) == [], "the same gap is declared once"
    link.marked()
    link.target_epoch_changed(1)
    assert link.located(2, ends(0, 20, 10)) == []
    assert link.gaps == [gap]


def test_records_of_a_recreated_topic_below_the_targets_end_cannot_be_copied() -> None:
    link = PartitionLink(TP, lineage=RECREATED, gap_policy=GapPolicy.SKIP)
    link.start()
    problem = stopped(link.located(0, ends(4, 10, 5)))
    assert problem.cause is Cause.RECREATED
    assert "the new log starts at 4" in problem.detail


@pytest.mark.parametrize(
    ("lineage", "at", "proven"),
    [
        (Lineage("id", "", is_proven=False), ends(5, 10, 5), False),
        (Lineage("id", "", is_proven=False), ends(4, 10, 5), True),
        (Lineage("id", "", is_proven=False), ends(5, 10, 0), True),
        (Lineage("id", "id"), ends(5, 10, 5), True),
        (Lineage("", ""), ends(5, 10, 5), True),
    ],
)
def test_a_target_that_states_no_origin_needs_a_batch_in_common(
    lineage: Lineage, at: LogEnds, proven: bool
) -> None:
    link = PartitionLink(TP, lineage=lineage)
    link.start()
    link.located(0, at)
    assert link.state is (LinkState.COPYING if proven else LinkState.STOPPED)
    assert proven or (link.problem and link.problem.cause is Cause.UNPROVEN)


# --- again after a stop


def test_a_stop_that_may_be_mended_is_retried_with_backoff_until_it_copies() -> None:
    link = PartitionLink(TP, retries=True)
    link.start()
    delays = []
    effects: list[object] = link.not_located(0, TopicAuthorizationFailed("no"))
    for generation in range(1, 7):
        (effect,) = effects
        assert isinstance(effect, Stopped)
        assert effect.problem.cause in RETRIABLE_CAUSES
        delays.append(effect.retry_after)
        assert link.retry(generation - 1) == [], "of an earlier stop"
        assert link.retry(generation) == [Locate(generation, 0.0)]
        effects = link.not_located(generation, TopicAuthorizationFailed("no"))
    assert delays == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    assert link.retry(7) == [Locate(7, 0.0)]
    assert link.located(7, ends(0, 10, 5)) == []
    assert link.problem is not None, "it does not copy yet"
    link.fetched(7, 5, run(5, 10), 10)
    link.next_append()
    assert link.appended(7, 10) == [
        Recovered(Problem(Cause.UNREADABLE, str(TopicAuthorizationFailed("no"))))
    ]
    assert link.problem is None
    (effect,) = link.unreadable(7, TopicAuthorizationFailed("no"))
    assert isinstance(effect, Stopped)
    assert effect.retry_after == FIRST_RETRY, "the backoff begins again"


def test_a_link_with_nothing_to_copy_recovers_by_a_fetch() -> None:
    link = copying(ends(0, 10, 10), retries=True)
    link.unreadable(0, TopicAuthorizationFailed("no"))
    link.retry(1)
    link.located(1, ends(0, 10, 10))
    (effect,) = link.fetched(1, 10, None, 10)
    assert isinstance(effect, Recovered)


def test_a_batch_that_stays_too_large_stops_it_again_at_once() -> None:
    link = copying(retries=True)
    for tries in range(MAX_TRIES):
        generation = link.generation
        link.fetched(generation, 0, run(0, 1), 10)
        link.next_append()
        effects = link.append_failed(generation, MessageTooLarge("limit"))
        assert isinstance(effects[0], Stopped) is (tries == MAX_TRIES - 1)
        link.located(link.generation, ends(0, 10, 0))
    link.retry(link.generation)
    link.located(link.generation, ends(0, 10, 0))
    link.fetched(link.generation, 0, run(0, 1), 10)
    link.next_append()
    (effect,) = link.append_failed(link.generation, MessageTooLarge("limit"))
    assert isinstance(effect, Stopped)
    assert effect.retry_after == 2 * FIRST_RETRY


def test_a_link_that_waits_for_the_mark_recovers_with_it() -> None:
    link = copying(ends(0, 10, 10), retries=True)
    problem = stopped(link.not_a_mirror("another partition is unreadable"))
    assert link.retry(1) == [Locate(1, 0.0)]
    link.located(1, ends(0, 10, 10))
    assert link.fetched(1, 10, None, 10) == [], "the topic is not marked yet"
    assert link.problem == problem
    assert link.marked() == [Recovered(problem)]
    link.not_a_mirror("again")
    assert link.marked() == [Recovered(Problem(Cause.NO_MIRROR, "again")), Locate(2, 0.0)]


@pytest.mark.parametrize("retries", [True, False])
def test_a_divergence_is_never_retried(retries: bool) -> None:
    link = PartitionLink(TP, retries=retries)
    link.start()
    other = LogEnds(0, 10, 0, 5, tail(5), tail(5, crc=99))
    (effect,) = link.located(0, other)
    assert isinstance(effect, Stopped)
    assert (effect.problem.cause, effect.retry_after) == (Cause.DIVERGED, None)


# --- the cut


def test_the_link_finishes_at_the_cut_when_all_is_acknowledged() -> None:
    link = copying(cut=2)
    link.fetched(0, 0, run(0, 2), 10)
    assert not link.wants_fetch
    link.next_append()
    assert link.appended(0, 2) == [Finished()]
    assert link.state is LinkState.FINISHED


def test_a_cut_that_was_reached_before_is_the_end() -> None:
    link = PartitionLink(TP, cut=7)
    assert link.located(0, ends(0, 10, 7)) == [Finished()]


def test_an_empty_source_is_the_end() -> None:
    link = PartitionLink(TP, cut=5)
    assert link.located(0, ends(5, 5, 0)) == [Finished()]


def test_a_cut_inside_a_gap_is_reached_when_nothing_is_below() -> None:
    link = copying(cut=5)
    link.fetched(0, 0, run(0, 3), 10)
    link.next_append()
    assert link.appended(0, 3) == []
    assert link.nothing_below_cut(0) == [Finished()]


# --- the target lost records


def test_an_idle_link_looks_again_when_the_target_has_another_leader_epoch() -> None:
    link = with_appends(1)
    assert link.target_epoch_changed(0) == []  # the response to the append will show it
    assert link.appended(0, 1) == []
    assert link.target_epoch_changed(0) == [Locate(1, 0.0)]
    assert link.located(1, ends(0, 10, 0)) == []
    assert (link.appended_end, link.fetch_offset) == (0, 0)
    assert link.target_epoch_changed(0) == []  # of an earlier generation


def test_a_link_with_something_to_append_does_not_look_again() -> None:
    link = copying()
    link.fetched(0, 0, run(0, 2), 10)
    assert link.target_epoch_changed(0) == []
