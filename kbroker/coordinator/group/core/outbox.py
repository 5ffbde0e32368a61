"""The effects of one event: the snapshot first, then answers; some answers wait until the snapshot is persisted.

One event causes at most one `Persist` and one `SetTimer`. An answer given to `answer_durably` contains state of the
newest snapshot. It leaves at once if ZooKeeper has acknowledged that snapshot, else with the acknowledgement, in order.
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
    LogLine,
    Persist,
    SetTimer,
    SyncGroupResult,
    Token,
)
from kbroker.coordinator.group.core.members import MemberMetadata
from kbroker.coordinator.group.core.records import GroupSnapshot
from kclient.wire.error_codes import ErrorCode


class Outbox:
    """The effects of the event in progress, and the answers that wait for a snapshot."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self.dirty = False
        """Whether the event changed state of the snapshot."""
        self._sequence = 0
        self._acknowledged = 0
        self._held: deque[tuple[int, Answer, str]] = deque()
        self._durable: list[tuple[Answer, str]] = []
        self._effects: list[Effect] = []
        self._armed = inf
        self._timer_moved = False

    @property
    def next_sequence(self) -> int:
        """The sequence of the snapshot that this event will persist."""
        return self._sequence + 1

    def note(self, text: str) -> None:
        """Log one line about the group."""
        self._effects.append(LogLine(f"group {self._group_id!r} {text}"))

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

    def fail_join(self, member: MemberMetadata, error: ErrorCode) -> None:
        """Answer the waiting JoinGroup of *member*, if there is one, with *error*."""
        if member.awaiting_join is not None:
            self.answer(member.awaiting_join, _failed_join(error, member.member_id))
            member.awaiting_join = None

    def fail_sync(self, member: MemberMetadata, error: ErrorCode) -> None:
        """Answer the waiting SyncGroup of *member*, if there is one, with *error*."""
        if member.awaiting_sync is not None:
            self.answer(member.awaiting_sync, SyncGroupResult(error))
            member.awaiting_sync = None

    def arm(self, deadline: float) -> None:
        """Have a tick come at *deadline* or earlier."""
        if deadline < self._armed:
            self._armed = deadline
            self._timer_moved = True

    def disarm(self) -> None:
        """Clear the timer: it fired."""
        self._armed = inf

    def acknowledge(self, sequence: int) -> bool:
        """Record that ZooKeeper has the snapshots up to *sequence*; return whether that is new."""
        known = sequence <= self._acknowledged
        self._acknowledged = max(self._acknowledged, sequence)
        return not known

    def release(self) -> list[str]:
        """Release the answers of acknowledged snapshots; return the ids of their members."""
        answered = []
        while self._held and self._held[0][0] <= self._acknowledged:
            _, answer, member_id = self._held.popleft()
            self._effects.append(answer)
            answered.append(member_id)
        return answered

    def fail_held(
        self, error: ErrorCode, which: Callable[[Answer, str], bool] = lambda *_: True
    ) -> list[str]:
        """Answer the requests that wait for a snapshot with *error*; return the ids of their members.

        *which* chooses by the answer that waits and the id of its member; all without it.
        """
        failed = [each for each in self._held if which(each[1], each[2])]
        if not failed:
            return []
        self._held = deque(each for each in self._held if not which(each[1], each[2]))
        for _, answer, member_id in failed:
            value: JoinGroupResult | SyncGroupResult | LeaveGroupResult
            match answer.value:
                case JoinGroupResult():
                    value = _failed_join(error, member_id)
                case SyncGroupResult():
                    value = SyncGroupResult(error)
                case LeaveGroupResult():
                    value = replace(answer.value, error=error, members=())
            self._effects.append(Answer(answer.token, value))
        return [member_id for _, _, member_id in failed]

    def fail_held_of(self, member_id: str, error: ErrorCode) -> None:
        """Answer what waits for a snapshot on behalf of *member_id* with *error*."""
        self.fail_held(error, lambda _, holder: holder == member_id)

    def fail_held_of_generation(self, error: ErrorCode) -> list[str]:
        """Answer the JoinGroups and SyncGroups that wait for a snapshot with *error*: their generation is over.

        The next snapshot may take the place of theirs, and is of another generation.
        """
        return self.fail_held(
            error, lambda answer, _: not isinstance(answer.value, LeaveGroupResult)
        )

    def flush(self, snapshot: Callable[[], GroupSnapshot]) -> list[Effect]:
        """Return the effects of this event in the order of their execution."""
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


def _failed_join(error: ErrorCode, member_id: str) -> JoinGroupResult:
    # A member with an unknown id joins again without one.
    return JoinGroupResult(error, "" if error is ErrorCode.UNKNOWN_MEMBER_ID else member_id)
