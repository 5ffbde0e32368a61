"""Every rule of the checker on the smallest history that breaks it, and on one like it that breaks none."""

from __future__ import annotations

import pytest

from tests.checker.history_builder import Builder
from tests.checker.verdict import Judgement, check

LIBRDKAFKA = {"retries": True, "idempotent": True}
NAIVE = {"retries": True, "idempotent": False}


def txn(builder: Builder, p: int, *micro: list[object], outcome: str = "ok") -> Builder:
    return builder.done(p, "txn", list(micro), outcome)


def send(value: int, offset: int | None = None, key: str = "t-0") -> list[object]:
    return ["send", key, [offset, value]]


def poll(*records: tuple[int, int], key: str = "t-0") -> list[object]:
    return ["poll", {key: [list(record) for record in records]}]


CLEAN = {
    "acknowledged and read": Builder().send(1, 0).send(2, 1).final((0, 1), (1, 2)),
    "a gap between offsets": Builder().send(1, 0).send(2, 5).poll((0, 1), (5, 2)).final((0, 1), (5, 2)),
    "refused and not there": Builder().send(1, 0).send(2, None, "fail").final((0, 1)),
    "unknown and there": Builder().send(1, 0).send(2, None, "info").final((0, 1), (1, 2)),
    "unknown and not there": Builder().send(1, 0).send(2, None, "open").final((0, 1)),
    "acks=1 and gone": Builder().send(1, 0).send(2, 1, acks="1").send(3, 1).final((0, 1), (1, 3)),
    "sent twice by a client that may": Builder().send(1, 1, **NAIVE).final((0, 1), (1, 1)),
    "reordered by a client that may": Builder().send(1, 1, **NAIVE).send(2, 0, **NAIVE).final((0, 2), (1, 1)),
    "each client from the beginning": (
        Builder().send(1, 0).send(2, 1).poll((0, 1), p=3).poll((0, 1), (1, 2), p=4).poll((1, 2), p=3)
        .final((0, 1), (1, 2))
    ),
    "back by a seek": (
        Builder().send(1, 0).send(2, 1).poll((0, 1), (1, 2)).done(9, "seek", {"t-0": 1}).poll((1, 2))
        .final((0, 1), (1, 2))
    ),
    "forward after giving the key up": (
        Builder().send(1, 0).send(2, 1).send(3, 2).poll((0, 1)).done(9, "assign", ["t-1"])
        .done(9, "assign", ["t-0"]).poll((2, 3)).final((0, 1), (1, 2), (2, 3))
    ),
    "anywhere after a rebalance": (
        Builder().send(1, 0).send(2, 1).send(3, 2).poll((0, 1)).poll((2, 3), rebalanced=["t-0"])
        .final((0, 1), (1, 2), (2, 3))
    ),
    "an aborted transaction may be read again": (
        txn(txn(Builder().send(1, 0), 7, poll((0, 1)), outcome="fail"), 7, poll((0, 1))).final((0, 1))
    ),
    "a transaction that is seen as a whole": (
        txn(Builder().send(3, 0), 7, send(1), send(2, None, "t-1"), outcome="info")
        .final((0, 3), (1, 1)).final((0, 2), key="t-1")
    ),
    "one transaction reads the other": (
        txn(txn(Builder(), 7, send(1, 0)), 8, poll((0, 1)), send(2, 0, "t-1")).final((0, 1)).final((0, 2), key="t-1")
    ),
    "a partition moves with the generation": (
        Builder().send(1, 0)
        .done("a", "assigned", {"group": "g", "generation": 1, "member": "a", "keys": ["t-0"]})
        .done("b", "assigned", {"group": "g", "generation": 2, "member": "b", "keys": ["t-0"]})
        .final((0, 1))
    ),
    "a commit found again": (
        Builder().send(1, 0).poll((0, 1)).done(9, "commit", {"group": "g", "offsets": {"t-0": 1}})
        .done(8, "committed", {"group": "g", "offsets": {"t-0": 1}}).final((0, 1))
    ),
    "a commit without an answer, not there": (
        Builder().send(1, 0).poll((0, 1)).done(9, "commit", {"group": "g", "offsets": {"t-0": 1}}, "info")
        .done(8, "committed", {"group": "g", "offsets": {"t-0": 0}}).final((0, 1))
    ),
    "a smaller commit later": (
        Builder().send(1, 0).send(2, 1).poll((0, 1), (1, 2))
        .done(9, "commit", {"group": "g", "offsets": {"t-0": 2}})
        .done(9, "commit", {"group": "g", "offsets": {"t-0": 1}}, "open")
        .done(8, "committed", {"group": "g", "offsets": {"t-0": 1}}).final((0, 1), (1, 2))
    ),
    "commits go on from what was found": (
        Builder().send(1, 0).send(2, 1).poll((0, 1), (1, 2), p=3)
        .done(3, "commit", {"group": "g", "offsets": {"t-0": 2}})
        .done(4, "committed", {"group": "g", "offsets": {"t-0": 2}})
        .done(4, "commit", {"group": "g", "offsets": {"t-0": 2}})
        .final((0, 1), (1, 2))
    ),
}  # fmt: skip

BROKEN = {
    "two values at one offset, by two answers": (
        {"inconsistent-offsets", "lost-write", "unseen"}, Builder().send(1, 0).send(2, 0, p=1).final((0, 1))
    ),
    "two readers see different values": (
        {"inconsistent-offsets", "vanished"},
        Builder().send(1, None, "info").send(2, None, "info", p=1).poll((0, 1)).final((0, 2)),
    ),
    "read past what was acknowledged": (
        {"lost-write", "unseen", "int-poll-skip"}, Builder().send(1, 0).send(2, 1).send(3, 2).final((0, 1), (2, 3))
    ),
    "gone from the end": ({"unseen"}, Builder().send(1, 0).send(2, 1).final((0, 1))),
    "read once, then gone from the end": (
        {"vanished"}, Builder().send(1, 0).send(2, None, "info").poll((0, 1), (1, 2)).final((0, 1))
    ),
    "twice in the log, though idempotent": (
        {"duplicate"}, Builder().send(1, 1, **LIBRDKAFKA).final((0, 1), (1, 1))
    ),
    "twice in the log, never sent twice": ({"duplicate"}, Builder().send(1, None, "info").final((0, 1), (1, 1))),
    "refused and there": ({"G1a"}, Builder().send(1, 0).send(2, None, "fail", err="19").final((0, 1), (1, 2))),
    "no client wrote it": ({"phantom"}, Builder().send(1, 0).final((0, 1), (1, 7))),
    "left out within a poll": (
        {"int-poll-skip"},
        Builder().send(1, 0).send(2, 1).send(3, 2).poll((0, 1), (2, 3)).final((0, 1), (1, 2), (2, 3)),
    ),
    "back within a poll": (
        {"int-nonmonotonic-poll"},
        Builder().send(1, 0).send(2, 1).poll((0, 1), (1, 2), (1, 2)).final((0, 1), (1, 2)),
    ),
    "left out between polls": (
        {"poll-skip"},
        Builder().send(1, 0).send(2, 1).send(3, 2).poll((0, 1)).poll((2, 3)).final((0, 1), (1, 2), (2, 3)),
    ),
    "back between polls": (
        {"nonmonotonic-poll"},
        Builder().send(1, 0).send(2, 1).poll((0, 1), (1, 2)).poll((0, 1)).final((0, 1), (1, 2)),
    ),
    "not where it was sought": (
        {"poll-skip"},
        Builder().send(1, 0).send(2, 1).done(9, "seek", {"t-0": 0}).poll((1, 2)).final((0, 1), (1, 2)),
    ),
    "a later send lies before": (
        {"nonmonotonic-send"}, Builder().send(1, 1, **LIBRDKAFKA).send(2, 0, **LIBRDKAFKA).final((0, 2), (1, 1))
    ),
    "a later send of one operation lies before": (
        {"int-nonmonotonic-send"},
        Builder().done(0, "send", [send(1, 1), send(2, 0)]).final((0, 2), (1, 1)),
    ),
    "reordered by a client that is marked as ordered": (
        {"nonmonotonic-send"},
        Builder().send(1, 1, ordered=True, **NAIVE).send(2, 0, ordered=True, **NAIVE).final((0, 2), (1, 1)),
    ),
    "a transaction reads itself": (
        {"precommitted-read"}, txn(Builder(), 7, send(1, 0), poll((0, 1))).final((0, 1))
    ),
    "half a transaction": (
        {"torn-txn", "unseen", "poll-skip"},
        txn(Builder(), 7, send(1, 0), send(2, 0, "t-1")).send(3, 1)
        .final((1, 3)).final((0, 2), key="t-1"),
    ),
    "half a transaction of unknown outcome": (
        {"torn-txn"},
        txn(Builder().send(3, 0), 7, send(1), send(2, None, "t-1"), outcome="info")
        .final((0, 3)).final((0, 2), key="t-1"),
    ),
    "two transactions read each other": (
        {"G1c"},
        txn(txn(Builder(), 7, send(1, 0), poll((0, 2), key="t-1")), 8, send(2, 0, "t-1"), poll((0, 1)))
        .final((0, 1)).final((0, 2), key="t-1"),
    ),
    "two owners": (
        {"group-owner"},
        Builder().send(1, 0)
        .done("a", "assigned", {"group": "g", "generation": 1, "member": "a", "keys": ["t-0"]})
        .done("b", "assigned", {"group": "g", "generation": 1, "member": "b", "keys": ["t-0"]})
        .final((0, 1)),
    ),
    "a commit is gone": (
        {"commit-regress"},
        Builder().send(1, 0).poll((0, 1)).done(9, "commit", {"group": "g", "offsets": {"t-0": 1}})
        .done(8, "committed", {"group": "g", "offsets": {"t-0": 0}}).final((0, 1)),
    ),
    "a commit beyond what was polled": (
        {"commit-ahead"},
        Builder().send(1, 0).send(2, 1).poll((0, 1))
        .done(9, "commit", {"group": "g", "offsets": {"t-0": 2}}).final((0, 1), (1, 2)),
    ),
    "acknowledged by a deposed leader": (
        {"unseen", "stale-ack"},
        Builder().send(1, 0, broker=1).done("zk", "election", {"t-0": [2, 5]}).send(2, 1, broker=1)
        .final((0, 1)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CLEAN)
def test_a_history_that_keeps_the_guarantees_is_clean(name: str) -> None:
    verdict = check(CLEAN[name].events)
    assert verdict.names() == set()
    assert verdict.judgement is Judgement.CLEAN


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_guarantee_is_named(name: str) -> None:
    expected, builder = BROKEN[name]
    verdict = check(builder.events)
    assert verdict.names() == expected
    assert verdict.judgement is Judgement.BROKEN


def test_what_a_client_may_do_to_itself_is_reported_only() -> None:
    twice = check(CLEAN["sent twice by a client that may"].events)
    assert "duplicate" in twice.names(bad=False)
    gone = check(CLEAN["acks=1 and gone"].events)
    assert "lost-acks-1" in gone.names(bad=False)


def test_without_final_polls_nothing_is_known() -> None:
    verdict = check(Builder().send(1, 0).poll((0, 1)).events)
    assert verdict.judgement is Judgement.UNKNOWN
    assert verdict.names(bad=False) == {"unjudged"}


def test_a_history_without_an_acknowledgement_proves_nothing() -> None:
    assert (
        check(Builder().send(1, None, "info").final((0, 1)).events).judgement is Judgement.UNKNOWN
    )


def test_the_evidence_is_the_events_that_contradict_each_other() -> None:
    builder = Builder().send(1, 0).send(2, None, "fail").send(3, 1).final((0, 1), (1, 2), (2, 3))
    (found,) = (one for one in check(builder.events).anomalies if one.name == "G1a")
    refused, read = (builder.events[i] for i in found.events[1:])
    assert (refused.f, refused.type) == ("send", "fail")
    assert read.f == "poll"


def test_lag_is_reported_in_seconds() -> None:
    builder = Builder().send(1, 0).send(2, 1)
    for _ in range(50):
        builder.event(5, "info", "nemesis")
    verdict = check(builder.poll((0, 1)).final((0, 1), (1, 2)).events)
    (lag,) = (one for one in verdict.anomalies if one.name == "realtime-lag")
    assert "0.1 s behind" in lag.text
    assert not lag.bad


def test_the_number_of_known_owners_is_reported() -> None:
    builder = Builder().send(1, 0)
    for generation, member, keys in ((1, "a", ["t-0", "t-1"]), (2, "a", ["t-0"]), (2, "b", [])):
        what = {"group": "g", "generation": generation, "member": member, "keys": keys}
        builder.done(member, "assigned", what).done(member, "assigned", what)
    assert check(builder.events).figures["owners known"] == 3
