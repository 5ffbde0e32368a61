"""The end of the common batches, and what only one log has, against brute force (divergence.py, invariants 1 to 4)."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kclient.types import TopicPartition
from kclient.wire import batches
from kclient.wire.records import (
    COMMIT,
    Record,
    decode_batch,
    encode_batch,
    encode_transaction_marker,
)
from mirrormaker.divergence import Batch, Comparison, DivergenceSearch, Kind, Side, read_batches
from mirrormaker.export_manifest import Manifest, manifest_of
from mirrormaker.exported import show_exported
from mirrormaker.failback_stage import LOST, Exported
from mirrormaker.tail_export import (
    BadExport,
    PartitionExport,
    begin,
    directory_of,
    verify,
    write_manifest,
)
from tests.kit.property_tests import examples

TP = TopicPartition("t", 0)
NOW_MS = 1_700_000_000_000

contents = st.lists(
    st.tuples(
        st.integers(0, 3),  # gap before the batch
        st.lists(
            st.tuples(st.integers(0, 10_000), st.sampled_from([b"x", b"y"])), min_size=1, max_size=3
        ),
        st.integers(0, 9),  # 0: a control batch
    ),
    max_size=8,
)


def log(start: int, of: list[tuple[int, list[tuple[int, bytes]], int]], epoch: int) -> list[bytes]:
    """Batches from offset *start* on."""
    found, offset = [], start
    for gap, records, kind in of:
        offset += gap
        if kind == 0:
            data = bytearray(
                encode_transaction_marker(
                    COMMIT, producer_id=7, producer_epoch=1, coordinator_epoch=0, timestamp=NOW_MS
                )
            )
        else:
            data = bytearray(
                encode_batch(
                    [Record(n, NOW_MS + at, None, value) for n, (at, value) in enumerate(records)],
                    codec=kind % 5,
                )
            )
        data[:8] = offset.to_bytes(8, "big")
        data[12:16] = epoch.to_bytes(4, "big")
        found.append(bytes(data))
        offset = batches.parse(found[-1]).next_offset
    return found


def parsed(found: list[bytes]) -> list[Batch]:
    return read_batches(b"".join(found))


def end_of(found: list[Batch], start: int) -> int:
    return found[-1].next_offset if found else start


def at(found: list[Batch], offset: int) -> Batch | None:
    return next((each for each in found if each.next_offset > offset), None)


def same(ours: Batch, theirs: Batch) -> bool:
    """Brute force: all bytes but the leader epoch's four."""
    a, b = bytes(ours.data), bytes(theirs.data)
    return a[:12] + a[16:] == b[:12] + b[16:]


@settings(max_examples=examples(40), deadline=None)
@given(contents, contents, contents)
def test_the_search_finds_the_end_of_the_common_prefix(common, mine, other):
    prefix = log(0, common, 1)
    until = end_of(parsed(prefix), 0)
    ours = parsed(prefix + log(until, mine, 1))
    theirs = parsed(log(0, common, 5) + log(until, other, 5))
    expected = 0
    for a, b in zip(ours, theirs, strict=False):
        if not same(a, b):
            break
        expected = a.next_offset
    common_later = {bytes(a.data[16:]) for a in ours if a.base_offset >= expected} & {
        bytes(b.data[16:]) for b in theirs if b.base_offset >= expected
    }
    if common_later:
        return  # the search assumes that no batch above the first difference is equal
    search = DivergenceSearch(0, min(end_of(ours, 0), end_of(theirs, 0)))
    while (offset := search.probe) is not None:
        search.answer(at(ours, offset), at(theirs, offset))
    assert search.common_until == expected
    assert search.probes <= 8


def comparison_of(
    ours: list[Batch],
    theirs: list[Batch],
    pieces: list[int],
    decided: list[tuple[Batch, bool]] | None = None,
) -> Comparison:
    """The comparison at its end; what it decides is added to *decided*."""
    left = {Side.OURS: list(ours), Side.THEIRS: list(theirs)}
    comparison, turn = Comparison(), 0
    decided = [] if decided is None else decided
    while (side := comparison.wants) is not None:
        size = pieces[turn % len(pieces)]
        turn += 1
        now, left[side] = left[side][:size], left[side][size:]
        decided += list(comparison.feed(side, now) if now else comparison.end(side))
    return comparison


@settings(max_examples=examples(40), deadline=None)
@given(contents, contents, st.sets(st.integers(0, 9)), st.lists(st.integers(1, 4), min_size=1))
def test_the_comparison_finds_the_first_hole(common, other, lost, pieces):
    theirs = parsed(log(0, common, 1))
    mine = parsed(log(0, common, 5))
    until = end_of(mine, 0)
    ours = [each for n, each in enumerate(mine) if n not in lost] + parsed(log(until, other, 5))
    held = {at_ for each in ours for at_ in range(each.base_offset, each.next_offset)}
    lacking = [
        at_
        for each in theirs
        for at_ in range(each.base_offset, each.next_offset)
        if at_ not in held and at_ < end_of(ours, 0)
    ]
    assert comparison_of(ours, theirs, pieces).first_lacking == min(lacking, default=None)


def damaged(found: list[bytes], numbers: set[int]) -> list[Batch]:
    """The batches with one bit of some of them flipped, in a value if it is not compressed: it can be decoded then."""
    changed = [
        each[:-2] + bytes([each[-2] ^ 1, each[-1]]) if n in numbers else each
        for n, each in enumerate(found)
    ]
    return parsed(changed)


@settings(max_examples=examples(40), deadline=None)
@given(contents, contents, st.sets(st.integers(0, 9)), st.lists(st.integers(1, 4), min_size=1))
def test_the_comparison_finds_the_first_damaged_batch_of_the_other_log(mine, other, bad, pieces):
    """Ours may be the only good copy of it. The end of ours does not matter."""
    sound = log(0, other, 5)
    found = comparison_of(parsed(log(0, mine, 1)), damaged(sound, bad), pieces)
    bases = [each.base_offset for n, each in enumerate(parsed(sound)) if n in bad]
    assert found.first_damaged == min(bases, default=None)


@settings(max_examples=examples(40), deadline=None)
@given(
    contents,
    contents,
    contents,
    st.integers(0, 12),
    st.sets(st.integers(0, 8), max_size=2),
    st.sets(st.integers(0, 8), max_size=2),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
)
def test_what_is_exported_is_what_the_other_log_lacks(
    common, mine, other, retained_from, bad_ours, bad_theirs, pieces
):
    prefix = log(0, common, 1)
    until = end_of(parsed(prefix), 0)
    ours = damaged(prefix + log(until, mine, 1), bad_ours)
    all_theirs = damaged(log(0, common, 5) + log(until, other, 5), bad_theirs)
    theirs = [each for each in all_theirs if each.next_offset > retained_from]
    other_start = min(retained_from, end_of(all_theirs, 0))

    def is_undamaged(each: Batch) -> bool:
        try:
            batches.check_crc(each.data, each.info)
        except batches.CorruptMessage:
            return False
        return True

    expected = [
        not any(same(mine_, b) and is_undamaged(b) for b in theirs) for mine_ in ours
    ]  # True: the other log lacks it
    decided: list[tuple[Batch, bool]] = []
    comparison_of(ours, theirs, pieces, decided)
    assert [batch.base_offset for batch, _ in decided] == [each.base_offset for each in ours]
    assert [not is_equal for _, is_equal in decided] == expected

    equal_ends = [each.next_offset for each, lacks in zip(ours, expected, strict=True) if not lacks]
    lacking = [each for each, lacks in zip(ours, expected, strict=True) if lacks]
    with TemporaryDirectory() as out:
        directory = directory_of(Path(out), "t", "id")
        begin(directory)
        export = PartitionExport(directory, TP, other_start=other_start, with_head=True)
        for batch, is_equal in decided:
            export.add(batch, is_equal)
        partition = export.finish(log_start=0, log_end=end_of(ours, 0))
        manifest = Manifest(
            "t", "id", "E", "W", "other", 1, 1, (partition,), {"g": {0: (3, "note")}}
        )
        write_manifest(directory, manifest)
        verify(directory, manifest)
        assert manifest_of(json.loads(json.dumps(asdict(manifest)))) == manifest
        written = b"".join((directory / "0" / each.name).read_bytes() for each in partition.files)
        lines: list[str] = []
        sound = [each for each in lacking if is_undamaged(each)]
        readable = [each for each in sound if not each.info.is_control]
        if bad := len(lacking) - len(sound):
            with pytest.raises(BadExport, match=f"^{bad} batches have a wrong CRC"):
                show_exported(Path(out), "all", lines.append)
        else:
            show_exported(Path(out), "all", lines.append)
    assert written == b"".join(bytes(each.data) for each in lacking)
    assert [json.loads(line)["offset"] for line in lines] == [
        each.base_offset + n for each in readable for n in range(each.info.record_count)
    ]
    assert partition.divergence.last_equal_end == (max(equal_ends) if equal_ends else None)

    # The RPO, counted from the records that were written above.
    lost = [each for each in lacking if each.next_offset > other_start]
    found = Exported.of(manifest.files(*LOST))
    data = [each for each in lost if not (each.info.is_control and is_undamaged(each))]
    assert found.records == sum(each.info.record_count for each in data)
    assert found.batches == len(lost)
    if not bad_ours and data:
        stamps = [NOW_MS + at_ for each in data for at_ in timestamps_of(each)]
        assert found.seconds == (max(stamps) - min(stamps)) / 1000
    tails = [each for each in lost if not equal_ends or each.base_offset >= max(equal_ends)]
    assert Exported.of(manifest.files(Kind.TAIL)).batches == len(tails)


def timestamps_of(batch: Batch) -> list[int]:
    return [each.timestamp - NOW_MS for each in decode_batch(batch.data, batch.info)]
