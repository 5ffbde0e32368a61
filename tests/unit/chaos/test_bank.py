"""The rules of the bank find what they are for: each damage to views that are right breaks one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.bank import Order, Posting, View, judge, transfer

ORDERS = {"0@0": Order(0, 1, 10), "0@1": Order(2, 3, 20), "1@0": Order(1, 2, 30)}
FIRST = [transfer(place, ORDERS[place], "t1", 4) for place in ("0@0", "0@1")]
SECOND = [transfer("1@0", ORDERS["1@0"], "t2", 2)]


def final() -> View:
    """Both transactions, the first one at the lower offsets, the markers behind the postings."""
    view = View("final", dict.fromkeys(range(4), 20))
    for start, transaction in ((0, FIRST), (10, SECOND)):
        for number, postings in enumerate(transaction):
            for one in postings:
                view.postings[one.partition][start + number] = one
    return view


def cut(*positions: int) -> View:
    """What a reader sees that reads each partition up to one of *positions*."""
    view = View("reader", dict(enumerate(positions)))
    for partition, held in final().postings.items():
        view.postings[partition] = {o: one for o, one in held.items() if o < positions[partition]}
    return view


@pytest.mark.parametrize("positions", [(0, 0, 0, 0), (20, 0, 5, 20), (5, 20, 20, 0), (20,) * 4])
def test_any_cut_of_the_final_postings_is_right(positions: tuple[int, ...]) -> None:
    assert judge(ORDERS, [cut(*positions), final()], final()) == []


def hide(view: View) -> None:
    del view.postings[1][0]


def show(view: View) -> None:
    view.postings[3][7] = Posting("0@0", 3, 1, "aborted", 2)


def exchange(view: View) -> None:
    view.postings[1][0] = view.postings[1][0]._replace(amount=1)


@pytest.mark.parametrize(
    ("damage", "rule"),
    [(hide, "hidden"), (show, "visible-and-gone"), (exchange, "another-record")],
)
def test_a_view_that_is_no_cut_is_named(damage: Callable[[View], None], rule: str) -> None:
    view = cut(20, 20, 20, 20)
    damage(view)
    assert [one.rule for one in judge(ORDERS, [view], final())] == [rule]


def lose_an_order(view: View) -> None:
    del view.postings[1][10]
    del view.postings[2][10]


def lose_half(view: View) -> None:
    del view.postings[1][10]


def apply_again(view: View) -> None:
    for one in SECOND[0]:
        view.postings[one.partition][15] = one._replace(transaction="t3")


def invent(view: View) -> None:
    for one in transfer("7@7", Order(0, 1, 5), "t4", 2):
        view.postings[one.partition][16] = one


def commit_half(view: View) -> None:
    """One order of a transaction of two is applied by another transaction."""
    for one in FIRST[1]:
        view.postings[one.partition][1] = one._replace(transaction="t5", size=2)


@pytest.mark.parametrize(
    ("damage", "rules"),
    [
        (lose_an_order, {"order-lost"}),
        (lose_half, {"half", "half-a-transaction"}),
        (apply_again, {"applied-twice"}),
        (invent, {"invented"}),
        (commit_half, {"half-a-transaction"}),
    ],
)
def test_final_postings_that_are_wrong_are_named(
    damage: Callable[[View], None], rules: set[str]
) -> None:
    view = final()
    damage(view)
    assert {one.rule for one in judge(ORDERS, [], view)} == rules


def test_a_view_survives_its_line() -> None:
    assert View.from_json(final().to_json()) == final()
