"""Rules about the ends of transactions: each is decided once and by its producer, in order, with its offsets."""

from __future__ import annotations

from collections.abc import Iterator

from tests.checker.anomaly import Anomaly
from tests.checker.derived import Derived
from tests.checker.history import Process
from tests.checker.transactions import Answer, Candidates, Transaction


def decided_twice(derived: Derived) -> Iterator[Anomaly]:
    """No transaction is answered as committed and as aborted."""
    for transaction in derived.transactions.all.values():
        answers = {
            name
            for name, attempts in (("commit", transaction.commits), ("abort", transaction.aborts))
            if any(one.outcome == "ok" for one in attempts)
        }
        if len(answers) > 1:
            yield Anomaly(
                "decided-twice",
                f"{transaction}: both its commit and its abort were answered",
                transaction.events,
            )


def fenced_commits(derived: Derived) -> Iterator[Anomaly]:
    """A commit that is first attempted after a newer producer has the transactional id does not succeed."""
    for transaction in derived.transactions.all.values():
        attempted, fence = transaction.attempted, transaction.fence
        if attempted is None or fence is None or attempted.i < fence.i:
            continue
        if transaction.is_committed:
            proof = transaction.seen or transaction.applied
            yield Anomaly(
                "fenced-commit",
                f"{transaction} is committed; its producer {transaction.process} was fenced before its"
                f" first attempt to commit, by {fence.f} of {fence.p}",
                (fence.i, *transaction.events, *(proof.events if proof else ())),
            )


def order_of_transactions(derived: Derived) -> Iterator[Anomaly]:
    """The records of a producer are in a key in the order in which it sent them.

    So are those of the committed transactions of one transactional id: a producer begins after those before it ended.
    """
    of_process: dict[tuple[Process, str], tuple[int, Transaction]] = {}
    of_id: dict[tuple[str, str], tuple[int, Transaction]] = {}
    for transaction in derived.transactions.all.values():
        for record in transaction.records:
            offsets = derived.transactions.logs[record.key].offsets_of.get(record.value)
            if offsets is None:
                continue
            offset = min(offsets)
            before = [of_process.get((transaction.process, record.key))]
            of_process[transaction.process, record.key] = (offset, transaction)
            if transaction.is_committed:
                before.append(of_id.get((transaction.id, record.key)))
                of_id[transaction.id, record.key] = (offset, transaction)
            behind = next((one for one in before if one is not None and one[0] > offset), None)
            if behind is not None:
                yield Anomaly(
                    "transaction-order",
                    f"value {record.value} of {transaction} is at offset {offset} of {record.key}, not behind"
                    f" offset {behind[0]} of {behind[1]}, which was sent before",
                    (*behind[1].events, *record.write.events),
                    key=record.key,
                )


def applied_offsets(derived: Derived) -> Iterator[Anomaly]:
    """aborted-offsets: the offsets of a group are those of transactions that can be committed, or of other commits.

    Offset 0 stands for none.
    """
    candidates = Candidates(derived.transactions, derived.operations)
    sent = {
        (group, key, offset)
        for (group, key), offsets in derived.transactions.by_group().items()
        for offset, _ in offsets
    }
    for operation in derived.operations:
        if operation.f != "committed" or operation.outcome != "ok" or operation.ended is None:
            continue
        group = operation.v["group"]
        for key, offset in operation.v["offsets"].items():
            if (group, key) not in candidates.keys or offset == 0:
                continue
            if not candidates.of(group, key, offset, operation.ended.i):
                is_sent = (group, key, offset) in sent
                yield Anomaly(
                    "aborted-offsets" if is_sent else "phantom-offset",
                    f"{group} is at {offset} of {key}, "
                    + ("which only aborted transactions or later ones set" if is_sent else "which no client set"),
                    operation.events,
                    key=key,
                )  # fmt: skip


def figures(derived: Derived) -> dict[str, int]:
    """Count transactions and their records by their ends."""
    found = derived.transactions
    counts = {f"{answer.value} transactions": 0 for answer in Answer}
    for transaction in found.all.values():
        counts[f"{transaction.answer.value} transactions"] += 1
    unknown = [one for one in found.all.values() if one.answer is Answer.UNKNOWN]
    return {
        "transactions": len(found.all),
        **counts,
        "unknown, found committed": sum(one.is_committed for one in unknown),
        "transactional records": sum(len(one.records) for one in found.all.values()),
    }
