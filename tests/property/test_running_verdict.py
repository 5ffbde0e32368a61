"""The running verdict of `kaudit watch` equals a full join of what was read, in every interleaving and over restarts.

Numbers in names of tests are those of the invariants in `spark_jobs.running_verdict`.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kclient.types import TopicPartition
from spark_jobs.findings import FindingClass
from spark_jobs.running_verdict import RunningVerdict, Side, WatchFinding, WatchVerdict
from tests.kit.property_tests import examples

PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
Logs = dict[tuple[Side, TopicPartition], list[tuple[int, int]]]

offsets = st.lists(st.integers(0, 12), unique=True, max_size=10).map(sorted)


@st.composite
def logs(draw: st.DrawFn) -> Logs:
    """Return two logs per partition: mostly equal, with lost, added and changed records."""
    found: Logs = {}
    for tp in PARTITIONS:
        source = [(offset, offset * 10) for offset in draw(offsets)]
        target = dict(source)
        for fault, offset in draw(
            st.lists(
                st.tuples(st.sampled_from(["lose", "add", "change"]), st.integers(0, 14)),
                max_size=3,
            )
        ):
            if fault == "lose":
                target.pop(offset, None)
            else:
                target[offset] = 7
        found[Side.SOURCE, tp] = source
        found[Side.TARGET, tp] = sorted(target.items())
    return found


@st.composite
def batches(draw: st.DrawFn, whole: Logs) -> list[Logs]:
    """Cut the logs into micro-batches. The last records of a log may never be read."""
    cuts = {
        key: sorted(draw(st.lists(st.integers(0, len(log)), max_size=4)))
        for key, log in whole.items()
    }
    found: list[Logs] = []
    for number in range(draw(st.integers(1, 5))):
        batch: Logs = {}
        for key, log in whole.items():
            ends = [0, *cuts[key]]
            if number + 1 < len(ends):
                batch[key] = log[ends[number] : ends[number + 1]]
        found.append(batch)
    return found


Reached = dict[tuple[Side, TopicPartition], int]
"""The offset up to which each log was read."""


def joined(
    start: int, read: Logs, reached: Reached
) -> tuple[int, set[WatchFinding], dict[Any, Any]]:
    """Join what was read by offset, up to the lower offset that both sides reached: equal, findings, waiting."""
    equal, findings, waiting = 0, set(), {}
    for tp in PARTITIONS:
        sides = {
            side: {offset: value for offset, value in read[side, tp] if offset >= start}
            for side in Side
        }
        end = min(reached[side, tp] for side in Side)
        for offset in range(start, end):
            ours, theirs = (sides[side].get(offset) for side in Side)
            if ours is None and theirs is None:
                continue
            if ours == theirs:
                equal += 1
            elif theirs is None:
                findings.add(WatchFinding(FindingClass.MISSING, tp, offset))
            elif ours is None:
                findings.add(WatchFinding(FindingClass.EXTRA, tp, offset))
            else:
                findings.add(WatchFinding(FindingClass.CORRUPT, tp, offset))
        waiting[tp] = {(side, offset) for side in Side for offset in sides[side] if offset >= end}
    return equal, findings, waiting


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_1_2_3_the_state_is_a_join_of_what_was_read_over_restarts(data: st.DataObject) -> None:
    whole = data.draw(logs())
    start = data.draw(st.integers(0, 3))
    starts = dict.fromkeys(PARTITIONS, start)
    saved = [json.dumps(RunningVerdict(starts, limit=100).to_json())]
    verdict = RunningVerdict(starts, limit=100)
    read: Logs = {key: [] for key in whole}
    reached: Reached = dict.fromkeys(whole, start)
    saved_reached = dict(reached)
    for batch in data.draw(batches(whole)):
        if data.draw(st.booleans()):
            # The process ended; Spark repeats a micro-batch that it did not commit.
            half = RunningVerdict.from_json(json.loads(saved[-1]), limit=100, now=0.0)
            half.apply(batch, 0.0)
            verdict = RunningVerdict.from_json(json.loads(saved[-1]), limit=100, now=0.0)
            reached = dict(saved_reached)
        verdict.apply(batch, 0.0)
        saved.append(json.dumps(verdict.to_json()))
        for key, records in batch.items():
            read[key] += records
            reached[key] = max([reached[key], *(offset + 1 for offset, _ in records)])
        saved_reached = dict(reached)
        if data.draw(st.booleans()):
            # Spark has completed it: the logs were read up to some offset below the next record.
            for key, records in read.items():
                beyond = [offset for offset, _ in whole[key][len(records) :]]
                most = max(reached[key], beyond[0] if beyond else 15)
                reached[key] = data.draw(st.integers(reached[key], most))
            verdict.advance(reached, 0.0)
        equal, findings, waiting = joined(start, read, reached)
        spans = verdict.spans()
        assert sum(each.equal for each in spans) == equal
        assert set(verdict.findings) == findings
        assert len(verdict.findings) == len(findings)
        assert sum(sum(each.findings.values()) for each in spans) == len(findings)
        assert {each.topic_partition: each.waiting for each in spans} == {
            tp: len(each) for tp, each in waiting.items()
        }
        assert verdict.waiting == sum(map(len, waiting.values()))


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_4_the_verdict_is_equal_only_if_both_logs_are(data: st.DataObject) -> None:
    whole = data.draw(logs())
    verdict = RunningVerdict(dict.fromkeys(PARTITIONS, 0), limit=100)
    for batch in data.draw(batches(whole)):
        verdict.apply(batch, 0.0)
    rest = {
        key: [each for each in log if each[0] >= verdict._partitions[key[1]].positions[key[0]]]
        for key, log in whole.items()
    }
    verdict.apply(rest, 0.0)
    ends = {key: log[-1][0] + 1 if log else 0 for key, log in whole.items()}
    overdue = verdict.overdue(ends, 61.0, 60.0, ends)
    outcome = verdict.outcome(overdue, earlier=ends)
    same = all(whole[Side.SOURCE, tp] == whole[Side.TARGET, tp] for tp in PARTITIONS)
    some = any(whole[Side.SOURCE, tp] for tp in PARTITIONS)
    assert (outcome.verdict is WatchVerdict.EQUAL) == (same and some)
    if outcome.verdict is WatchVerdict.LAGGING:
        for tp in PARTITIONS:
            target = whole[Side.TARGET, tp]
            assert whole[Side.SOURCE, tp][: len(target)] == target
