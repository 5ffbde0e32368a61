"""A consumer group in a test: performs the machine's effects and remembers what was answered."""

from dataclasses import replace
from typing import Any

from kbroker.coordinator.group.core.effects import (
    Answer,
    Effect,
    Join,
    JoinGroupResult,
    LeaveGroupResult,
    LogLine,
    MemberIdentity,
    Persist,
    SetTimer,
    Sync,
    SyncGroupResult,
    Token,
)
from kbroker.coordinator.group.core.group import Group
from kbroker.coordinator.group.core.limits import GroupLimits
from kbroker.coordinator.group.core.records import GroupSnapshot
from kclient.wire.error_codes import ErrorCode

LIMITS = GroupLimits(initial_rebalance_delay=3.0)
RANGE = (("range", b"topics"),)


def join_request(name: str, member_id: str = "", **changes: Any) -> Join:
    """Build what member *name* sends, with a fresh member id of its own."""
    request = Join(
        member_id=member_id,
        fresh_member_id=f"{name}-id",
        client_id=name,
        client_host="/127.0.0.1",
        session_timeout=10.0,
        rebalance_timeout=60.0,
        protocol_type="consumer",
        protocols=RANGE,
    )
    return replace(request, **changes)


class GroupHarness:
    """A `Group` with a clock, a ZooKeeper that acknowledges at once or on demand, and answers."""

    def __init__(self, limits: GroupLimits = LIMITS, *, auto_persist: bool = True) -> None:
        self.limits = limits
        self.group = Group("g", limits)
        self.now = 0.0
        self.auto_persist = auto_persist
        self.unacknowledged: list[Persist] = []
        self.durable: GroupSnapshot | None = None
        self.answers: dict[Token, JoinGroupResult | SyncGroupResult | LeaveGroupResult] = {}
        self.waiting: set[Token] = set()
        self.notes: list[str] = []
        self.timer: float | None = None
        self._tokens = 0

    # Requests: each returns its token.

    def join(self, name: str, member_id: str = "", **changes: Any) -> Token:
        """Send one JoinGroup."""
        token = self._token()
        self.perform(self.group.join(token, join_request(name, member_id, **changes), self.now))
        return token

    def enter(self, name: str, **changes: Any) -> Token:
        """Join as a new member does: ask for an id, then join with it."""
        first = self.answers[self.join(name, **changes)]
        assert isinstance(first, JoinGroupResult)
        assert first.error is ErrorCode.MEMBER_ID_REQUIRED
        return self.join(name, first.member_id, **changes)

    def sync(self, name: str, generation_id: int | None = None, **assignments: bytes) -> Token:
        """Send SyncGroup for ``name-id``; *assignments* by member name."""
        token = self._token()
        by_id = {f"{member}-id": data for member, data in assignments.items()}
        generation = self.group.generation_id if generation_id is None else generation_id
        self.perform(self.group.sync(token, Sync(f"{name}-id", generation, by_id), self.now))
        return token

    def leave(self, *identities: MemberIdentity) -> Token:
        """Send LeaveGroup."""
        token = self._token()
        self.perform(self.group.leave(token, identities, "", self.now))
        return token

    def heartbeat(self, name: str, generation_id: int | None = None) -> ErrorCode:
        """Send a heartbeat for ``name-id``."""
        generation = self.group.generation_id if generation_id is None else generation_id
        return self.group.heartbeat(f"{name}-id", None, generation, self.now)

    # The world.

    def advance(self, seconds: float, *heartbeats: str) -> None:
        """Let time pass and timers fire; *heartbeats* name members that beat every second."""
        end = self.now + seconds
        beat = self.now + 1.0 if heartbeats else end
        while True:
            due = min(self.timer if self.timer is not None else end, beat, end)
            self.now = max(due, self.now)
            for name in heartbeats if self.now >= beat else ():
                self.heartbeat(name)
            beat = beat if self.now < beat else self.now + 1.0
            if self.timer is not None and self.timer <= self.now:
                self.timer = None
                self.perform(self.group.tick(self.now))
            elif self.now >= end:
                return

    def acknowledge(self) -> None:
        """Let ZooKeeper acknowledge everything written so far."""
        while self.unacknowledged:
            persist = self.unacknowledged.pop(0)
            self.durable = persist.snapshot
            self.perform(self.group.persisted(persist.sequence, self.now))

    def take_over(self) -> "GroupHarness":
        """Return the group as the next coordinator loads it."""
        successor = GroupHarness(self.limits, auto_persist=self.auto_persist)
        successor.now = self.now
        if self.durable is not None:
            successor.durable = self.durable
            successor.perform(successor.group.restore(self.durable, successor.now))
        return successor

    def perform(self, effects: list[Effect]) -> None:
        """Do what the machine asks for."""
        for effect in effects:
            match effect:
                case Answer(token, value):
                    assert token in self.waiting, f"{token} answered twice"
                    self.waiting.remove(token)
                    self.answers[token] = value
                case Persist():
                    self.unacknowledged.append(effect)
                case SetTimer(at):
                    self.timer = at
                case LogLine(text):
                    self.notes.append(text)
        if self.auto_persist:
            self.acknowledge()

    def _token(self) -> Token:
        self._tokens += 1
        self.waiting.add(Token(self._tokens))
        return Token(self._tokens)

    # What was answered.

    def joined(self, token: Token) -> JoinGroupResult:
        """Return the answer to a JoinGroup."""
        answer = self.answers[token]
        assert isinstance(answer, JoinGroupResult)
        return answer

    def synced(self, token: Token) -> SyncGroupResult:
        """Return the answer to a SyncGroup."""
        answer = self.answers[token]
        assert isinstance(answer, SyncGroupResult)
        return answer

    def left(self, token: Token) -> list[ErrorCode]:
        """Return the error of every identity of a LeaveGroup."""
        answer = self.answers[token]
        assert isinstance(answer, LeaveGroupResult)
        return [error for _, error in answer.members]


def stable_group(*names: str, limits: GroupLimits = LIMITS) -> GroupHarness:
    """Return a Stable group of *names* in generation 1; the first one leads, and owns b"name"."""
    harness = GroupHarness(limits)
    tokens = [harness.enter(name) for name in names]
    harness.advance(6.0)
    assert all(harness.joined(token).error is ErrorCode.NONE for token in tokens)
    for name in reversed(names):
        harness.sync(name, None, **{member: member.encode() for member in names})
    return harness
