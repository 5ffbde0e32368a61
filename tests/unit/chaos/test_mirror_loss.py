"""The judge of a lost cluster: what it had alone is exported, and the RPO is its number."""

from __future__ import annotations

from tests.chaos.mirror_loss import ExportedRecord, rpo_problems
from tests.chaos.mirror_writers import Ledger, Place, Written

PLACE: Place = ("t", 0)
HERE, THERE = Written("east", b"w31-1"), Written("east", b"w31-2")
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
