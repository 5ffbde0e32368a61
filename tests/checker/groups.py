"""Rules about groups: one owner per partition and generation, commits that stay, commits no further than was polled."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial

from tests.checker.anomaly import Anomaly
from tests.checker.derived import Derived
from tests.checker.history import Event, Operation, Process
from tests.checker.transactions import Answer, Transaction


def owners(derived: Derived) -> Iterator[Anomaly]:
    """group-owner: within a generation a partition has one member."""
    owner: dict[tuple[str, int, str], tuple[str, Event]] = {}
    for event in derived.events:
        if event.f != "assigned" or event.type != "ok":
            continue
        group, generation, member = (event.v[name] for name in ("group", "generation", "member"))
        for key in event.v["keys"]:
            known = owner.setdefault((group, generation, key), (member, event))
            if known[0] != member:
                yield Anomaly(
                    "group-owner",
                    f"{key} has two owners in generation {generation} of {group}: {known[0]} and {member}",
                    (known[1].i, event.i),
                    key=key,
                )


class _Commits:
    """What is known of one group's commits of one key."""

    def __init__(self) -> None:
        self.floor: tuple[int, Event] | None = None
        """The greatest acknowledged commit that no smaller one can have replaced."""
        self.unknown: dict[int, int] = {}
        """Commits under way, or without an answer: beginning -> offset. They may still arrive."""
        self._arrived: list[tuple[int, int]] = []
        """Ends of commits and their offsets, both ascending: from each end on, the smallest offset."""

    def begun(self, event: Event, offset: int) -> None:
        self.unknown[event.i] = offset
        if self.floor is not None and offset < self.floor[0]:
            self.floor = (offset, event)

    def ended(self, begun: Event, event: Event, offset: int) -> None:
        if event.type == "ok":
            self.acknowledged(begun, event, offset)
        elif event.type == "fail":
            self.unknown.pop(begun.i, None)

    def acknowledged(self, begun: Event, event: Event, offset: int) -> None:
        """The commit arrived between two events; smaller ones that were under way meanwhile may have replaced it."""
        self.decided(begun, event)
        since = bisect_left(self._arrived, begun.i, key=lambda one: one[0])
        meanwhile = [smallest for _, smallest in self._arrived[since : since + 1]]
        least = min([offset, *self.unknown.values(), *meanwhile])
        if self.floor is None or least > self.floor[0]:
            self.floor = (least, event)

    def decided(self, begun: Event, event: Event) -> None:
        """The commit arrived before *event*, or never."""
        offset = self.unknown.pop(begun.i, None)
        if offset is not None:
            while self._arrived and self._arrived[-1][1] >= offset:
                self._arrived.pop()
            self._arrived.append((event.i, offset))


class _Commitments:
    """Follows commits and requests for them through a history. Answers are not awaited beside commits."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Commits] = {}
        self._reached: dict[tuple[Process, str], int] = {}
        self._floors_when_asked: dict[int, dict[str, tuple[int, Event]]] = {}

    def of(self, group: str, key: str) -> _Commits:
        """Return what is known of one key of one group."""
        return self._known.setdefault((group, key), _Commits())

    def _of(self, event: Event) -> Iterator[tuple[str, int, _Commits]]:
        for key, offset in event.v["offsets"].items():
            yield key, offset, self.of(event.v["group"], key)

    def polled(self, operation: Operation) -> None:
        """Take note of how far a process has polled."""
        for key, records in operation.polls():
            for offset, _ in records:
                self._reach(operation.process, key, offset + 1)

    def _reach(self, process: Process, key: str, position: int) -> None:
        self._reached[process, key] = max(position, self._reached.get((process, key), 0))

    def commit_begun(self, event: Event) -> Iterator[Anomaly]:
        """Judge how far the commit goes."""
        for key, offset, commits in self._of(event):
            commits.begun(event, offset)
            reached = self._reached.get((event.p, key), 0)
            if offset > reached:
                yield Anomaly(
                    "commit-ahead",
                    f"{event.p} commits {offset} of {key}, it has polled up to {reached}",
                    (event.i,),
                    key=key,
                )

    def commit_ended(self, operation: Operation, event: Event) -> None:
        """Take note of what is promised from now on."""
        for _, offset, commits in self._of(operation.begun):
            commits.ended(operation.begun, event, offset)

    def asked(self, event: Event) -> None:
        """Take note of what is promised when the request is put."""
        group = event.v["group"]
        self._floors_when_asked[event.i] = {
            key: commits.floor
            for (name, key), commits in self._known.items()
            if name == group and commits.floor is not None
        }

    def answered(self, operation: Operation, event: Event) -> Iterator[Anomaly]:
        """Judge what was found."""
        floors = self._floors_when_asked.pop(operation.begun.i, {})
        for key, offset, commits in self._of(event):
            self._reach(event.p, key, offset)
            promised = [one for one in (floors.get(key), commits.floor) if one is not None]
            if key in floors and offset < (least := min(promised, key=lambda one: one[0]))[0]:
                yield Anomaly(
                    "commit-regress",
                    f"{event.v['group']} is at {offset} of {key}, after {least[0]} was acknowledged",
                    (least[1].i, event.i),
                    key=key,
                )


class _TransactionalCommits:
    """The offsets of transactions as commits: under way from their sending until the transaction is decided.

    Offsets of aborted transactions are no commits. The offsets of a group and key are those of one producer at a time:
    the generation fences the others (KIP-447).
    """

    def __init__(self, derived: Derived, state: _Commitments) -> None:
        self._state = state
        self._at: dict[int, list[Callable[[Event], None]]] = defaultdict(list)
        for transaction in derived.transactions.all.values():
            attempted, fence = transaction.attempted, transaction.fence
            if attempted is None or transaction.answer is Answer.ABORTED:
                continue
            if fence is None or attempted.i < fence.i:
                self._add(transaction)

    def _add(self, transaction: Transaction) -> None:
        for group, key, offset, sent in transaction.offsets:
            commits = self._state.of(group, key)
            self._at[sent.i].append(partial(commits.begun, offset=offset))
            if transaction.is_committed:
                change = partial(commits.acknowledged, sent, offset=offset)
                self._at[transaction.known].append(change)
            elif transaction.fence is not None:
                self._at[transaction.fence.i].append(partial(commits.decided, sent))

    def follow(self, event: Event) -> None:
        """Take note of what *event* begins or decides."""
        for change in self._at.get(event.i, ()):
            change(event)


def commits(derived: Derived) -> Iterator[Anomaly]:
    """commit-regress: what was acknowledged is found again. commit-ahead: no member commits what was not polled."""
    ending = {operation.ended.i: operation for operation in derived.operations if operation.ended}
    state = _Commitments()
    transactional = _TransactionalCommits(derived, state)
    for event in derived.events:
        operation = ending.get(event.i)
        transactional.follow(event)
        match event.f, event.type:
            case "poll" | "txn", "ok" if operation is not None:
                state.polled(operation)
            case "commit", "invoke":
                yield from state.commit_begun(event)
            case "commit", _ if operation is not None:
                state.commit_ended(operation, event)
            case "committed", "invoke":
                state.asked(event)
            case "committed", "ok" if operation is not None:
                yield from state.answered(operation, event)
