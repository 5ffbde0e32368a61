"""The entries of the gap ledger: what is written, what is read, and which entry a repeated gap becomes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kclient.mirror_json import encoded
from kclient.mirror_ledger import (
    LINEAGE,
    REMOVAL,
    GapEntry,
    encode,
    encode_key,
    is_ledger,
    ledger_topic,
    merged,
    view,
)

GAP = GapEntry("east-id", "orders", 0, 100, 150, "retention", "orders", "a", "a", "t", None, 7)
RECREATED = replace(GAP, cause="recreated", source_topic_id_after="b", until=100)


def test_an_entry_is_read_as_it_was_written() -> None:
    read = view([encode(GAP)])
    assert (read.sorted(), read.unreadable) == ([GAP], 0)


def test_a_line_of_the_ledger_is_a_line_of_accepted_gaps() -> None:
    fields = json.loads(encode(GAP)[1])
    named = {name: fields[name] for name in ("topic", "partition", "from", "until", "cause")}
    assert named == {
        "topic": "orders",
        "partition": 0,
        "from": 100,
        "until": 150,
        "cause": "retention",
    }


@pytest.mark.parametrize("kind", [REMOVAL, LINEAGE])
def test_an_entry_of_another_type_replaces_no_gap_at_the_same_offset(kind: str) -> None:
    other = replace(GAP, type=kind)
    read = view([encode(GAP), encode(other)])
    assert set(read.entries.values()) == {GAP, other}


def test_a_topic_that_is_truncated_twice_has_both_removals() -> None:
    """Before, the second one, of the topic that was created again, replaced the first one."""
    first = replace(GAP, type=REMOVAL, target_topic_id="one", records_lost=100)
    second = replace(first, target_topic_id="two", records_lost=150)
    removals = [encode(first), encode(second)]
    assert view(removals).sorted() == [first, second]
    assert view([*removals, (encode_key(first.key), None)]).sorted() == [second]
    key = json.loads(removals[0][0])
    del key["target_topic_id"]  # as keys were before
    assert view([(encoded(key), removals[0][1])]).sorted() == [first]
    assert "target_topic_id" not in json.loads(encode(GAP)[0])


def test_a_topic_that_is_created_again_twice_has_both_lineages() -> None:
    """The first copy ends once, so both begin at the same offset. Before, the second one replaced the first one."""
    first = replace(RECREATED, type=LINEAGE)
    second = replace(first, source_topic_id_after="c")
    lineages = [encode(first), encode(second)]
    assert view(lineages).sorted() == [first, second]
    assert view([*lineages, (encode_key(first.key), None)]).sorted() == [second]
    key = json.loads(lineages[0][0])
    assert key.pop("source_topic_id_after") == "b"
    earlier = (encoded(key), lineages[0][1])  # as an earlier release wrote it
    assert view([earlier, lineages[1]]).sorted() == [first, second]
    assert view([earlier, lineages[0]]).sorted() == [first]
    assert "source_topic_id_after" not in json.loads(encode(RECREATED)[0])


def test_the_latest_record_of_an_entry_counts_also_if_an_earlier_release_wrote_it() -> None:
    first = replace(RECREATED, type=LINEAGE)
    key, value = encode(first)
    old_key = json.loads(key)
    del old_key["source_topic_id_after"]
    latest = replace(first, target_topic_id="u")
    records = [(encoded(old_key), value), (key, value), (encoded(old_key), encode(latest)[1])]
    assert view(records).sorted() == [latest]


def test_the_latest_record_of_a_key_is_the_entry_and_a_null_value_deletes_it() -> None:
    wider, other = replace(GAP, until=160), replace(GAP, first=200, until=201)
    records = [encode(GAP), encode(other), encode(wider), (encode(other)[0], None)]
    assert view(records).sorted() == [wider]


def test_a_gap_that_is_found_again_after_a_kill_has_the_same_key_and_its_first_time() -> None:
    again = replace(GAP, first_seen_ms=99)
    assert merged(GAP, again) == GAP
    assert merged(GAP, replace(again, until=170)) == replace(GAP, until=170)
    assert merged(None, again) == again


def test_retention_behind_a_recreated_topic_stays_a_gap_of_the_recreated_topic() -> None:
    """Killed after the topic id was stated: the next run sees retention of the new topic only."""
    found = replace(GAP, until=130, source_topic_id_before="b", source_topic_id_after="b")
    assert merged(RECREATED, found) == replace(RECREATED, until=130)


def test_a_topic_that_was_recreated_twice_keeps_the_id_of_the_copied_records() -> None:
    found = replace(RECREATED, source_topic_id_before="b", source_topic_id_after="c")
    assert merged(RECREATED, found) == replace(RECREATED, source_topic_id_after="c")


def test_an_entry_of_a_deleted_target_topic_is_replaced() -> None:
    found = replace(GAP, target_topic_id="u", first_seen_ms=99)
    assert merged(RECREATED, found) == found


@pytest.mark.parametrize(
    "changes",
    [
        {"schema_version": 2},
        {"until": 99},
        {"until": -1},
        {"until": 1 << 63},
        {"until": 150.0},
        {"until": True},
        {"until": None},
        {"cause": None},
        {"records_lost": "many"},
    ],
)
def test_a_record_that_is_no_entry_is_counted_and_not_used(changes: dict[str, object]) -> None:
    key, value = encode(GAP)
    changed = json.dumps(json.loads(value) | changes).encode()
    assert view([(key, changed)]) == ({}, 1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"[]", b"{}"),
        (encode(GAP)[0], b"\xff"),
        (b"{}", encode(GAP)[1]),
        (b"null", b"null"),
        (encode(GAP)[0], b"[" * 100_000),
    ],
)
def test_any_bytes_can_be_read(key: bytes | None, value: bytes) -> None:
    assert view([(key, value)]) == ({}, 1)


def test_a_ledger_is_known_by_its_name() -> None:
    assert ledger_topic("east") == "east.gaps.internal"
    assert is_ledger("east.gaps.internal")
    assert not is_ledger("gaps.internal")
    assert not is_ledger("east.checkpoints.internal")
