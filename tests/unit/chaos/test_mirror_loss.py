"""The judges of promotions: what a lost cluster had alone is exported, and each RPO is the number of such records."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.mirror_loss import ExportedRecord, promotion_problems, rpo_problems
from tests.chaos.mirror_writers import Ledger, Place, Written

PLACE: Place = ("t", 0)
HERE, THERE = Written("east", b"w31-1"), Written("east", b"w31-2")
HERE_BEFORE = Written("east", b"w21-1")
EXPORT = [ExportedRecord(PLACE, 7, b"w31-1"), ExportedRecord(PLACE, 8, b"w32-9")]


def rules(rpo: int | None, *, alone: dict[int, Written], nowhere: list[Written]) -> list[str]:
    return [p.rule for p in rpo_problems(rpo, EXPORT, {PLACE: alone}, {PLACE: nowhere}, "w3")]


def test_every_record_of_the_lost_cluster_is_exported_and_counted() -> None:
    assert rules(2, alone={7: HERE}, nowhere=[]) == []
    assert rules(2, alone={7: HERE}, nowhere=[Written("east", b"w32-9")]) == []
    assert rules(1, alone={7: HERE}, nowhere=[]) == ["rpo"]
    assert rules(None, alone={7: HERE}, nowhere=[]) == ["rpo"]
    assert rules(2, alone={7: THERE}, nowhere=[]) == ["record-lost"]
    assert rules(2, alone={9: HERE}, nowhere=[]) == ["record-lost"]
    assert rules(2, alone={}, nowhere=[THERE]) == ["record-lost"]
    found = list(rpo_problems(2, EXPORT, {}, {}, "w31"))
    assert [(each.rule, each.where) for each in found] == [("rpo", "t-0@8")]


def promotion(rpo: int | None, *ends: int) -> dict[str, Any]:
    partitions = [{"topic": "t", "partition": n, "end": end} for n, end in enumerate(ends)]
    return {"rpo_records": rpo, "partitions": partitions}


@pytest.mark.parametrize(
    ("record", "judged"),
    [
        (promotion(0, 8), []),
        (promotion(0, 7), ["rpo_records 0, 1 acknowledged records are behind the cut"]),
        (promotion(1, 8), ["rpo_records 1, 0 acknowledged records are behind the cut"]),
        (promotion(1, 7), ["rpo_records 1, 1 acknowledged records are behind the cut"]),
        (promotion(None, 8), ["rpo_records null"]),
        (promotion(None, 7), ["rpo_records null"]),
        (promotion(0), ["t-0 is not in the record"]),
        (None, ["no command printed a record"]),
    ],
)
def test_a_promotion_is_clean_only_with_a_record_of_all_partitions_and_nothing_behind(
    record: dict[str, Any] | None, judged: list[str]
) -> None:
    """Without a number, or without a record, nothing was judged, and the run was clean."""
    written = {PLACE: {6: HERE, 7: THERE, 8: Written("west", b"w31-3"), 9: HERE_BEFORE}}
    found = list(promotion_problems(record, written, "east", "w3"))
    assert [each.rule for each in found] == ["rpo"] * len(judged)
    assert all(each.text.startswith(text) for each, text in zip(found, judged, strict=True))


def test_what_a_lost_cluster_acknowledges_behind_the_end_of_the_other_is_its_own() -> None:
    ledger = Ledger()
    for offset in (6, 7):
        ledger.acknowledged(PLACE, offset, HERE)
    ledger.lose("east", {PLACE: 7})
    ledger.acknowledged(PLACE, 8, THERE)  # an answer that was late
    ledger.acknowledged(PLACE, 7, Written("west", b"other"))
    assert ledger.alone == {PLACE: {7: HERE, 8: THERE}}
    assert ledger.written == {PLACE: {6: HERE, 7: Written("west", b"other")}}
    assert ledger.twice == []
    ledger.found()
    ledger.acknowledged(PLACE, 8, Written("east", b"again"))
    assert ledger.written[PLACE][8].value == b"again"
