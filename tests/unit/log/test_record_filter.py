"""Which records of a batch stay in a cleaned log, and how the batch without the others is written."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kbroker.log.core.cleaned_transactions import AbortedTransaction, CleanedTransactions
from kbroker.log.core.offset_map import ENTRY_BYTES, OffsetMap
from kbroker.log.core.record_filter import CleaningRound, LastBatch, RecordFilter
from kclient.wire.batches import (
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchInfo,
    build,
    check_crc,
    parse,
    with_log_append_time,
)
from kclient.wire.errors import InvalidRecord
from kclient.wire.records import (
    ABORT,
    COMMIT,
    Record,
    decode_batch,
    encode_batch,
    encode_transaction_marker,
)

NOW = 10_000
RETENTION = 100
HEADERS = (("h", b"1"), ("h", None))


def record(offset: int, key: bytes | None, value: bytes | None = b"v", at: int = 500) -> Record:
    return Record(offset, at + offset, key, value, HEADERS)


def batch(*records: Record, base: int = 0, **fields: Any) -> bytes:
    return encode_batch(records, base_offset=base, leader_epoch=4, **fields)


def cleaned(
    source: bytes,
    latest: dict[bytes, int] | None = None,
    *,
    now: int = NOW,
    map_end: int = 1_000,
    end: int = 1_000,
    last_batches: dict[int, LastBatch] | None = None,
    transactions: CleanedTransactions | None = None,
    retention: int = RETENTION,
) -> bytes | None:
    """What a round leaves of one batch."""
    offsets = OffsetMap(50 * ENTRY_BYTES)
    for key, offset in (latest or {}).items():
        offsets.put(key, offset)
    survivors = RecordFilter(
        offsets,
        CleaningRound(map_end, end, now, retention, last_batches or {}),
        transactions or CleanedTransactions(),
    )
    found = survivors.filter(source, parse(source))
    if found is None:
        return None
    check_crc(bytes(found), parse(bytes(found)))
    return bytes(found)


def records_of(whole: bytes | None) -> list[Record]:
    assert whole is not None
    found = decode_batch(whole, parse(whole))
    return [each._replace(headers=tuple(each.headers)) for each in found]


def identity(info: BatchInfo) -> tuple[int, ...]:
    """The fields that stay whatever is removed."""
    return (
        info.base_offset,
        info.last_offset,
        info.leader_epoch,
        info.producer_id,
        info.producer_epoch,
        info.base_sequence,
    )


@pytest.mark.parametrize("codec", range(5))
def test_records_that_stay_are_the_same_and_so_is_the_identity_of_their_batch(codec: int) -> None:
    records = [record(n, b"k%d" % n) for n in range(6)]
    source = batch(*records, base=0, codec=codec, producer_id=9, producer_epoch=2, base_sequence=70)
    found = cleaned(source, {b"k0": 80, b"k3": 3, b"k5": 90})
    assert found is not None
    before, after = parse(source), parse(found)
    assert records_of(found) == [records[n] for n in (1, 2, 3, 4)]
    assert identity(after) == identity(before)
    assert after.codec == codec
    assert after.max_timestamp == records[4].timestamp


def test_a_batch_that_loses_nothing_is_copied_byte_by_byte() -> None:
    source = batch(record(0, b"a"), record(1, b"b"), codec=4)
    assert cleaned(source, {b"a": 0, b"b": 1}) == source


def test_a_record_without_a_key_goes() -> None:
    assert records_of(cleaned(batch(record(0, None), record(1, b"")))) == [record(1, b"")]


def test_records_from_the_end_of_the_map_on_stay() -> None:
    source = batch(record(0, b"a"), record(1, b"a"), record(2, None))
    assert [each.offset for each in records_of(cleaned(source, {b"a": 50}, map_end=1))] == [1, 2]
    assert cleaned(source, {b"a": 50}, map_end=0) == source


def test_the_first_round_that_keeps_a_tombstone_sets_the_delete_horizon() -> None:
    records = [record(0, b"a", None), record(1, b"b"), record(2, b"b")]
    for codec in (0, 3):
        found = cleaned(batch(*records, codec=codec), {b"b": 2})
        assert found is not None
        info = parse(found)
        assert (info.has_delete_horizon, info.base_timestamp) == (True, NOW + RETENTION)
        assert records_of(found) == [records[0], records[2]]
        # Later rounds leave the horizon, and remove the tombstone when it has passed.
        assert cleaned(found, now=NOW + RETENTION - 1) == found
        assert records_of(cleaned(found, now=NOW + RETENTION)) == [records[2]]


@pytest.mark.parametrize("retention", [2**63 - 1 - NOW, 2**63 - 1])
def test_a_tombstone_may_stay_for_ever(retention: int) -> None:
    """delete.retention.ms=9223372036854775807: a horizon is an int64."""
    records = [record(0, b"a", None), record(1, b"b"), record(2, b"b")]
    found = cleaned(batch(*records), {b"b": 2}, retention=retention)
    assert found is not None
    info = parse(found)
    assert (info.has_delete_horizon, info.base_timestamp) == (True, 2**63 - 1)
    assert records_of(found) == [records[0], records[2]]
    assert cleaned(found, now=2**62, retention=retention) == found
    without_time = [record(0, b"a", None, at=NO_TIMESTAMP)]
    assert records_of(cleaned(batch(*without_time), retention=retention)) == without_time


def test_a_tombstone_that_is_superseded_goes_at_once_and_one_not_in_the_map_waits() -> None:
    source = batch(record(0, b"a", None), record(1, b"b"))
    assert records_of(cleaned(source, {b"a": 7})) == [record(1, b"b")]
    horizon = cleaned(source)
    assert horizon is not None
    over = cleaned(horizon, now=NOW + RETENTION, map_end=0)
    assert over == horizon


def test_under_log_append_time_all_records_keep_the_time_of_the_broker() -> None:
    source = batch(record(0, b"a", None), record(1, b"b"), record(2, b"c"))
    source = with_log_append_time(source, parse(source), 777)
    found = cleaned(source, {b"c": 9})
    assert found is not None
    assert parse(found).attributes & LOG_APPEND_TIME
    assert [(each.offset, each.timestamp) for each in records_of(found)] == [(0, 777), (1, 777)]


def test_the_last_batch_of_a_producer_and_of_the_round_stays_without_records() -> None:
    source = batch(
        record(0, b"a"), record(1, b"a"), codec=4, producer_id=9, producer_epoch=2, base_sequence=70
    )
    gone = {b"a": 50}
    assert cleaned(source, gone) is None
    assert cleaned(source, gone, last_batches={9: LastBatch(5, 2), 8: LastBatch(1, 2)}) is None
    for found in (
        cleaned(source, gone, last_batches={9: LastBatch(1, 2)}),
        cleaned(source, gone, end=2),
    ):
        assert found is not None
        info = parse(found)
        assert identity(info) == identity(parse(source))
        assert (info.record_count, info.codec, info.size) == (0, 0, 61)
        assert (info.base_timestamp, info.max_timestamp) == (NO_TIMESTAMP, 501)
        # It goes when another batch of the producer is the last one.
        assert cleaned(found, last_batches={9: LastBatch(5, 2)}) is None
        assert cleaned(found, last_batches={9: LastBatch(1, 2)}) == found


def test_records_that_do_not_add_up_are_an_error() -> None:
    source = parse(batch(record(0, b"a"), record(1, b"b")))
    whole = batch(record(0, b"a"), record(1, b"b"))
    for payload, count in ((whole[61:], 1), (whole[61:], 3), (whole[61:-1], 2)):
        broken = build(
            payload,
            record_count=count,
            last_offset_delta=1,
            base_timestamp=source.base_timestamp,
            max_timestamp=source.max_timestamp,
        )
        with pytest.raises(InvalidRecord):
            cleaned(broken, {b"a": 50})


# Transactions


def transactional(offset: int, key: bytes, producer: int) -> bytes:
    return batch(
        record(0, key),
        base=offset,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        attributes=TRANSACTIONAL,
        keep_offsets=False,
    )


def marker(offset: int, kind: int, producer: int) -> bytes:
    return encode_transaction_marker(
        kind,
        producer_id=producer,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp=500,
        base_offset=offset,
    )


def pass_over(
    log: list[bytes], aborted: list[AbortedTransaction], latest: dict[bytes, int], now: int
) -> list[bytes]:
    """What a round leaves of a log."""
    transactions = CleanedTransactions(aborted)
    found = [cleaned(each, latest, now=now, transactions=transactions) for each in log]
    return [each for each in found if each is not None]


def test_aborted_records_go_and_their_marker_after_a_delete_horizon() -> None:
    log = [transactional(0, b"a", 1), transactional(1, b"a", 2), marker(2, ABORT, 1)]
    log += [marker(3, COMMIT, 2)]
    aborted = [AbortedTransaction(1, 0, 2)]
    first = pass_over(log, aborted, {b"a": 1}, NOW)
    assert [parse(each).base_offset for each in first] == [1, 2, 3]
    assert parse(first[1]).has_delete_horizon
    assert [first[0], first[2]] == [log[1], log[3]]
    assert pass_over(first, [], {}, NOW + RETENTION - 1) == first
    second = pass_over(first, [], {}, NOW + RETENTION)
    assert [parse(each).base_offset for each in second] == [1, 3]


def test_a_commit_marker_stays_while_a_batch_of_its_transaction_does() -> None:
    log = [transactional(0, b"a", 1), marker(1, COMMIT, 1)]
    kept = pass_over(log, [], {}, NOW + RETENTION)
    assert kept == log
    emptied = pass_over(log, [], {b"a": 9}, NOW)
    assert [parse(each).base_offset for each in emptied] == [1]
    assert parse(emptied[0]).has_delete_horizon
    assert pass_over(emptied, [], {}, NOW + RETENTION) == []


def test_an_aborted_transaction_ends_with_its_marker() -> None:
    log = [transactional(0, b"a", 1), marker(1, ABORT, 1), transactional(2, b"b", 1)]
    log += [marker(3, COMMIT, 1)]
    found = pass_over(log, [AbortedTransaction(1, 0, 1)], {}, NOW)
    assert [parse(each).base_offset for each in found] == [1, 2, 3]
    assert found[1:] == log[2:]


def test_the_result_of_random_batches_does_not_change_when_it_is_filtered_again() -> None:
    rng = random.Random(3)
    for _ in range(100):
        keys = [rng.choice([b"a", b"b", b"c", b""]) for _ in range(rng.randint(1, 6))]
        source = batch(
            *[record(n, key, rng.choice([None, b"v"])) for n, key in enumerate(keys)],
            codec=rng.randrange(5),
        )
        latest = {key: rng.choice([n, n + 5]) for n, key in enumerate(keys)}
        once = cleaned(source, latest)
        if once is not None:
            assert cleaned(once, latest) == once
