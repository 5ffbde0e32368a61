"""The history of a bank: what clients note and readers see is judged by the checker, and half a line is left out."""

from __future__ import annotations

from tests.chaos.bank import Order, Posting, View, transfer
from tests.chaos.bank_history import Journal, history
from tests.checker.verdict import Judgement, Verdict, check

FIRST = transfer("0@0", Order(0, 1, 10), "one", 2)
SECOND = transfer("0@1", Order(0, 2, 10), "two", 2)
PLACES = {FIRST[0]: 0, FIRST[1]: 0, SECOND[0]: 2, SECOND[1]: 0}


class Bank:
    """A client and its lines. Both transactions go to partition 0, the first one to 1, the second one to 2."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.journal = Journal(
            "bank-0-1-0", "bank-0", lambda word, text: self.lines.append(f"1.000 {word} {text}")
        )
        self.journal.initializes()
        self.journal.initialized()

    def apply(self, postings: tuple[Posting, Posting], *, ends: str = "committed") -> None:
        """Make one transaction."""
        journal = self.journal
        journal.begins(postings[0].transaction)
        journal.sends(postings)
        for one in postings:
            journal.delivered(one, PLACES[one])
        journal.sends_offsets({0: int(postings[0].order[2:]) + 1})
        if ends == "aborted":
            journal.aborts()
            journal.aborted()
            return
        journal.commits()
        if ends == "committed":
            journal.committed()
        else:
            journal.failed(RuntimeError("no answer"), is_fenced=True)


def view(*postings: Posting, positions: tuple[int, ...] = (4, 2, 2)) -> View:
    """See postings, and the offset behind the second order."""
    made = View("kclient")
    for partition, position in enumerate(positions):
        made.polled(partition)
        found = {PLACES[one]: one for one in postings if one.partition == partition}
        made.postings[partition] = dict(sorted(found.items()))
        made.polled(partition)
        made.positions[partition] = position
    return made


def judge(bank: Bank, seen: View, everything: View, final: View | None = None) -> Verdict:
    events = history(bank.lines, [seen], [final or seen], everything)
    return check(events)


def test_transactions_that_are_seen_as_a_whole_are_right() -> None:
    bank = Bank()
    bank.apply(FIRST)
    bank.apply(SECOND, ends="unknown")
    everything = view(*FIRST, *SECOND)
    verdict = judge(bank, view(*FIRST, positions=(2, 2, 0)), everything, everything)
    assert verdict.judgement is Judgement.CLEAN, verdict.to_text()
    assert verdict.figures["transactions"] == 2
    assert verdict.figures["transactional records"] == 4


def test_half_a_transaction_is_found() -> None:
    bank = Bank()
    bank.apply(FIRST)
    bank.apply(SECOND, ends="unknown")
    verdict = judge(bank, view(*FIRST, SECOND[0]), view(*FIRST, *SECOND))
    assert verdict.names() == {"torn-transaction"}


def test_what_was_aborted_is_found() -> None:
    bank = Bank()
    bank.apply(FIRST)
    bank.apply(SECOND, ends="aborted")
    everything = view(*FIRST, *SECOND)
    assert judge(bank, view(*FIRST), everything).names() == set()
    assert judge(bank, everything, everything).names() == {"aborted-read"}


def test_the_offsets_of_the_group_are_judged() -> None:
    bank = Bank()
    bank.apply(FIRST)
    seen = view(*FIRST, positions=(1, 1, 0))
    seen.asked = (seen.polls[0][0][0], seen.polls[2][-1][0] + 1, {0: 1})
    assert judge(bank, seen, seen).names() == set()
    seen.asked = (*seen.asked[:2], {0: 2})
    assert judge(bank, seen, seen).names() == {"phantom-offset"}


def test_a_posting_that_no_client_noted_is_found() -> None:
    bank = Bank()
    bank.apply(FIRST)
    everything = view(*FIRST, *SECOND)
    assert judge(bank, everything, everything).names() == {"phantom"}


def test_half_a_line_of_a_killed_client_is_left_out() -> None:
    bank = Bank()
    bank.apply(FIRST)
    bank.lines[-1] = f"1.000 history [12,{bank.lines[-1]}"
    bank.lines.append('1.000 history [13,"bank-0-1')
    seen = view(*FIRST, positions=(1, 1, 0))
    verdict = judge(bank, seen, seen)
    assert verdict.judgement is Judgement.CLEAN
    assert verdict.figures["committed transactions"] == 1
