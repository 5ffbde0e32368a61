"""Every rule about transactions on the smallest history that breaks it, and on the one next to it that does not.

Each pair is a name and two histories: the first one is right, the second one breaks the rules that are named.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.checker.history import HistoryError
from tests.checker.history_builder import Builder
from tests.checker.values import duplicates, inconsistent_offsets
from tests.checker.verdict import RULES, Judgement, check

COMMITTED = {"isolation": "read_committed"}


def build(
    *values: int, txn: str = "one", p: int = 0, begin: int = 0, on: Builder | None = None
) -> Builder:
    """Begin a transaction and send values to t-0, at the offsets from *begin* on."""
    made = (Builder().init(p=p) if on is None else on).begin(txn, p=p)
    for number, value in enumerate(values):
        made.send(value, begin + number, p=p, txn=txn)
    return made


def read(made: Builder, *records: tuple[int, int]) -> Builder:
    """Read t-0 to its end with read_committed."""
    return made.final(*records, isolation="read_committed")


def two(first: str = "ok") -> Builder:
    """Two transactions of one producer: 1 and 2 at 0 and 1, 3 at 3, behind the marker. The first may be open."""
    return build(3, txn="two", begin=3, on=build(1, 2).commit("one", first)).commit("two")


def across(outcome: str = "ok") -> Builder:
    """One transaction in two keys, with an offset of a group."""
    return (
        build(1).send(2, 0, key="t-1", txn="one").offsets("one", {"in-0": 7}).commit("one", outcome)
    )


def asked(made: Builder, offset: int) -> Builder:
    """Ask for the offset of the group."""
    return made.done(8, "committed", {"group": "g", "offsets": {"in-0": offset}})


def replaced() -> Builder:
    """A transaction is open while a second producer gets its transactional id."""
    return build(1).init(p=1)


def with_offset(
    made: Builder, txn: str, offset: int, outcome: str = "ok", *, p: int = 0
) -> Builder:
    """Make a transaction without records, with an offset of the group."""
    return made.begin(txn, p=p).offsets(txn, {"in-0": offset}, p=p).commit(txn, outcome, p=p)


def zombie(txn: str, offset: int) -> Builder:
    """A producer sends an offset, then a newer one with its transactional id commits offset 7."""
    made = build(1).commit("one").begin(txn).offsets(txn, {"in-0": offset})
    return with_offset(made.init(p=1), "three", 7, p=1)


def three(*, last: int) -> Builder:
    """Offset 5, perhaps 3, and 9 of a newer producer; then the group is asked."""
    made = with_offset(with_offset(build(1).commit("one"), "two", 5), "three", 3, "open")
    return asked(read(with_offset(made.init(p=1), "four", 9, p=1), (0, 1)), last)


def overlapping(first: Callable[..., Builder], second: Callable[..., Builder]) -> Builder:
    """Do both, a commit and a third producer, while a second producer waits for its transactional id."""
    made = build(1)
    waiting = made.event(1, "invoke", "init_transactions", {"id": "x"})
    for one in (first, second):
        one(made, p=2) if one is Builder.init else one(made, "one")
    made.event(1, "ok", "init_transactions", {"id": "x"}, op=waiting.i)
    return made


PAIRS: dict[str, tuple[Builder, set[str], Builder]] = {
    "a committed record is read by each reader that reads past it": (
        read(two().view((0, 1), (1, 2), to=3), (0, 1), (1, 2), (3, 3)),
        {"torn-transaction"},
        read(two().view((0, 1), to=3), (0, 1), (1, 2), (3, 3)),
    ),
    "a committed record is read at the end": (
        read(two(), (0, 1), (1, 2), (3, 3)),
        {"lost-transaction"},
        read(two(), (0, 1), (1, 2)),
    ),
    "a committed record without an acknowledgement is read at the end": (
        read(build(1).send(2, None, "open", txn="one").commit("one"), (0, 1), (1, 2)),
        {"torn-transaction"},
        read(build(1).send(2, None, "open", txn="one").commit("one"), (0, 1)),
    ),
    "a reader that stops below a record need not see it": (
        read(two().view((0, 1), to=1), (0, 1), (1, 2), (3, 3)),
        {"torn-transaction"},
        read(two().view((0, 1), to=2), (0, 1), (1, 2), (3, 3)),
    ),
    "a record is there once": (
        read(build(1).commit("one"), (0, 1)),
        {"duplicate"},
        read(build(1).commit("one"), (0, 1), (1, 1)),
    ),
    "an offset has one record": (
        read(two().view((0, 1), to=1), (0, 1), (1, 2), (3, 3)),
        {"inconsistent-offsets", "duplicate"},
        read(two().view((0, 2), to=1), (0, 1), (1, 2), (3, 3)),
    ),
    "an aborted record is not read": (
        read(build(2, txn="two", begin=2, on=build(1).abort("one")).commit("two"), (2, 2)),
        {"aborted-read"},
        read(build(2, txn="two", begin=2, on=build(1).abort("one")).commit("two"), (0, 1), (2, 2)),
    ),
    "without an attempt to commit nothing is read": (
        read(build(2, txn="two", begin=2, on=build(1)).commit("two"), (2, 2)),
        {"aborted-read"},
        read(build(2, txn="two", begin=2, on=build(1)).commit("two"), (0, 1), (2, 2)),
    ),
    "an attempt that certainly failed commits nothing": (
        read(two("fail"), (3, 3)),
        {"aborted-read"},
        read(two("fail"), (0, 1), (1, 2), (3, 3)),
    ),
    "an abort that was answered after an attempt to commit aborts": (
        read(build(1).commit("one", "info").abort("one")),
        {"aborted-read"},
        read(build(1).commit("one", "info").abort("one"), (0, 1)),
    ),
    "a commit that is attempted again may have succeeded before": (
        read(build(1).commit("one", "info").view((0, 1), to=1).commit("one"), (0, 1)),
        {"early-read"},
        read(build(1).view((0, 1), to=1).commit("one", "info").commit("one"), (0, 1)),
    ),
    "a commit that is attempted again may have succeeded before its producer was replaced": (
        read(build(1).commit("one", "info").init(p=1).commit("one"), (0, 1)),
        {"fenced-commit"},
        read(build(1).init(p=1).commit("one", "info").commit("one"), (0, 1)),
    ),
    "of an unknown outcome: nothing": (
        read(two("info"), (3, 3)),
        {"torn-transaction"},
        read(two("info"), (1, 2), (3, 3)),
    ),
    "of an unknown outcome: everything": (
        read(two("open"), (0, 1), (1, 2), (3, 3)),
        {"torn-transaction"},
        read(two("open"), (0, 1), (3, 3)),
    ),
    "of an unknown outcome: the same in all views": (
        read(two("info").view(to=0), (0, 1), (1, 2), (3, 3)),
        {"torn-transaction"},
        read(two("info").view(to=1), (0, 1), (1, 2), (3, 3)),
    ),
    "a transaction is whole over its keys": (
        read(across("info"), (0, 1)).final((0, 2), key="t-1"),
        {"torn-transaction"},
        read(across("info"), (0, 1)).final(key="t-1"),
    ),
    "its records are there, so are its offsets": (
        asked(read(across("info"), (0, 1)).final((0, 2), key="t-1"), 7),
        {"commit-regress"},
        asked(read(across("info"), (0, 1)).final((0, 2), key="t-1"), 0),
    ),
    "its offsets are there, so are its records": (
        asked(read(across("info"), (0, 1)).final((0, 2), key="t-1"), 7),
        {"torn-transaction"},
        read(asked(across("info"), 7)).final(key="t-1"),
    ),
    "the offsets of a committed transaction stay": (
        asked(read(across(), (0, 1)).final((0, 2), key="t-1"), 7),
        {"commit-regress"},
        asked(read(across(), (0, 1)).final((0, 2), key="t-1"), 0),
    ),
    "the offsets of an aborted transaction are not committed": (
        asked(read(build(2, txn="two", begin=2, on=build(1).offsets("one", {"in-0": 7}).abort("one"))
                   .offsets("two", {"in-0": 7}).commit("two"), (2, 2)), 7),
        {"aborted-offsets"},
        asked(read(build(2, txn="two", begin=2, on=build(1).offsets("one", {"in-0": 7}).abort("one"))
                   .commit("two"), (2, 2)), 7),
    ),
    "offsets are committed after the attempt only": (
        asked(read(across(), (0, 1)).final((0, 2), key="t-1"), 7),
        {"aborted-offsets"},
        read(asked(build(1).offsets("one", {"in-0": 7}), 7).commit("one"), (0, 1)),
    ),
    "offsets are those that a client set": (
        asked(read(across(), (0, 1)).final((0, 2), key="t-1"), 7),
        {"phantom-offset"},
        asked(read(across(), (0, 1)).final((0, 2), key="t-1"), 8),
    ),
    "a smaller offset without an answer may arrive until its producer is replaced": (
        asked(read(
            build(2, txn="two", begin=2, p=1, on=across("open").init(p=1, id="y"))
            .offsets("two", {"in-0": 9}, p=1).commit("two", p=1), (0, 1), (2, 2)), 7),
        {"commit-regress"},
        asked(read(
            build(2, txn="two", begin=2, p=1, on=across("open").init(p=1))
            .offsets("two", {"in-0": 9}, p=1).commit("two", p=1), (0, 1), (2, 2)), 7),
    ),
    "a smaller offset does not arrive after its producer was replaced": (
        three(last=9),
        {"commit-regress"},
        three(last=5),
    ),
    "a smaller offset that was committed while the larger one was under way may be the last": (
        asked(read(build(2, txn="two", begin=2, on=build(1).offsets("one", {"in-0": 4}).commit("one", "open"))
                   .offsets("two", {"in-0": 2}).commit("two"), (0, 1), (2, 2)), 2),
        {"commit-regress"},
        asked(read(build(2, txn="two", begin=2, on=build(1).offsets("one", {"in-0": 2}).commit("one"))
                   .offsets("two", {"in-0": 4}).commit("two", "open"), (0, 1), (2, 2)), 2),
    ),
    "offsets of which the commit failed do not arrive": (
        asked(read(with_offset(with_offset(build(1).commit("one"), "two", 3, "fail"), "three", 7), (0, 1)), 7),
        {"aborted-offsets", "commit-regress"},
        asked(read(with_offset(with_offset(build(1).commit("one"), "two", 3, "fail"), "three", 7), (0, 1)), 3),
    ),
    "offsets of a producer that was replaced do not arrive": (
        asked(read(zombie("two", 3).commit("two", "open"), (0, 1)), 7),
        {"fenced-commit", "commit-regress"},
        asked(read(zombie("two", 3).commit("two", "open"), (0, 1)), 3),
    ),
    "aborted records of an older producer may lie behind those of a newer one": (
        read(build(2, txn="two", p=1, on=build(1, begin=5).init(p=1)).commit("two", p=1), (0, 2)),
        {"transaction-order"},
        read(build(2, txn="two", p=1, on=build(1, begin=5).commit("one").init(p=1)).commit("two", p=1), (0, 2), (5, 1)),
    ),
    "records of a producer are in the order of its transactions": (
        read(two(), (0, 1), (1, 2), (3, 3)),
        {"transaction-order", "nonmonotonic-send"},
        read(build(3, txn="two", on=build(1, 2, begin=2).commit("one")).commit("two"), (0, 3), (2, 1), (3, 2)),
    ),
    "records of an aborted transaction are in order, too": (
        read(build(3, txn="two", begin=3, on=build(1, 2).abort("one")).commit("two"), (3, 3)),
        {"transaction-order", "nonmonotonic-send"},
        read(build(3, txn="two", on=build(1, 2, begin=2).abort("one")).commit("two"), (0, 3)),
    ),
    "records are in order where only readers know": (
        read(build().send(1, None, "open", txn="one").send(2, None, "open", txn="one").commit("one"), (0, 1), (1, 2)),
        {"transaction-order"},
        read(build().send(1, None, "open", txn="one").send(2, None, "open", txn="one").commit("one"), (0, 2), (1, 1)),
    ),
    "a newer producer of a transactional id writes behind the older one": (
        read(build(3, txn="two", begin=3, p=1, on=build(1, 2).commit("one").init(p=1)).commit("two", p=1),
             (0, 1), (1, 2), (3, 3)),
        {"transaction-order"},
        read(build(3, txn="two", p=1, on=build(1, 2, begin=2).commit("one").init(p=1)).commit("two", p=1),
             (0, 3), (2, 1), (3, 2)),
    ),
    "an open transaction is not read": (
        read(build(1).view(to=0).commit("one"), (0, 1)),
        {"early-read"},
        read(build(1).view((0, 1), to=1).commit("one"), (0, 1)),
    ),
    "a record is not read before it is sent": (
        read(build(1).commit("one").send(2, 2, p=3).view((0, 1), (2, 2), to=3), (0, 1), (2, 2)),
        {"early-read"},
        read(build(1).commit("one").view((0, 1), (2, 2), to=3).send(2, 2, p=3), (0, 1), (2, 2)),
    ),
    "an open transaction is not read past": (
        read(build(1).view(to=0).commit("one"), (0, 1)),
        {"torn-transaction"},
        read(build(1).view(to=1).commit("one"), (0, 1)),
    ),
    "records are below the last stable offset": (
        read(build(1).commit("one").poll((0, 1), p=5, isolation="read_committed", stable={"t-0": 1}), (0, 1)),
        {"beyond-stable"},
        read(build(1).commit("one").poll((0, 1), p=5, isolation="read_committed", stable={"t-0": 0}), (0, 1)),
    ),
    "positions are not above the last stable offset": (
        read(build(1).commit("one").done(5, "position", {"t-0": 2}, **COMMITTED, stable={"t-0": 2}), (0, 1)),
        {"beyond-stable"},
        read(build(1).commit("one").done(5, "position", {"t-0": 2}, **COMMITTED, stable={"t-0": 1}), (0, 1)),
    ),
    "with read_uncommitted positions may be above it": (
        read(build(1).commit("one").poll((0, 1), p=5, isolation="read_uncommitted", stable={"t-0": 0}), (0, 1)),
        {"beyond-stable"},
        read(build(1).commit("one").poll((0, 1), p=5, isolation="read_committed", stable={"t-0": 0}), (0, 1)),
    ),
    "a producer that was replaced does not commit": (
        read(replaced().commit("one", "fail")),
        {"fenced-commit"},
        read(replaced().commit("one"), (0, 1)),
    ),
    "a producer that was replaced may have committed before": (
        read(build(1).commit("one", "open").init(p=1), (0, 1)),
        {"fenced-commit"},
        read(build(1).init(p=1).commit("one", "open"), (0, 1)),
    ),
    "a producer that was replaced commits no offsets": (
        asked(read(build(1).offsets("one", {"in-0": 7}).commit("one", "open").init(p=1), (0, 1)), 7),
        {"fenced-commit"},
        asked(read(build(1).offsets("one", {"in-0": 7}).init(p=1).commit("one", "open")), 7),
    ),
    "a producer without an answer to its beginning replaces none for certain": (
        read(build(1).init(p=1, outcome="info").commit("one"), (0, 1)),
        {"fenced-commit"},
        read(build(1).init(p=1, outcome="ok").commit("one"), (0, 1)),
    ),
    "the first answer to a later producer counts": (
        read(overlapping(Builder.commit, Builder.init), (0, 1)),
        {"fenced-commit"},
        read(overlapping(Builder.init, Builder.commit), (0, 1)),
    ),
    "another transactional id replaces none": (
        read(build(1).init(p=1, id="y").commit("one"), (0, 1)),
        {"fenced-commit"},
        read(build(1).init(p=1, id="x").commit("one"), (0, 1)),
    ),
    "an older producer replaces none": (
        read(build(1, p=1, on=Builder().init(p=0).init(p=1)).commit("one", p=1), (0, 1)),
        {"fenced-commit"},
        read(build(1, p=0, on=Builder().init(p=0).init(p=1)).commit("one", p=0), (0, 1)),
    ),
    "a producer that was fenced commits nothing more": (
        read(build(1).commit("one").done(0, "fenced", {"id": "x"}), (0, 1)),
        {"fenced-commit"},
        read(build(1).done(0, "fenced", {"id": "x"}).commit("one"), (0, 1)),
    ),
    "a transaction ends once": (
        read(build(1).commit("one", "info").abort("one")),
        {"decided-twice"},
        read(build(1).commit("one").abort("one"), (0, 1)),
    ),
    "read_uncommitted sees aborted records": (
        read(build(1).abort("one").view((0, 1), to=1, isolation="read_uncommitted")),
        {"read-skip"},
        read(build(1).abort("one").view(to=1, isolation="read_uncommitted")),
    ),
    "read_uncommitted sees what others saw": (
        read(build().send(1, None, "open", txn="one").abort("one")
             .view((0, 1), to=1, isolation="read_uncommitted").view((0, 1), to=1, p=6, isolation="read_uncommitted")),
        {"read-skip"},
        read(build().send(1, None, "open", txn="one").abort("one")
             .view((0, 1), to=1, isolation="read_uncommitted").view(to=1, p=6, isolation="read_uncommitted")),
    ),
    "read_uncommitted sees everything at the end": (
        read(build(1).abort("one").final((0, 1), p=98, isolation="read_uncommitted")),
        {"unseen"},
        read(build(1).abort("one").final(p=98, isolation="read_uncommitted")),
    ),
    "in the order of offsets": (
        read(two().view((0, 1), (1, 2), to=3), (0, 1), (1, 2), (3, 3)),
        {"nonmonotonic-poll"},
        read(two().view((0, 1), (1, 2), (0, 1), (1, 2), to=3), (0, 1), (1, 2), (3, 3)),
    ),
    "again after a seek": (
        read(two().view((0, 1), (1, 2), to=3).view((0, 1), to=1), (0, 1), (1, 2), (3, 3)),
        {"nonmonotonic-poll"},
        read(two().view((0, 1), (1, 2), to=3).poll((0, 1), p=5), (0, 1), (1, 2), (3, 3)),
    ),
    "further on after the key was given up": (
        read(two().view((0, 1), to=1).done(5, "assign", ["t-1"]).poll((3, 3), p=5), (0, 1), (1, 2), (3, 3)),
        {"torn-transaction"},
        read(two().view((0, 1), to=1).done(5, "assign", ["t-0"]).poll((3, 3), p=5), (0, 1), (1, 2), (3, 3)),
    ),
    "further on after a rebalance": (
        read(two().view((0, 1), to=1).poll((3, 3), p=5, rebalanced=["t-0"]), (0, 1), (1, 2), (3, 3)),
        {"torn-transaction"},
        read(two().view((0, 1), to=1).poll((3, 3), p=5, rebalanced=["t-1"]), (0, 1), (1, 2), (3, 3)),
    ),
    "records without a transaction are read with both levels": (
        read(build(1).commit("one").send(2, 2, p=3), (0, 1), (2, 2)),
        {"unseen"},
        read(build(1).commit("one").send(2, 2, p=3), (0, 1)),
    ),
    "records that failed are not read": (
        read(build(1).send(2, None, "fail", txn="one").commit("one"), (0, 1)),
        {"G1a"},
        read(build(1).send(2, None, "fail", txn="one").commit("one"), (0, 1), (1, 2)),
    ),
    "records that no client wrote are not read": (
        read(build(1).commit("one"), (0, 1)),
        {"phantom"},
        read(build(1).commit("one"), (0, 1), (1, 7)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_a_history_that_keeps_the_guarantees_is_clean(name: str) -> None:
    verdict = check(PAIRS[name][0].events)
    assert verdict.names() == set(), verdict.to_text()


@pytest.mark.parametrize("name", PAIRS)
def test_a_broken_guarantee_is_named(name: str) -> None:
    _, expected, made = PAIRS[name]
    verdict = check(made.events)
    assert verdict.names() == expected, verdict.to_text()
    assert verdict.judgement is Judgement.BROKEN


NEW_RULES = [
    inconsistent_offsets,
    duplicates,
    *(r for r in RULES if r.__module__.endswith((".visibility", ".decisions", ".groups"))),
]


@pytest.mark.parametrize("rule", NEW_RULES, ids=lambda one: one.__name__)
def test_without_a_rule_something_is_not_noticed(rule: object) -> None:
    if rule.__name__ in ("unjudged", "owners"):  # type: ignore[attr-defined]
        pytest.skip("judges no promise of transactions")
    others = [one for one in RULES if one is not rule]
    assert any(check(made.events, others).names() != names for _, names, made in PAIRS.values())


def test_what_was_not_read_to_the_end_is_not_judged() -> None:
    verdict = check(build(1).commit("one").view((0, 1), to=1).events)
    assert verdict.judgement is Judgement.UNKNOWN
    assert verdict.names(bad=False) == {"unjudged"}


def test_keys_without_transactions_have_the_other_rules() -> None:
    made = read(build(1).commit("one"), (0, 1)).send(5, 0, key="u-0", p=3).final(key="u-0", p=4)
    assert check(made.events).names() == {"unseen"}


def test_transactions_and_their_records_are_counted() -> None:
    made = build(4, txn="two", begin=5, on=build(1, 2).commit("one")).abort("two").begin("three")
    made = read(made.send(3, 7, txn="three").commit("three", "open"), (0, 1), (1, 2), (7, 3))
    figures = check(made.events).figures
    wanted = {
        "transactions": 3,
        "committed transactions": 1,
        "aborted transactions": 1,
        "unknown transactions": 1,
        "unknown, found committed": 1,
        "transactional records": 4,
        "acknowledged": 3,
    }
    assert {name: figures[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (Builder().send(1, 0, txn="one"), "was not begun"),
        (Builder().commit("one"), "was not begun"),
        (Builder().begin("one").begin("one"), "begins transaction one again"),
        (build(1).send(1, 1, txn="one"), "is written by"),
    ],
)
def test_what_is_no_history_of_transactions_is_refused(made: Builder, text: str) -> None:
    with pytest.raises(HistoryError, match=text):
        check(made.events)
