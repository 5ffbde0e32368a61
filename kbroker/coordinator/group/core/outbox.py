"""Effects on their way out: the snapshot first, then answers; some only once it is persisted.

Out of one event come at most one `Persist` and one `SetTimer`, however many reasons there were.
An answer given as *durable* tells something that the newest snapshot holds: it leaves at once if
ZooKeeper has acknowledged that snapshot, else with the acknowledgement, in order.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from math import inf

from kbroker.coordinator.group.core.effects import (
    Answer,
    Effect,
    JoinGroupResult,
    LeaveGroupResult,
    Note,
    Persist,
    SetTimer,
    SyncGroupResult,
    Token,
)
from kbroker.coordinator.group.core.members import Member
from kbroker.coordinator.group.core.records import GroupSnapshot
from kclient.wire.error_codes import ErrorCode


class Outbox:
    """The effects of the event being handled, and the answers held for a snapshot."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self.dirty = False
        """Whether something changed that the next coordinator has to know."""
        self._sequence = 0
        self._acknowledged = 0
        self._held: deque[tuple[int, Answer, str]] = deque()
        self._durable: list[tuple[Answer, str]] = []
        self._effects: list[Effect] = []
        self._armed = inf
        self._timer_moved = False

    @property
    def next_sequence(self) -> int:
        """The sequence of the snapshot that the event being handled will persist."""
        return self._sequence + 1

    def note(self, text: str) -> None:
        """Tell the operator something of the group."""
        self._effects.append(Note(f"group {self._group_id!r} {text}"))

    def answer(
        self, token: Token, value: JoinGroupResult | SyncGroupResult | LeaveGroupResult
    ) -> None:
        """Answer now."""
        self._effects.append(Answer(token, value))

    def answer_durably(
        self,
        token: Token,
        value: JoinGroupResult | SyncGroupResult | LeaveGroupResult,
        member_id: str = "",
    ) -> None:
        """Answer *member_id* once the newest snapshot, this event's included, is in ZooKeeper."""
        self._durable.append((Answer(token, value), member_id))

    def drop_join(self, member: Member, error: ErrorCode) -> None:
        """Answer the JoinGroup that *member* waits in, if it does, with *error*."""
        if member.awaiting_join is not None:
            # Who is told that its id is unknown shall come back without one.
            told_id = "" if error is ErrorCode.UNKNOWN_MEMBER_ID else member.member_id
            self.answer(member.awaiting_join, JoinGroupResult(error, told_id))
            member.awaiting_join = None

    def drop_sync(self, member: Member, error: ErrorCode) -> None:
        """Answer the SyncGroup that *member* waits in, if it does, with *error*."""
        if member.awaiting_sync is not None:
            self.answer(member.awaiting_sync, SyncGroupResult(error))
            member.awaiting_sync = None

    def arm(self, deadline: float) -> None:
        """Make sure that a tick comes at *deadline* or before."""
        if deadline < self._armed:
            self._armed = deadline
            self._timer_moved = True

    def disarm(self) -> None:
        """Forget the timer, because it fired."""
        self._armed = inf

    def acknowledge(self, sequence: int) -> bool:
        """Note that the snapshots up to *sequence* are in ZooKeeper; False if that is no news."""
        known = sequence <= self._acknowledged
        self._acknowledged = max(self._acknowledged, sequence)
        return not known

    def release(self) -> list[str]:
        """Let the answers go whose snapshot is acknowledged; return the members they are for."""
        told = []
        while self._held and self._held[0][0] <= self._acknowledged:
            _, answer, member_id = self._held.popleft()
            self._effects.append(answer)
            told.append(member_id)
        return told

    def fail_held(self, error: ErrorCode) -> list[str]:
        """Answer everything that waits for a snapshot with *error*; return the members it is for."""
        for _, answer, member_id in self._held:
            failed: JoinGroupResult | SyncGroupResult | LeaveGroupResult
            match answer.value:
                case JoinGroupResult():
                    failed = JoinGroupResult(error, member_id)
                case SyncGroupResult():
                    failed = SyncGroupResult(error)
                case LeaveGroupResult():
                    failed = replace(answer.value, error=error, members=())
            self._effects.append(Answer(answer.token, failed))
        members = [member_id for _, _, member_id in self._held]
        self._held.clear()
        return members

    def flush(self, snapshot: Callable[[], GroupSnapshot]) -> list[Effect]:
        """Return the effects of this event in the order in which they are to be performed."""
        effects: list[Effect] = []
        if self.dirty:
            self.dirty = False
            self._sequence += 1
            effects.append(Persist(self._sequence, snapshot()))
        effects += self._effects
        self._effects = []
        for answer, member_id in self._durable:
            if self._sequence <= self._acknowledged:
                effects.append(answer)
            else:
                self._held.append((self._sequence, answer, member_id))
        self._durable.clear()
        if self._timer_moved:
            self._timer_moved = False
            effects.append(SetTimer(self._armed))
        return effects
