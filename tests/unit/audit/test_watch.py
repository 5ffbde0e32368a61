"""`kaudit watch` without Spark: where it begins, what its checkpoint holds, and what its verdict covers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from kclient.types import TopicPartition
from spark_jobs import scope, watch_stream
from spark_jobs.cli import kaudit
from spark_jobs.cut import LogRange
from spark_jobs.findings import FindingClass
from spark_jobs.running_verdict import (
    MOST_FINDINGS,
    Failure,
    Overdue,
    RunningVerdict,
    Side,
    TooManyWaiting,
    WatchVerdict,
)
from spark_jobs.scope import Paired
from spark_jobs.snapshot import WHOLE_TOPIC, ClusterSnapshot
from spark_jobs.verdict import ExitCode
from spark_jobs.watch_checkpoint import Checkpoint, CheckpointUnusable
from spark_jobs.watch_report import Ended, document, screen
from spark_jobs.watch_start import (
    begin_at,
    compacted_topics,
    not_described,
    problem_with,
    unwatched,
)
from spark_jobs.watch_stream import (
    Clusters,
    Pace,
    WatchStream,
    failure_of,
    positions_of,
    trigger_interval,
)

TP = TopicPartition("orders", 0)
SOURCE, TARGET = Side.SOURCE, Side.TARGET
EARLIER = {(SOURCE, TP): 1, (TARGET, TP): 1}
"""Both logs had offset 0 the settle time ago."""


def state(limit: int = 100, **records: list[int]) -> RunningVerdict:
    """Return a state behind one micro-batch at time 0: offsets of source and target, all with the same hash."""
    found = RunningVerdict({TP: 0}, limit=limit)
    found.apply(
        {(Side(side), TP): [(each, 1) for each in seen] for side, seen in records.items()}, 0.0
    )
    return found


def test_a_record_that_waits_is_no_finding_before_the_settle_time() -> None:
    found = state(source=[0, 1], target=[0])
    assert found.settled(60.0, 60.0, EARLIER) == []
    assert found.outcome(Overdue(), earlier=EARLIER).verdict is WatchVerdict.EQUAL


def test_a_record_that_was_in_its_log_before_the_settle_time_does_not_wait_for_it_again() -> None:
    """The watch continues, or is behind: the mirror stopped yesterday, and the record was read a moment ago."""
    found = state(source=[0, 1, 2], target=[0])
    earlier = {**EARLIER, (SOURCE, TP): 2}
    (waiting,) = found.settled(1.0, 60.0, earlier)
    assert (waiting.first, waiting.records) == (1, 1)
    overdue = found.overdue({(TARGET, TP): 1}, 1.0, 60.0, earlier)
    assert found.outcome(overdue, earlier=earlier).verdict is WatchVerdict.LAGGING


def test_a_record_that_arrives_after_the_log_ends_were_looked_up_is_not_judged_by_them(
    tmp_path: Path,
) -> None:
    """The look-up takes longer than the settle time. Meanwhile the source gets offset 2, and the target its copy."""
    settle = 0.05

    def log_ends(side: Side, partitions: object) -> dict[TopicPartition, int]:
        ends = {TP: 2}
        stream.state.apply({(TARGET, TP): [(2, 1)]}, time.monotonic())
        time.sleep(2 * settle)
        return ends

    stream = WatchStream(
        Clusters("", ""),
        begin_at("earliest", "", cluster("east", 0, 1), cluster("west", 0, 2)),
        Checkpoint(tmp_path, limit=10),
        Pace(settle, 1.0, 10),
        log_ends=log_ends,
        progress=lambda _: None,
    )
    stream.state.apply({(SOURCE, TP): [(0, 1)], (TARGET, TP): [(0, 1), (1, 1)]}, time.monotonic())
    time.sleep(2 * settle)
    assert stream.outcome(()).verdict is WatchVerdict.INCOMPLETE


@pytest.mark.parametrize(
    ("source", "target", "end", "verdict", "code"),
    [
        ([0, 1], [0], 1, WatchVerdict.LAGGING, ExitCode.NO_VERDICT_YET),
        ([0], [0, 1], 1, WatchVerdict.DIVERGED, ExitCode.DIVERGED),
        ([0, 1], [0], 2, WatchVerdict.INCOMPLETE, ExitCode.NO_VERDICT_YET),
        ([0], [0, 1], 2, WatchVerdict.INCOMPLETE, ExitCode.NO_VERDICT_YET),
        ([0], [0, 1], None, WatchVerdict.INCOMPLETE, ExitCode.NO_VERDICT_YET),
    ],
)
def test_behind_the_settle_time_the_log_end_of_the_other_side_decides(
    source: list[int], target: list[int], end: int | None, verdict: WatchVerdict, code: ExitCode
) -> None:
    found = state(source=source, target=target)
    (waiting,) = found.settled(61.0, 60.0, EARLIER)
    assert (waiting.first, waiting.records) == (1, 1)
    ends = {} if end is None else {(waiting.side.other, TP): end}
    outcome = found.outcome(found.overdue(ends, 61.0, 60.0, EARLIER), earlier=EARLIER)
    assert (outcome.verdict, outcome.exit_code) == (verdict, code)
    assert "from offset 1 on" in outcome.reasons[0]


def test_a_late_record_that_arrives_is_no_longer_late() -> None:
    found = state(source=[0, 1], target=[0])
    found.apply({(TARGET, TP): [(1, 1)]}, 100.0)
    assert found.settled(1000.0, 60.0, EARLIER) == []
    assert found.outcome(Overdue()).verdict is WatchVerdict.EQUAL


def test_nothing_compared_is_never_equal() -> None:
    outcome = RunningVerdict({TP: 0}, limit=1).outcome(Overdue())
    assert outcome.verdict is WatchVerdict.INCOMPLETE
    assert outcome.reasons == ("no record was compared",)


def test_what_is_not_watched_or_failed_is_never_equal() -> None:
    found = state(source=[0], target=[0])
    assert found.outcome(Overdue(), unwatched=["x-0"]).verdict is WatchVerdict.INCOMPLETE
    assert found.outcome(Overdue(), limit="too many").verdict is WatchVerdict.INCOMPLETE
    outcome = found.outcome(Overdue(), failure=Failure(ExitCode.UNREADABLE, "no broker"))
    assert (outcome.verdict, outcome.exit_code) == (WatchVerdict.ERROR, ExitCode.UNREADABLE)


def test_a_run_that_cannot_know_is_never_equal() -> None:
    equal, ahead = state(source=[0], target=[0]), state(source=[0, 1], target=[0])
    known = equal.behind({(SOURCE, TP): 1, (TARGET, TP): 1})
    assert equal.outcome(Overdue(), behind=known).verdict is WatchVerdict.EQUAL
    idle = equal.outcome(Overdue(), behind=known, has_read=False)
    assert idle.verdict is WatchVerdict.EQUAL
    longer = equal.behind({(SOURCE, TP): 2, (TARGET, TP): 1})
    unread = equal.outcome(Overdue(), behind=longer, has_read=False)
    assert (unread.verdict, unread.reasons) == (
        WatchVerdict.INCOMPLETE,
        ("this run has read nothing of what the logs have now",),
    )
    assert ahead.outcome(Overdue()).verdict is WatchVerdict.INCOMPLETE
    of_the_target = {(TARGET, TP): 1}
    assert ahead.outcome(Overdue(), earlier=of_the_target).verdict is WatchVerdict.INCOMPLETE
    assert ahead.outcome(Overdue(), earlier=EARLIER).verdict is WatchVerdict.EQUAL
    assert equal.outcome(Overdue()).verdict is WatchVerdict.EQUAL
    unknown = equal.outcome(Overdue(), behind=equal.behind({(SOURCE, TP): 1}))
    assert unknown.verdict is WatchVerdict.INCOMPLETE
    assert unknown.reasons == ("the log ends of 1 partitions of the target are unknown",)


def test_what_was_not_read_is_counted_up_to_the_log_ends() -> None:
    found = state(source=[0, 1], target=[0]).behind({(SOURCE, TP): 9, (TARGET, TP): 1})
    assert found.offsets == {SOURCE: 7, TARGET: 0}
    assert found.unknown == {SOURCE: 0, TARGET: 0}


def test_a_log_that_was_read_beyond_its_last_record_decides() -> None:
    """The target has a transaction marker where the source has its last record: no row of the target shows it."""
    found = state(source=[0, 1, 2, 3], target=[0, 1, 2])
    assert found.advance({(SOURCE, TP): 4, (TARGET, TP): 3}, 0.0) == []
    assert (found.waiting, found.findings) == (1, [])
    assert found.advance({(SOURCE, TP): 5, (TARGET, TP): 5}, 0.0) == [(FindingClass.MISSING, TP, 3)]
    assert (found.waiting, found.spans()[0].end) == (0, 5)
    assert found.behind({(SOURCE, TP): 5, (TARGET, TP): 6}).offsets == {SOURCE: 0, TARGET: 1}
    assert found.advance({(SOURCE, TP): 1, (TARGET, TP): 1}, 0.0) == []
    assert found.spans()[0].end == 5


def test_the_offsets_of_the_progress_are_those_of_the_source_then_the_target() -> None:
    texts = ['{"orders":{"0":7}}', '{"east.orders":{"0":5},"east.":{"0":1},"other":{"0":2}}']
    assert positions_of(texts, "east.") == {(SOURCE, TP): 7, (TARGET, TP): 5}
    assert positions_of([None, "null"], "") == {}


def test_what_was_in_the_logs_for_longer_than_the_settle_time_has_to_be_read(
    tmp_path: Path,
) -> None:
    """Both logs have 500 offsets when the run begins, and it reads one of each: as far apart, and far behind."""
    start = begin_at("earliest", "orders", cluster("east", 0, 500), cluster("west", 0, 500))
    checkpoint = Checkpoint(tmp_path, limit=9)
    checkpoint.save_start(start)
    stream = WatchStream(
        Clusters("", ""),
        start,
        checkpoint,
        Pace(0.0, 1.0, 10),
        log_ends=lambda _side, _partitions: {TP: 500},
        progress=lambda _: None,
    )
    stream._look_at_ends()
    stream.state.apply({(side, TP): [(0, 1)] for side in Side}, 0.0)
    outcome = stream.outcome(())
    assert outcome.verdict is WatchVerdict.INCOMPLETE
    assert "499 offsets of the source were in its log for longer than --settle" in str(
        outcome.reasons
    )
    stream.state.advance({(side, TP): 500 for side in Side}, 0.0)
    assert stream.outcome(()).verdict is WatchVerdict.EQUAL


def watch_of_500(
    home: Path, settle: float, log_ends: Callable[[Side], dict[TopicPartition, int]]
) -> WatchStream:
    """Return a watch of two logs with 500 offsets, of which it has read one each."""
    start = begin_at("earliest", "orders", cluster("east", 0, 500), cluster("west", 0, 500))
    checkpoint = Checkpoint(home, limit=9)
    checkpoint.save_start(start)
    stream = WatchStream(
        Clusters("", ""),
        start,
        checkpoint,
        Pace(settle, 1.0, 10),
        log_ends=lambda side, _partitions: log_ends(side),
        progress=lambda _: None,
    )
    stream._look_at_ends()
    stream.state.apply({(side, TP): [(0, 1)] for side in Side}, 0.0)
    return stream


def test_a_run_that_is_shorter_than_the_settle_time_has_to_read_what_there_was_at_its_begin(
    tmp_path: Path,
) -> None:
    looked = []

    def log_ends(side: Side) -> dict[TopicPartition, int]:
        looked.append(side)
        return {TP: 500}

    stream = watch_of_500(tmp_path, 600.0, log_ends)
    stream._look_at_ends()
    assert looked == [SOURCE, TARGET]
    assert stream.outcome(()).verdict is WatchVerdict.INCOMPLETE
    stream.state.advance({(side, TP): 500 for side in Side}, 0.0)
    assert stream.outcome(()).verdict is WatchVerdict.EQUAL


def test_a_lookup_that_fails_leaves_the_ends_that_were_known(tmp_path: Path) -> None:
    answers = [{TP: 500}, {TP: 500}, {}, {}]
    stream = watch_of_500(tmp_path, 0.0, lambda _side: answers.pop(0) if answers else {TP: 500})
    stream._look_at_ends()
    assert answers == []
    assert "499 offsets of the source" in str(stream.outcome(()).reasons)


@pytest.mark.parametrize("first", [[{}, {}], [{TP: 500}, {}], [{}, {TP: 500}]])
def test_what_is_in_a_log_of_which_the_first_end_is_not_known_has_to_be_read(
    tmp_path: Path, first: list[dict[TopicPartition, int]]
) -> None:
    answers = list(first)
    stream = watch_of_500(tmp_path, 600.0, lambda _side: answers.pop(0) if answers else {TP: 500})
    stream._has_read = True
    outcome = stream.outcome(())
    assert outcome.verdict is WatchVerdict.INCOMPLETE
    for side in Side:
        assert f"499 offsets of the {side.value} were in its log" in str(outcome.reasons)
    stream.state.advance({(side, TP): 500 for side in Side}, 0.0)
    assert stream.outcome(()).verdict is WatchVerdict.EQUAL


@pytest.mark.parametrize(
    ("every", "text"),
    [(1_036_800.0, "1036800.000 seconds"), (0.25, "0.250 seconds"), (60.0, "60.000 seconds")],
)
def test_the_time_between_micro_batches_has_no_exponent(every: float, text: str) -> None:
    assert trigger_interval(every) == text


class Query:
    """Spark's query, with the progress of its last micro-batch."""

    def __init__(self, source: int, target: int) -> None:
        ends = [json.dumps({"orders": {"0": end}}) for end in (source, target)]
        self.lastProgress = {"sources": [{"endOffset": end} for end in ends]}


def test_a_finding_behind_the_last_record_outlives_a_failed_micro_batch_and_is_printed_once(
    tmp_path: Path,
) -> None:
    start = begin_at("earliest", "orders", cluster("east", 0, 3), cluster("west", 0, 3))
    checkpoint = Checkpoint(tmp_path, limit=9)
    checkpoint.save_start(start)
    earlier = checkpoint.state_before(0, start, 0.0)
    earlier.apply({(SOURCE, TP): [(0, 1), (1, 1), (2, 1)], (TARGET, TP): [(0, 1), (1, 1)]}, 0.0)
    checkpoint.save_state(0, earlier)
    lines: list[str] = []
    stream = WatchStream(
        Clusters("", ""),
        start,
        checkpoint,
        Pace(60.0, 1.0, 10),
        log_ends=lambda _side, _partitions: {TP: 3},
        progress=lines.append,
    )
    query = cast(Any, Query(3, 3))
    stream._advance(query)
    stream._restore()
    stream._advance(query)
    assert lines == ["FINDING missing orders-0 offset 2"]
    assert stream.outcome(()).verdict is WatchVerdict.DIVERGED


class RunningQuery:
    """Spark's query, without a progress; it runs until it is stopped."""

    lastProgress = None  # noqa: N815 - PySpark's name

    def __init__(self, problem: BaseException | None, at_stop: BaseException | None) -> None:
        self.problem, self.at_stop = problem, at_stop
        self.stops = 0

    def awaitTermination(self, seconds: float) -> bool:  # noqa: N802 - PySpark's name
        if self.problem is not None:
            raise self.problem
        return False

    def exception(self) -> None:
        return None

    def stop(self) -> None:
        self.stops += 1
        if self.at_stop is not None and self.stops == 1:
            raise self.at_stop


@pytest.mark.parametrize(
    ("problem", "at_stop"),
    [
        (KeyboardInterrupt(), None),
        (KeyboardInterrupt(), OSError("no process of Spark")),
        (RuntimeError("a bug"), None),
        (None, KeyboardInterrupt()),
    ],
)
def test_a_watch_that_ends_without_a_verdict_leaves_no_query_that_writes(
    tmp_path: Path,
    problem: BaseException | None,
    at_stop: BaseException | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lock of the checkpoint is released then: another watch may use it."""
    stream = watch_of_500(tmp_path, 60.0, lambda _: {TP: 500})
    query = RunningQuery(problem, at_stop)
    monkeypatch.setattr(stream, "_begin", lambda _: query)
    with pytest.raises(type(problem or at_stop)):
        stream.run(cast(Any, None), lambda: problem is None)
    assert query.stops == (1 if problem is not None else 2)
    monkeypatch.setattr(watch_stream, "_records", lambda _: {})
    with pytest.raises(RuntimeError, match="the watch has ended"):
        stream._apply(cast(Any, None), 0)


def test_a_file_of_a_checkpoint_with_too_many_levels_is_named(tmp_path: Path) -> None:
    start = begin_at("earliest", "orders", cluster("east", 0, 9), cluster("west", 0, 9))
    checkpoint = Checkpoint(tmp_path, limit=9)
    for name in ("start.json", "state.0.json"):
        (tmp_path / name).write_text("[" * 100_000)
    checkpoint.spark.mkdir()
    with pytest.raises(CheckpointUnusable, match=r"state\.0\.json"):
        checkpoint.last_state(start, 0.0)
    with pytest.raises(CheckpointUnusable, match=r"start\.json"):
        checkpoint.load_start()


def test_a_run_without_a_micro_batch_is_no_proof(tmp_path: Path) -> None:
    """The state of an earlier run is equal; this one ends before it has read anything."""
    start = begin_at("earliest", "orders", cluster("east", 0, 9), cluster("west", 0, 9))
    checkpoint = Checkpoint(tmp_path, limit=9)
    checkpoint.save_start(start)
    earlier = checkpoint.state_before(0, start, 0.0)
    earlier.apply({(side, TP): [(0, 1)] for side in Side}, 0.0)
    checkpoint.save_state(0, earlier)
    stream = WatchStream(
        Clusters("", ""),
        start,
        checkpoint,
        Pace(60.0, 1.0, 10),
        log_ends=lambda _side, _partitions: {TP: 500},
        progress=lambda _: None,
    )
    outcome = stream.outcome(())
    assert (outcome.verdict, outcome.exit_code) == (
        WatchVerdict.INCOMPLETE,
        ExitCode.NO_VERDICT_YET,
    )
    assert outcome.behind.offsets == {SOURCE: 499, TARGET: 499}


def test_a_finding_stays_a_finding_and_the_others_are_counted() -> None:
    found = state(source=list(range(MOST_FINDINGS + 5)), target=[MOST_FINDINGS + 5])
    assert len(found.findings) == MOST_FINDINGS
    (span,) = found.spans()
    assert span.findings == {FindingClass.MISSING: MOST_FINDINGS + 5}
    outcome = found.outcome(Overdue(), failure=Failure(ExitCode.UNREADABLE, "no broker"))
    assert outcome.reasons[1] == f"missing {MOST_FINDINGS + 5:,}"


def test_more_waiting_records_than_the_limit_end_the_watch() -> None:
    with pytest.raises(
        TooManyWaiting, match=r"--max-pending 2: in orders-0 the source is 3 records"
    ):
        state(limit=2, source=[0, 1, 2])


def test_a_restarted_watch_waits_again() -> None:
    before = state(source=[0, 1], target=[0])
    after = RunningVerdict.from_json(json.loads(json.dumps(before.to_json())), limit=9, now=1000.0)
    assert after.settled(1060.0, 60.0, EARLIER) == []
    assert len(after.settled(1061.0, 60.0, EARLIER)) == 1


def cluster(name: str, start: int, end: int, **config: str) -> ClusterSnapshot:
    configs = {"orders": {name.replace("_", "."): value for name, value in config.items()}}
    return ClusterSnapshot(
        name,
        f"{name}:1",
        name[0],
        {TP: LogRange(start, end)},
        configs,
        topic_ids={"orders": f"id-{name}"},
    )


@pytest.mark.parametrize(
    ("begin", "source", "target", "start", "reads"),
    [
        ("earliest", (5, 9), (0, 7), 5, (5, 5)),
        ("earliest", (5, 9), (0, 3), 5, (5, 3)),
        ("latest", (5, 9), (0, 7), 7, (7, 7)),
        ("latest", (5, 9), (0, 3), 5, (5, 3)),
        ("latest", (0, 4), (0, 6), 4, (4, 4)),
    ],
)
def test_both_logs_are_compared_from_one_offset(
    begin: str, source: tuple[int, int], target: tuple[int, int], start: int, reads: tuple[int, int]
) -> None:
    found = begin_at(begin, "orders", cluster("east", *source), cluster("west", *target))
    assert found.starts == {TP: start}
    assert tuple(each[TP] for each in found.reads) == reads


def test_records_below_the_start_are_not_compared() -> None:
    found = RunningVerdict({TP: 5}, limit=9)
    found.apply({(SOURCE, TP): [(5, 1)], (TARGET, TP): [(3, 8), (4, 9), (5, 1)]}, 0.0)
    assert [(each.start, each.end, each.equal, each.findings) for each in found.spans()] == [
        (5, 6, 1, {})
    ]


def test_a_checkpoint_of_other_clusters_topics_or_options_is_refused() -> None:
    east, west = cluster("east", 0, 9), cluster("west", 0, 9)
    start = begin_at("earliest", "orders", east, west)
    assert problem_with(start, "orders", east, west) is None
    assert "--topics" in str(problem_with(start, "other", east, west))
    assert "cluster id" in str(problem_with(start, "orders", east, replace(west, cluster_id="x")))
    again = replace(west, topic_ids={"orders": "another"})
    assert "was created again or deleted" in str(problem_with(start, "orders", east, again))


def test_a_topic_that_is_not_described_is_no_deleted_topic() -> None:
    """Nothing is known of it then. A topic of the watch that is surely another one comes before it."""
    east, west = cluster("east", 0, 9), cluster("west", 0, 9)
    start = begin_at("earliest", "orders", east, west)
    assert not_described(start, east, west) is None
    whole = {TopicPartition("orders", WHOLE_TOPIC): "not available"}
    for silent in (
        replace(west, ranges={}, topic_ids={}, unreadable=whole),
        replace(west, ranges={}, configs={}, unreadable={TP: "its settings: denied"}),
    ):
        assert problem_with(start, "orders", east, silent) is None
        [cause] = silent.unreadable.values()
        assert not_described(start, east, silent) == f"west (west:1): topic orders: {cause}"
        again = replace(east, topic_ids={"orders": "another"})
        assert "of east was created again" in str(problem_with(start, "orders", again, silent))


@pytest.mark.parametrize("unreadable", [{TP: "no leader"}, {("other", WHOLE_TOPIC): "denied"}])
def test_a_partition_without_a_leader_or_a_topic_of_no_watch_does_not_end_a_watch(
    unreadable: dict[Any, str],
) -> None:
    east, west = cluster("east", 0, 9), cluster("west", 0, 9)
    start = begin_at("earliest", "orders", east, west)
    named = {TopicPartition(*tp): cause for tp, cause in unreadable.items()}
    assert not_described(start, east, replace(west, unreadable=named)) is None


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"topic_ids": {}, "unreadable": {TopicPartition("orders", -1): "not available"}}, 4),
        ({"topic_ids": {}}, 2),
        ({"cluster_id": "another"}, 2),
    ],
)
def test_a_watch_continues_only_in_clusters_that_it_knows(
    tmp_path: Path, changed: dict[str, Any], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    east, west = cluster("east", 0, 9), cluster("west", 0, 9)
    (tmp_path / "watch").mkdir()
    Checkpoint(tmp_path / "watch", limit=9).save_start(begin_at("latest", "orders", east, west))
    now = Paired(east, replace(west, ranges={}, **changed))
    monkeypatch.setattr(scope, "paired", lambda *_: now)
    words = ["--source", "a", "--target", "b", "--topics", "orders"]
    result = CliRunner().invoke(kaudit, ["watch", *words, "--checkpoint", str(tmp_path / "watch")])
    assert result.exit_code == code, result.output


def test_partitions_of_one_cluster_and_new_ones_are_not_watched() -> None:
    east, west = cluster("east", 0, 9), cluster("west", 0, 9)
    start = begin_at("earliest", "orders", east, west)
    new = TopicPartition("orders", 1)
    more = replace(east, ranges={**east.ranges, new: LogRange(0, 1)})
    assert unwatched(start, more, west) == ["orders-1 (not in west)"]
    both = replace(west, ranges={**west.ranges, new: LogRange(0, 1)})
    assert unwatched(start, more, both) == ["orders-1 (newer than the watch)"]
    without_leader = replace(west, unreadable={new: "no leader"})
    assert unwatched(start, more, without_leader) == ["orders-1 of west: no leader"]
    denied = replace(west, ranges={}, unreadable={TopicPartition("orders", -1): "denied"})
    assert unwatched(start, more, denied) == ["orders of west: denied"]


def test_a_compacted_topic_on_either_side_is_named() -> None:
    east = cluster("east", 0, 9, cleanup_policy="delete")
    west = cluster("west", 0, 9, cleanup_policy="compact,delete")
    assert compacted_topics(east, west) == ["orders"]
    assert compacted_topics(east, east) == []


def test_a_repeated_micro_batch_finds_the_state_before_it(tmp_path: Path) -> None:
    start = begin_at("earliest", "orders", cluster("east", 0, 9), cluster("west", 0, 9))
    checkpoint = Checkpoint(tmp_path, limit=9)
    checkpoint.save_start(start)
    assert checkpoint.load_start() == start
    for batch in range(4):
        found = checkpoint.state_before(batch, start, 0.0)
        found.apply({(side, TP): [(batch, 1)] for side in Side}, 0.0)
        checkpoint.save_state(batch, found)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "start.json",
        "state.2.json",
        "state.3.json",
    ]
    assert checkpoint.state_before(3, start, 0.0).spans()[0].equal == 3
    assert checkpoint.last_state(start, 0.0).spans()[0].equal == 4


def test_a_checkpoint_with_a_part_missing_is_refused(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, limit=9)
    start = begin_at("earliest", "orders", cluster("east", 0, 9), cluster("west", 0, 9))
    with pytest.raises(CheckpointUnusable, match="Begin with another directory"):
        checkpoint.state_before(3, start, 0.0)
    checkpoint.spark.mkdir()
    with pytest.raises(CheckpointUnusable, match=r"start\.json is not"):
        checkpoint.load_start()
    (tmp_path / "start.json").write_text('{"version": 1}')
    with pytest.raises(CheckpointUnusable, match="cluster_ids"):
        checkpoint.load_start()
    checkpoint.save_start(start)
    checkpoint.save_state(3, checkpoint.state_before(0, start, 0.0))
    assert checkpoint.load_start() == start
    checkpoint.spark.rmdir()
    with pytest.raises(CheckpointUnusable, match="spark/ is not"):
        checkpoint.load_start()


@pytest.mark.parametrize("content", ["[]", "null", "7"])
def test_a_state_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    checkpoint = Checkpoint(tmp_path, limit=9)
    start = begin_at("earliest", "orders", cluster("east", 0, 9), cluster("west", 0, 9))
    (tmp_path / "state.2.json").write_text(content)
    with pytest.raises(CheckpointUnusable, match="Begin with another directory"):
        checkpoint.state_before(3, start, 0.0)


def test_a_state_of_other_partitions_is_refused(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, limit=9)
    start = begin_at("earliest", "orders", cluster("east", 0, 9), cluster("west", 0, 9))
    checkpoint.save_state(2, checkpoint.state_before(0, start, 0.0))
    other = replace(start, starts={TopicPartition("orders", 7): 0})
    with pytest.raises(CheckpointUnusable, match="partitions are others"):
        checkpoint.state_before(3, other, 0.0)


def test_the_screen_names_what_the_verdict_covers() -> None:
    found = state(source=[0, 1, 2, 3], target=[0, 2])
    outcome = found.outcome(Overdue(), behind=found.behind({(SOURCE, TP): 1234}), earlier=EARLIER)
    ended = Ended(("east", "west"), ("E", "W"), "", 12.0, "stopped", ["--source", "a:1"])
    text = screen(found, outcome, ended)
    same = replace(ended, cluster_ids=("E", "E"))
    assert screen(found, outcome, same).splitlines()[1].startswith("ATTENTION: east and west")
    assert text.splitlines() == [
        "VERDICT  DIVERGED      east -> west   stopped after 12 s   exit 1",
        "compared: spans of 3 offsets in 1 partitions; records: equal 2, missing 1, extra 0, corrupt 0",
        "  orders-0: from offset 0 up to and without 3: 2 records equal, missing 1, 1 waiting",
        "not read: 1,230 offsets of the source, an unknown number of offsets of the target, up to the log ends at the "
        "end of the watch",
        "not compared: 1 records without a counterpart up to now",
        "reason   missing 1",
        "reason   the log ends of 1 partitions of the target are unknown",
        "finding  missing orders-0 offset 1",
        "The verdict covers these offsets as they were when they were read, and no others.",
        "next     kaudit reconcile --source a:1 --out report",
    ]
    found_document = document(found, outcome, ended)
    assert found_document["partitions"][0]["until"] == 3
    assert found_document["not_read"] == {
        "source": {"offsets": 1230, "partitions_unknown": 0},
        "target": {"offsets": 0, "partitions_unknown": 1},
    }
    assert found_document["first_findings"] == [
        {"class": "missing", "topic": "orders", "partition": 0, "offset": 1}
    ]


def test_the_cause_is_the_line_that_names_the_error() -> None:
    text = "[STREAM_FAILED] Query terminated\nTraceback\nx.DataLoss: the log starts at 5\n"
    assert failure_of(text) == (ExitCode.UNREADABLE, "the log starts at 5")
    assert failure_of("something else\nmore") == (ExitCode.INTERNAL, "something else")


def test_one_watch_at_a_time_uses_a_checkpoint(tmp_path: Path) -> None:
    first, second = Checkpoint(tmp_path, limit=9), Checkpoint(tmp_path, limit=9)
    with first.locked(), pytest.raises(CheckpointUnusable, match="another watch"), second.locked():
        pass
    with second.locked():
        pass


def test_the_verdict_of_an_earlier_run_is_removed(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, limit=9)
    checkpoint.remove_verdict()
    checkpoint.save_verdict({"verdict": "EQUAL"})
    checkpoint.remove_verdict()
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_reads_no_cluster_leaves_no_verdict_of_an_earlier_one(tmp_path: Path) -> None:
    Checkpoint(tmp_path, limit=9).save_verdict({"verdict": "EQUAL"})
    words = ["watch", "--source", "127.0.0.1:1", "--target", "127.0.0.1:1", "--topics", "x"]
    result = CliRunner().invoke(kaudit, [*words, "--checkpoint", str(tmp_path)])
    assert result.exit_code == ExitCode.UNREADABLE
    assert not (tmp_path / "watch.json").exists()


@pytest.mark.parametrize("wrong", [("--settle", "soon"), ("--for", "1x"), ("--every", "0s")])
def test_a_wrong_duration_is_named_with_its_option(tmp_path: Path, wrong: tuple[str, str]) -> None:
    words = ["watch", "--source", "a:1", "--target", "b:1", "--topics", "x"]
    result = CliRunner().invoke(kaudit, [*words, "--checkpoint", str(tmp_path / "w"), *wrong])
    assert result.exit_code == ExitCode.USAGE
    assert f"{wrong[0]} '{wrong[1]}'" in result.output
    assert not (tmp_path / "w").exists()
