"""The reader of a whole log: when the leader of the partition changes, and where a header is damaged."""

from __future__ import annotations

from itertools import accumulate, combinations
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kclient.config import CommonConfig
from kclient.types import TopicPartition
from kclient.wire.errors import CorruptMessage, KafkaError, OffsetNotAvailable
from kclient.wire.fetch import FetchPartitionResponse
from kclient.wire.records import Record, encode_batch
from kclient.wire.versions import ApiKey
from mirrormaker.divergence import Batch, read_batches
from mirrormaker.tail_export import PartitionExport
from mirrormaker.whole_log import FETCH_BYTES, TIMEOUT, LogReader
from tests.kit.scripted_cluster import ScriptedCluster

TP = TopicPartition("t", 0)


class Reading:
    """A partition with the high watermarks of *answers*, the last one for ever, and one record below offset 1."""

    def __init__(self, *answers: int) -> None:
        self.left = list(answers)
        self.scripted = ScriptedCluster({"t": 1})
        self.scripted.answers[ApiKey.FETCH] = self._fetched
        cluster = self.scripted.cluster(CommonConfig.load({"bootstrap.servers": "a:1"}))
        self.reader = LogReader(cluster, TP, 0, 1)

    def _fetched(self, _: Any) -> Any:
        high_watermark = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        data = encode_batch([Record(0, 1, b"key", b"value")]) if high_watermark else b""
        answer = FetchPartitionResponse(
            0, high_watermark=high_watermark, records=[memoryview(data)]
        )
        return self.scripted.fetched((TP, answer))

    def read(self) -> Any:
        results: list[Any] = []
        Deferred.fromCoroutine(self.reader.read()).addBoth(results.append)
        self.scripted.pass_time(TIMEOUT + 5)
        (result,) = results
        return result


def test_a_new_leader_with_a_lower_high_watermark_does_not_end_the_log() -> None:
    """Its high watermark is that of its last fetch, until the followers have fetched from it."""
    (batch,) = Reading(0, 0, 1).read()
    assert batch.next_offset == 1


def test_a_log_that_lost_what_was_there_is_an_error_in_the_end() -> None:
    result = Reading(0).read()
    with pytest.raises(OffsetNotAvailable, match="t-0 ends at 0, not at 1"):
        result.raiseException()


def batch(offset: int, count: int, *, delta: int | None = None, size: int = 1) -> bytes:
    """Return *count* records of *size* bytes from *offset* on; with a *delta* its last offset delta is damaged."""
    records = [Record(n, 1, None, b"v" * size) for n in range(count)]
    data = bytearray(offset.to_bytes(8, "big") + encode_batch(records)[8:])
    if delta is not None:
        data[-1] ^= 1
        data[23:27] = delta.to_bytes(4, "big", signed=True)
    return bytes(data)


class Segments:
    """A log of *segments*, of which a Fetch is answered as a broker does: by headers, from one segment.

    *names* are the offsets of their files, by default those of their first batches.
    """

    def __init__(self, *segments: list[bytes], end: int, names: list[int] | None = None) -> None:
        self.segments = [[*read_batches(b"".join(each))] for each in segments]
        self.names = names or [each[0].base_offset for each in self.segments]
        self.end = end
        self.fetched: list[int] = []
        """The bytes of each answer."""
        self.scripted = ScriptedCluster({"t": 1})
        self.scripted.answers[ApiKey.FETCH] = self._fetched
        self.cluster = self.scripted.cluster(CommonConfig.load({"bootstrap.servers": "a:1"}))
        self.reader = LogReader(self.cluster, TP, 0, end)

    def _fetched(self, request: Any) -> Any:
        (wanted,) = request.topics[0].partitions
        data = self._slice(wanted.fetch_offset, wanted.partition_max_bytes)
        self.fetched.append(len(data))
        answer = FetchPartitionResponse(0, high_watermark=self.end, records=[memoryview(data)])
        return self.scripted.fetched((TP, answer))

    def _slice(self, offset: int, max_bytes: int) -> bytes:
        names = self.names
        first = max(n for n, name in enumerate(names) if name <= max(offset, names[0]))
        for segment in self.segments[first:]:
            for number, each in enumerate(segment):
                if each.next_offset > offset:
                    data = b"".join(bytes(one.data) for one in segment[number:])
                    return data[: max(max_bytes, len(each.data))]
        return b""

    def read(self) -> list[Batch] | KafkaError:
        """Return all batches, or the error that ends the reading."""
        results: list[Any] = []

        async def read_all() -> list[Batch]:
            found = []
            while (batches := await self.reader.read()) is not None:
                found += batches
            return found

        Deferred.fromCoroutine(read_all()).addBoth(results.append)
        give_up_at = self.scripted.clock.seconds() + TIMEOUT + 5
        while not results and self.scripted.clock.seconds() < give_up_at:
            self.scripted.turn(0.05)
        (result,) = results
        if isinstance(result, list):
            return result
        assert isinstance(result.value, KafkaError)
        return result.value


DELTAS = [0, 1, 2, 3, 4, 6, 7, 2**31 - 1, -9]
"""Of a damaged batch with the offsets 3 to 5 in a log up to 10. 2 is the right one."""


@pytest.mark.parametrize("delta", DELTAS)
def test_a_damaged_header_at_the_end_of_a_segment_hides_no_batch(
    tmp_path: Path, delta: int
) -> None:
    """The reader went on from its offset: batches were skipped, in no export, and the topic was deleted."""
    log = Segments(
        [batch(0, 3), batch(3, 3, delta=delta)], [batch(6, 1), batch(7, 1), batch(8, 2)], end=10
    )
    found = log.read()
    if delta > 2:
        assert isinstance(found, CorruptMessage)
        assert "the header of the batch of t-0 at offset 3 is damaged" in str(found)
        return
    assert not isinstance(found, KafkaError)
    assert [each.base_offset for each in found] == [0, 3, 6, 7, 8]
    export = PartitionExport(tmp_path, TP, other_start=0, with_head=False)
    for each in found:
        export.add(each, False)
    exported = export.finish(log_start=0, log_end=10)
    assert [each.batches for each in exported.files] == [5]


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("is_last", [False, True])
def test_a_damaged_header_within_a_segment_hides_no_batch(delta: int, is_last: bool) -> None:
    behind = [] if is_last else [batch(6, 1), batch(7, 1)]
    log = Segments([batch(0, 3), batch(3, 3, delta=delta), *behind], end=6 + len(behind))
    found = log.read()
    if is_last and delta < 2:
        assert isinstance(found, CorruptMessage)
        return
    assert not isinstance(found, KafkaError)
    assert [each.base_offset for each in found] == [0, 3, *([] if is_last else [6, 7])]


@pytest.mark.parametrize("delta", [2, 6, -9])
def test_a_damaged_header_of_a_batch_as_large_as_an_answer_hides_no_batch(delta: int) -> None:
    large = batch(3, 3, delta=delta, size=3 << 19)
    found = Segments([batch(0, 3), large, batch(6, 1), batch(7, 3)], end=10).read()
    if delta < 0:
        assert isinstance(found, CorruptMessage)
        return
    assert not isinstance(found, KafkaError)
    assert [each.base_offset for each in found] == [0, 3, 6, 7]


def test_a_damaged_header_of_a_large_batch_before_a_single_one_is_read() -> None:
    """The look at the last batch had an answer with the large one only: a readable log was refused."""
    large = batch(0, 3, delta=6, size=3 << 19)
    found = Segments([large, batch(3, 1)], end=4).read()
    assert not isinstance(found, KafkaError)
    assert [each.base_offset for each in found] == [0, 3]


def test_a_damaged_header_before_a_batch_that_no_answer_holds_is_an_error() -> None:
    log = Segments([batch(0, 3, delta=9), batch(3, 1, size=5 << 20), batch(4, 6)], end=10)
    assert isinstance(log.read(), CorruptMessage)


def test_a_damaged_header_behind_a_hole_is_no_damaged_base_offset() -> None:
    """Its last offset delta is too large. The topic was refused with a wrong cause, and can be exported."""
    found = Segments([batch(0, 3), batch(5, 3, delta=100), batch(8, 2)], end=10).read()
    assert not isinstance(found, KafkaError)
    assert [each.base_offset for each in found] == [0, 5, 8]


@pytest.mark.parametrize("delta", [0, 2, 100, -9])
def test_a_damaged_header_behind_a_hole_at_the_end_of_an_answer_hides_no_batch(delta: int) -> None:
    large = [batch(0, 3, size=1 << 20), batch(5, 3, delta=delta), batch(8, 1, size=2 << 20)]
    found = Segments([*large, batch(9, 1)], end=10).read()
    assert not isinstance(found, KafkaError)
    assert [each.base_offset for each in found] == [0, 5, 8, 9]


def test_a_damaged_header_that_covers_a_hole_is_no_damaged_base_offset() -> None:
    found = Segments([batch(0, 3), batch(3, 3, delta=100), batch(6, 1), batch(9, 1)], end=10).read()
    assert not isinstance(found, KafkaError)
    assert [each.base_offset for each in found] == [0, 3, 6, 9]


def at_offset(data: bytes, offset: int) -> bytes:
    """Return the batch *data* with another base offset, which its CRC does not cover."""
    return offset.to_bytes(8, "big", signed=True) + data[8:]


@pytest.mark.parametrize("base", [-1, 0, 2, 4, 6, 7, 8, 9, 12, 2**40, 2**62])
@pytest.mark.parametrize(
    "place", ["in a segment", "at its end", "of many bytes", "at the log's end"]
)
def test_a_damaged_base_offset_hides_no_batch(base: int, place: str) -> None:
    """No CRC covers it. The batches up to it were skipped, in no export, and the topic was deleted."""
    size = FETCH_BYTES // 3 if place == "of many bytes" else 1
    damaged = at_offset(batch(3, 3, size=size), base)
    behind = [batch(6, 1), batch(7, 1), batch(8, 2)]
    segments = (
        [[batch(0, 3), damaged], behind]
        if place == "at its end"
        else [[batch(0, 3), damaged, *behind]]
    )
    end = 10
    if place == "at the log's end":
        segments, end = [[batch(0, 3), damaged]], 6
    found = Segments(*segments, end=end).read()
    expected = [batch for segment in segments for batch in segment]
    if not isinstance(found, KafkaError):
        assert [bytes(each.data) for each in found] == expected


LAYOUTS = {
    "single records": [(0, 1)] * 6,
    "two records each": [(0, 2)] * 5,
    "three records each": [(0, 3)] * 4,
    "different sizes": [(0, 1), (0, 2), (0, 4), (0, 1), (0, 3)],
    "holes": [(0, 2), (1, 2), (0, 1), (3, 1), (0, 2), (2, 1)],
}
"""The batches of a log: the offsets that are missing before each one, and its records."""


class Layout:
    """The batches of a log, and the ways to cut it into up to three segments."""

    def __init__(self, *batches: tuple[int, int]) -> None:
        self.counts = [count for _, count in batches]
        self.ends = list(accumulate(hole + count for hole, count in batches))
        self.bases = [end - count for end, count in zip(self.ends, self.counts, strict=True)]
        # None has the bytes of another one.
        self.batches = [
            batch(base, count, size=1 + n)
            for n, (base, count) in enumerate(zip(self.bases, self.counts, strict=True))
        ]
        self.cuts = [[0, *cut] for n in range(3) for cut in combinations(range(1, len(batches)), n)]

    def log(self, cut: list[int], batches: list[bytes]) -> Segments:
        """Return a log of *batches*, which has a segment from each number of *cut* on."""
        bounds = zip(cut, [*cut[1:], len(batches)], strict=True)
        segments = [batches[first:until] for first, until in bounds]
        return Segments(*segments, end=self.ends[-1], names=[self.bases[n] for n in cut])


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_damaged_base_offset_hides_no_batch_of_any_size_in_any_segment(name: str) -> None:
    """The next segment had a batch at the same offset: it was taken for the damaged one, and skipped."""
    layout = Layout(*LAYOUTS[name])
    hidden, seen = [], 0
    for cut in layout.cuts:
        for number, data in enumerate(layout.batches):
            least = layout.ends[number - 1] if number in cut and number else 0
            for base in range(layout.ends[-1] + 3):
                if number in cut and base + layout.counts[number] <= least:
                    continue  # no broker returns it
                damaged = list(layout.batches)
                damaged[number] = at_offset(data, base)
                found = layout.log(cut, damaged).read()
                if isinstance(found, KafkaError):
                    seen += 1
                elif [bytes(each.data) for each in found] != damaged:
                    hidden.append((cut, number, base))
    assert not hidden
    assert seen


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_damaged_base_offset_behind_another_damaged_batch_hides_no_batch(name: str) -> None:
    """The batch before it was damaged, too, so it was not looked at: those up to its base offset were skipped."""
    layout = Layout(*LAYOUTS[name])
    hidden, seen, unseen = [], 0, 0
    for cut in layout.cuts:
        for number in range(1, len(layout.batches)):
            data = layout.batches[number]
            least = layout.ends[number - 1] if number in cut else 0
            for base in range(layout.ends[-1] + 3):
                if number in cut and base + layout.counts[number] <= least:
                    continue  # no broker returns it
                damaged = list(layout.batches)
                before = damaged[number - 1]
                damaged[number - 1] = before[:-1] + bytes([before[-1] ^ 1])
                damaged[number] = at_offset(data, base)
                found = layout.log(cut, damaged).read()
                if isinstance(found, KafkaError):
                    seen += 1
                elif [bytes(each.data) for each in found] != damaged:
                    hidden.append((cut, number, base))
                elif base == layout.bases[number]:
                    unseen += 1
    assert not hidden
    assert seen
    assert unseen, "one damaged batch alone is read"


@pytest.mark.parametrize("name", LAYOUTS)
def test_no_segments_of_a_log_are_damage(name: str) -> None:
    layout = Layout(*LAYOUTS[name])
    for cut in layout.cuts:
        found = layout.log(cut, layout.batches).read()
        assert not isinstance(found, KafkaError)
        assert [bytes(each.data) for each in found] == layout.batches


def test_a_damaged_base_offset_hides_no_batch_before_a_hole_at_the_end_of_a_segment() -> None:
    """The next segment has no batch at the last offset of the damaged one."""
    damaged = at_offset(batch(1, 2), 3)
    log = Segments([batch(0, 1), damaged], [batch(3, 1)], [batch(6, 1)], end=7)
    assert isinstance(log.read(), CorruptMessage)


def test_a_damaged_base_offset_hides_no_batch_that_is_larger_than_an_answer() -> None:
    damaged = at_offset(batch(1, 1, size=3 << 20), 2)
    log = Segments([batch(0, 1), damaged, batch(2, 1, size=5 << 20), batch(3, 1)], end=4)
    assert isinstance(log.read(), CorruptMessage)


@pytest.mark.parametrize("size", [1, FETCH_BYTES // 8])
def test_a_log_of_holes_is_read_with_few_fetches(size: int) -> None:
    """There were two fetches for each hole: 800 GiB for 100,000 of them."""
    batches = [batch(2 * n, 1, size=size) for n in range(100 if size == 1 else 40)]
    log = Segments(batches, end=2 * len(batches) - 1)
    found = log.read()
    assert not isinstance(found, KafkaError)
    assert len(found) == len(batches)
    log_bytes = sum(map(len, batches))
    answers = 1 + log_bytes // (FETCH_BYTES - len(batches[0]))
    assert len(log.fetched) <= 3 * answers
    assert sum(log.fetched) < 3 * log_bytes


def test_a_hole_in_a_log_is_no_damage() -> None:
    log = Segments([batch(2, 1), batch(5, 2)], [batch(9, 1), batch(12, 3), batch(20, 1)], end=21)
    log.reader = LogReader(log.cluster, TP, 0, 17)
    found = log.read()
    assert not isinstance(found, KafkaError)
    assert [each.base_offset for each in found] == [2, 5, 9, 12]
