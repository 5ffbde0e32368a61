"""Rules about groups: one owner per partition and generation, commits that stay, commits no further than was polled."""

from __future__ import annotations

from collections.abc import Iterator

from tests.checker.anomaly import Anomaly
from tests.checker.derived import Derived
from tests.checker.history import Event, Operation, Process


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

    def begun(self, event: Event, offset: int) -> None:
        self.unknown[event.i] = offset
        if self.floor is not None and offset < self.floor[0]:
            self.floor = (offset, event)

    def ended(self, begun: Event, event: Event, offset: int) -> None:
        if event.type != "info":
            self.unknown.pop(begun.i, None)
        if event.type == "ok":
            least = min([offset, *self.unknown.values()])
            if self.floor is None or least > self.floor[0]:
                self.floor = (least, event)


class _Commitments:
    """Follows commits and questions for them through a history. Answers are not awaited beside commits."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Commits] = {}
        self._reached: dict[tuple[Process, str], int] = {}
        self._floors_when_asked: dict[int, dict[str, tuple[int, Event]]] = {}

    def _of(self, event: Event) -> Iterator[tuple[str, int, _Commits]]:
        for key, offset in event.v["offsets"].items():
            yield key, offset, self._known.setdefault((event.v["group"], key), _Commits())

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
        """Take note of what is promised when the question is put."""
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


def commits(derived: Derived) -> Iterator[Anomaly]:
    """commit-regress: what was acknowledged is found again. commit-ahead: no member commits what was not polled."""
    ending = {operation.ended.i: operation for operation in derived.operations if operation.ended}
    state = _Commitments()
    for event in derived.events:
        operation = ending.get(event.i)
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
