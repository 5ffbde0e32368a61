"""The header audit: what equal headers are worth, and that batches with other headers are compared by content."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from kclient.types import TopicPartition
from kclient.wire.batches import HEADER_SIZE, parse
from kclient.wire.crc import crc32c
from kclient.wire.record_writer import Record, encode_batch
from spark_jobs.arrow_batches import digest_batches
from spark_jobs.cut import LogRange, OffsetRange
from spark_jobs.digest import WindowShape
from spark_jobs.engine import Failure, FailureKind, WindowRows
from spark_jobs.header_audit import audit_headers
from spark_jobs.header_batches import HEADER_COLUMNS, header_rows, header_sums
from spark_jobs.headers import HeaderAudit, HeaderVerdict
from spark_jobs.headers_report import document, screen
from spark_jobs.reader import Fetched, RangesLeft, Unread
from spark_jobs.snapshot import ClusterSnapshot
from spark_jobs.verdict import ExitCode, Limits

TP = TopicPartition("t", 0)
WINDOW = 10


class Batches:
    """Two logs of encoded batches; reads them as a Spark task does, in pieces of *piece* offsets."""

    def __init__(self, source: Sequence[bytes], target: Sequence[bytes], piece: int = 7) -> None:
        self.logs = {"source": source, "target": target}
        self.piece = piece
        self.settled: list[OffsetRange] = []
        self.deleted: list[Failure] = []

    def header_rows(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], window: int
    ) -> WindowRows:
        pieces = [
            OffsetRange(each.topic, each.partition, low, min(low + self.piece, each.high))
            for each in ranges
            for low in range(each.low, each.high, self.piece)
        ]
        names = [name for name, _ in HEADER_COLUMNS]
        rows = [
            dict(zip(names, row, strict=True))
            for row in header_rows(self.fetched(cluster, pieces), pieces, ranges, window)
        ]
        return self.answer(cluster, rows)

    def window_rows(self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> WindowRows:
        self.settled += ranges
        fetched = self.fetched(cluster, ranges)
        rows = [
            row
            for batch in digest_batches(fetched, ranges, WindowShape(WINDOW))
            for row in batch.to_pylist()
        ]
        return self.answer(cluster, rows)

    def answer(self, cluster: ClusterSnapshot, rows: Sequence[dict[str, object]]) -> WindowRows:
        failures = [each for each in self.deleted if each.cluster == cluster.name]
        for row in rows:
            if row["unread"] is not None:
                low, high, kind, cause = json.loads(str(row["unread"]))
                failures.append(Failure(cluster.name, *TP, low, high, FailureKind(kind), cause))
        return WindowRows([row for row in rows if row["unread"] is None], failures)  # type: ignore[misc]

    def fetched(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]
    ) -> Iterator[Fetched | Unread]:
        left = RangesLeft(ranges)
        for data in self.logs[cluster.name]:
            info = parse(data)
            if TP in left.partitions and info.next_offset > left.next_offset(TP):
                yield from left.accept(TP, info, memoryview(data))
                left.ended(TP)


def log(sizes: Sequence[int], *, first: int = 0, epoch: int = 0) -> list[bytes]:
    """Batches of the given sizes; the leader epoch is the only part that clusters write themselves."""
    batches = []
    base = first
    for size in sizes:
        records = [Record(n, base + n, b"k", b"v%d" % (base + n)) for n in range(size)]
        batches.append(encode_batch(records, base_offset=base, leader_epoch=epoch))
        base += size
    return batches


def run(
    engine: Batches,
    *,
    starts: tuple[int, int] = (0, 0),
    limits: Limits | None = None,
    policy: str = "delete",
) -> tuple[HeaderAudit, tuple[ClusterSnapshot, ClusterSnapshot]]:
    source, target = (
        ClusterSnapshot(
            name,
            "",
            name,
            {TP: LogRange(start, parse(engine.logs[name][-1]).next_offset)},
            {"t": {"cleanup.policy": policy}},
        )
        for name, start in zip(("source", "target"), starts, strict=True)
    )
    return audit_headers(engine, (source, target), WINDOW, limits or Limits()), (source, target)


def verdict_of(engine: Batches, policy: str = "delete") -> tuple[HeaderVerdict, ExitCode]:
    found, _ = run(engine, policy=policy)
    return found.verdict, found.exit_codes[0]


SIZES = (4, 1, 13, 2, 6, 9, 5)


def test_equal_batches_of_different_leader_epochs_have_equal_headers() -> None:
    engine = Batches(log(SIZES), log(SIZES, epoch=7))
    found, clusters = run(engine)
    assert (found.verdict, found.exit_codes) == (HeaderVerdict.HEADERS_EQUAL, [ExitCode.CONSISTENT])
    assert not engine.settled
    made = document(found, clusters, {})
    assert made["read"] == [{"batches": 7, "records": 40, "bytes": sum(map(len, log(SIZES)))}] * 2
    assert made["offsets"]["compared"] == made["offsets"]["in_scope"] == 40
    text = screen(made, "kaudit reconcile")
    assert text.startswith("VERDICT  HEADERS-EQUAL   source -> target   exit 0\n")
    assert "no record was compared" in text
    assert "CONSISTENT" not in text


def test_a_cluster_that_is_compared_with_itself_is_named_on_the_screen() -> None:
    found, (source, target) = run(Batches(log(SIZES), log(SIZES)))
    line = "ATTENTION: source and target are one cluster (source): its logs are compared with"
    one = replace(target, cluster_id=source.cluster_id)
    assert line in screen(document(found, (source, one), {}), "")
    renamed = replace(one, prefix="copy.")
    for other in (target, renamed):
        assert "ATTENTION" not in screen(document(found, (source, other), {}), "")


def test_the_sums_do_not_depend_on_how_ranges_are_divided() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        batches = log([rng.randrange(1, 15) for _ in range(12)])
        end = parse(batches[-1]).next_offset
        low = rng.randrange(end)
        cluster = ClusterSnapshot("source", "", "", {})
        whole = [OffsetRange("t", 0, low, end)]
        found = []
        for piece in (1, rng.randrange(1, 20), end):
            rows = Batches(batches, [], piece).header_rows(cluster, whole, WINDOW).rows
            found.append({key: (each, each.reach) for key, each in header_sums(rows).items()})
        assert found[0] == found[1] == found[2], seed
        inside = [each for each in map(parse, batches) if each.next_offset > low]
        assert sum(each.batches for each, _ in found[0].values()) == len(inside)


def test_a_record_with_another_value_is_found() -> None:
    target = log(SIZES)
    records = [Record(n, 20 + n, b"k", b"v%d" % (20 + n)) for n in range(6)]
    records[3] = records[3]._replace(value=b"vXX")
    target[4] = encode_batch(records, base_offset=20)
    found, clusters = run(Batches(log(SIZES), target))
    assert (found.verdict, found.exit_codes[0]) == (HeaderVerdict.DIVERGED, ExitCode.DIVERGED)
    assert [each.key.window for each in found.diverged] == [2]
    made = document(found, clusters, {})
    assert made["other_content"] == [["t", 0, 2, "content"]]
    assert "t p0, offsets 20 to 29: other content" in screen(made, "")


def test_a_difference_in_the_part_of_a_batch_behind_its_window_is_found() -> None:
    """The batch 5 to 17 begins in window 0, and its last record is in window 1. Those that begin there are equal."""
    target = log(SIZES)
    records = [Record(n, 5 + n, b"k", b"v%d" % (5 + n)) for n in range(13)]
    records[12] = records[12]._replace(value=b"v??")
    target[2] = encode_batch(records, base_offset=5)
    engine = Batches(log(SIZES), target)
    found, _ = run(engine)
    assert [each.window for each in found.other_headers] == [0]
    assert engine.settled == [OffsetRange("t", 0, 0, 18)] * 2
    assert found.verdict is HeaderVerdict.DIVERGED
    assert [each.key.window for each in found.diverged] == [1]


def test_batches_divided_otherwise_are_equal_by_content() -> None:
    engine = Batches(log(SIZES), log([20, 20]))
    assert verdict_of(engine) == (HeaderVerdict.CONTENT_EQUAL, ExitCode.CONSISTENT)
    compressed = [encode_batch([Record(n, n, b"k", b"v%d" % n) for n in range(40)], codec=1)]
    assert verdict_of(Batches(log(SIZES), compressed)) == (
        HeaderVerdict.CONTENT_EQUAL,
        ExitCode.CONSISTENT,
    )


def test_a_damaged_byte_under_an_equal_header_is_found_by_the_crc() -> None:
    target = log(SIZES)
    damaged = bytearray(target[3])
    damaged[-2] ^= 1
    target[3] = bytes(damaged)
    found, _ = run(Batches(log(SIZES), target))
    assert (found.verdict, found.exit_codes[0]) == (HeaderVerdict.DIVERGED, ExitCode.DIVERGED)
    (failure,) = found.damaged
    assert (failure.cluster, failure.low, failure.high) == ("target", 18, 20)


def test_a_missing_batch_and_one_that_only_the_target_has_are_found() -> None:
    missing = log(SIZES)
    del missing[3]
    assert verdict_of(Batches(log(SIZES), missing))[0] is HeaderVerdict.DIVERGED
    extra = [*log(SIZES), *log([3], first=40)]
    assert verdict_of(Batches(log(SIZES), extra))[0] is HeaderVerdict.DIVERGED


def test_compaction_is_no_verdict() -> None:
    compacted = log(SIZES)
    del compacted[1]
    expected = HeaderVerdict.INCOMPLETE, ExitCode.NO_VERDICT_YET
    assert verdict_of(Batches(log(SIZES), compacted), policy="compact") == expected


def test_lag_is_no_difference_and_no_proof() -> None:
    engine = Batches(log(SIZES), log(SIZES[:5]))
    assert verdict_of(engine) == (HeaderVerdict.LAGGING, ExitCode.NO_VERDICT_YET)
    found, _ = run(engine, limits=Limits(max_lag=14))
    assert (found.verdict, found.exit_codes[0]) == (
        HeaderVerdict.HEADERS_EQUAL,
        ExitCode.CONSISTENT,
    )
    assert (found.scope.counted, found.scope.lagging) == (26, 14)


def test_logs_without_an_offset_are_no_proof() -> None:
    found, _ = run(Batches(log(SIZES), log(SIZES)), starts=(40, 40))
    assert (found.scope.counted, found.in_scope) == (0, 0)
    assert (found.verdict, found.exit_codes[0]) == (
        HeaderVerdict.LAGGING,
        ExitCode.NO_VERDICT_YET,
    )


def test_a_cut_inside_a_batch_counts_the_batch_on_both_sides() -> None:
    found, _ = run(Batches(log(SIZES), log(SIZES[2:], first=5)), starts=(0, 9))
    assert not found.other_headers
    assert (found.verdict, found.exit_codes[0]) == (HeaderVerdict.INCOMPLETE, ExitCode.AGED_OUT)
    assert (found.scope.counted, found.scope.aged_out) == (31, 9)


def undecodable(data: bytes) -> bytes:
    """Return the batch with a right CRC and a first record that no client can decode."""
    broken = bytearray(data)
    broken[HEADER_SIZE] ^= 0x55
    broken[17:21] = crc32c(bytes(broken[21:])).to_bytes(4, "big")
    return bytes(broken)


def test_a_batch_that_can_not_be_decoded_beside_a_batch_with_another_header_is_no_difference() -> (
    None
):
    """Invariant 3. Batch 1 was divided otherwise at the target, batch 3 has equal bytes in both logs."""
    source, target = log((4, 2, 4)), log((4, 1, 1, 4))
    source[2] = target[3] = undecodable(source[2])
    found, clusters = run(Batches(source, target))
    assert (found.verdict, found.damaged, found.diverged) == (HeaderVerdict.INCOMPLETE, [], [])
    assert found.exit_codes == [ExitCode.NO_VERDICT_YET, ExitCode.CONSISTENT]
    made = document(found, clusters, {})
    assert (made["offsets"]["compared"], made["offsets"]["not_read"]) == (6, 4)
    assert "batch at offset 6" in screen(made, "")
    accepted, _ = run(Batches(source, target), limits=Limits(min_coverage=0.5))
    assert accepted.exit_codes[0] is ExitCode.NO_VERDICT_YET
    source[2] = log((4, 2, 4))[2]
    with_difference, _ = run(Batches(source, target))
    assert (with_difference.verdict, with_difference.damaged) == (HeaderVerdict.INCOMPLETE, [])
    assert [each.key.window for each in with_difference.open_windows] == [0]


def test_a_batch_of_which_the_begin_was_deleted_during_the_run_is_not_compared() -> None:
    """It begins in the slice before, which has not counted it."""
    data = log((4, 6))[1]
    slices = [OffsetRange("t", 0, 0, 6), OffsetRange("t", 0, 6, 10)]
    left = RangesLeft(slices)
    fetched = [
        *left.skip(TP, 8, FailureKind.DELETED, "the log starts at 8"),
        *left.accept(TP, parse(data), memoryview(data)),
    ]
    rows = list(header_rows(fetched, slices, [OffsetRange("t", 0, 0, 10)], WINDOW))
    parts = [json.loads(str(row[-1]))[:3] for row in rows]
    assert parts == [[0, 6, "deleted"], [6, 8, "deleted"], [8, 10, "deleted"]]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (FailureKind.DELETED, (HeaderVerdict.INCOMPLETE, ExitCode.AGED_OUT)),
        (FailureKind.UNREADABLE, (HeaderVerdict.ERROR, ExitCode.UNREADABLE)),
    ],
)
def test_a_window_that_was_not_read_in_full_is_no_difference(
    kind: FailureKind, expected: tuple[HeaderVerdict, ExitCode]
) -> None:
    target = log(SIZES)
    del target[0]
    engine = Batches(log(SIZES), target)
    engine.deleted = [Failure("target", *TP, 0, 4, kind, "a cause")]
    found, _ = run(engine)
    assert (found.verdict, found.exit_codes[0]) == expected
    assert [each.key.window for each in found.open_windows] == [0]
    assert not found.diverged


def test_the_verdict_and_the_exit_code_agree_on_random_damage() -> None:
    """Whatever is damaged, exit code 0 means equal records, as their values show."""
    seen = set()
    for seed in range(60):
        rng = random.Random(seed)
        sizes = [rng.randrange(1, 9) for _ in range(8)]
        source, target = log(sizes), log(sizes, epoch=rng.randrange(3))
        equal = rng.random() < 0.4
        if not equal:
            at = rng.randrange(len(target))
            info = parse(target[at])
            records = [
                Record(n, info.base_offset + n, b"k", b"damaged") for n in range(info.record_count)
            ]
            target[at] = encode_batch(records, base_offset=info.base_offset)
        found, clusters = run(Batches(source, target, piece=rng.randrange(1, 30)))
        assert (found.exit_codes[0] is ExitCode.CONSISTENT) is equal, seed
        assert document(found, clusters, {})["verdict"] == found.verdict.value
        seen.add(found.verdict)
        assert replace(found, limits=Limits(max_lag=9)).verdict is found.verdict
    assert seen == {HeaderVerdict.HEADERS_EQUAL, HeaderVerdict.DIVERGED}
