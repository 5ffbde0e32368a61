"""A group's rebalances: from a change among its members to an assignment that all of them know.

Theory of operation
===================
::

    begin ──► PreparingRebalance: known members are waited for, until all of them joined or the longest
              rebalance timeout among them is over. Who did not join is removed. In the first rebalance
              of an empty group more members are waited for, too (KIP-134).
          ──► CompletingRebalance: the next generation, which everybody who joined is told; members wait
              for the assignment of their leader, at most as long. Who did not ask for it is removed.
          ──► Stable: the assignment is in ZooKeeper, and told to whoever asks.

A member that comes, goes or wants something else begins it anew, from every state (`states.VALID_FROM`);
when nobody is left at its end the group is Empty, which is a generation, too.

The invariants are the group's (`group.py`); 1, 4 and 6 are kept here, and 3 by whatever goes to the outbox
as durable. What the next coordinator has to know of all this is the snapshot.

In: member_came, begin_or_finish, maybe_finish, remove, members_gone, replaced, ask_for_assignment, tick, persisted,
write_is_late, restore, unload
Out: through the outbox   Owner: its `Group`
"""

from math import inf

from kbroker.coordinator.group.core.effects import JoinGroupResult, SyncGroupResult, Token
from kbroker.coordinator.group.core.limits import GroupLimits
from kbroker.coordinator.group.core.members import Member, Roster, listed, select_protocol
from kbroker.coordinator.group.core.outbox import Outbox
from kbroker.coordinator.group.core.records import GroupSnapshot
from kbroker.coordinator.group.core.states import VALID_FROM, GroupState
from kclient.wire.error_codes import ErrorCode

_EMPTY = GroupState.EMPTY
_PREPARING = GroupState.PREPARING_REBALANCE
_COMPLETING = GroupState.COMPLETING_REBALANCE
_STABLE = GroupState.STABLE
_DEAD = GroupState.DEAD


class Rebalance:
    """State and generation of the group of *members*. Times are seconds."""

    def __init__(self, members: Roster, out: Outbox, limits: GroupLimits) -> None:
        self.state = _EMPTY
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.join_deadline = inf
        """Until when members are waited for that have not joined yet."""
        self.sync_deadline = inf
        """Until when members are waited for that have not asked for their assignment yet."""

        self._members = members
        self._out = out
        self._limits = limits
        self._pending_sync: set[str] = set()
        """Members of this generation that have not asked for their assignment yet."""
        self._initial_remaining: float | None = None
        """In the first rebalance of an empty group: how much longer it may be delayed."""
        self._new_member_added = False
        self._assigning: dict[str, bytes] | None = None
        """The leader's assignment by member id, on its way to ZooKeeper."""
        self._assigning_sequence = 0

    # --- Events -------------------------------------------------------------------------------

    def member_came(self, reason: str, now: float) -> None:
        """Handle somebody new, who waits in JoinGroup already."""
        if self._initial_remaining is not None:
            self._new_member_added = True
        self.begin_or_finish(reason, now)

    def begin_or_finish(self, reason: str, now: float) -> None:
        """Start a rebalance, or finish the one under way if everybody is there."""
        if self.state in VALID_FROM[_PREPARING]:
            self._begin(reason, now)
        else:
            self.maybe_finish(now)

    def maybe_finish(self, now: float) -> None:
        """Finish the rebalance under way, if there is one, when everybody has joined."""
        if self.state is not _PREPARING or not self._members.all_joined:
            return
        if self._initial_remaining is None or not len(self._members):
            self._finish(now)

    def remove(self, member: Member, error: ErrorCode) -> None:
        """Take *member* out; what it waits for is answered with *error*. `members_gone` comes next."""
        self._out.drop_join(member, error)
        self._out.drop_sync(member, error)
        self._members.remove(member)
        self._pending_sync.discard(member.member_id)
        if not member.is_new:
            self._out.dirty = True

    def members_gone(self, reason: str, now: float) -> None:
        """Members are gone: the others have to share, or need not be waited for any longer."""
        if self.state in (_STABLE, _COMPLETING):
            self._begin(reason, now)
        else:
            self._out.note(f"goes on without: {reason}")
            self.maybe_finish(now)

    def replaced(self, member: Member, new_id: str) -> None:
        """Handle that *member* goes on as *new_id*; whoever still uses the old id is fenced."""
        self._out.drop_join(member, ErrorCode.FENCED_INSTANCE_ID)
        self._out.drop_sync(member, ErrorCode.FENCED_INSTANCE_ID)
        if member.member_id in self._pending_sync:
            self._pending_sync.remove(member.member_id)
            self._pending_sync.add(new_id)
        self._members.rename(member, new_id)

    def ask_for_assignment(
        self, token: Token, member: Member, assignments: dict[str, bytes], now: float
    ) -> None:
        """Handle a SyncGroup of *member*; not for PreparingRebalance. *assignments* count if it leads."""
        self._pending_sync.discard(member.member_id)
        if self.state is _STABLE:
            self._tell_assignment(token, member)
            return
        self._out.drop_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)  # an older attempt of the same
        member.awaiting_sync = token
        member.session_deadline = inf
        if member.member_id == self._members.leader and self._assigning is None:
            self._take_assignment(assignments, now)

    def tick(self, now: float) -> None:
        """Handle what is over by *now*, and have the next tick come in time."""
        if self.join_deadline <= now:
            self._join_deadline_reached(now)
        if self.sync_deadline <= now:
            self._sync_deadline_reached(now)
        self._out.arm(min(self.join_deadline, self.sync_deadline))

    def persisted(self, sequence: int, now: float) -> None:
        """Handle ZooKeeper's acknowledgement of snapshot *sequence*, and thereby of all before."""
        self._out.acknowledge(sequence)
        if self._assigning is not None and sequence >= self._assigning_sequence:
            self._transition(_STABLE)
            assignment, self._assigning = self._assigning, None
            for member in self._members:
                member.assignment = assignment[member.member_id]
                if member.awaiting_sync is not None:
                    token, member.awaiting_sync = member.awaiting_sync, None
                    self._tell_assignment(token, member)
                    self._session_restarts(member, now)
        for member_id in self._out.release():
            told = self._members.get(member_id)
            if told is not None and told.awaiting_join is None and told.awaiting_sync is None:
                self._session_restarts(told, now)

    def write_is_late(self, now: float) -> None:
        """Handle that a snapshot is not acknowledged in time: its members are to ask again."""
        waiting = self._out.fail_held(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self._assigning is not None:
            for member in self._members:
                if member.awaiting_sync is not None:
                    self._out.drop_sync(member, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                    waiting.append(member.member_id)
        for member_id in waiting:
            told = self._members.get(member_id)
            if told is not None and told.awaiting_join is None and told.awaiting_sync is None:
                self._session_restarts(told, now)

    def is_due(self, now: float) -> bool:
        """Return whether a deadline of the rebalance is over."""
        return self.join_deadline <= now or self.sync_deadline <= now

    def awaits_assignment_of(self, member_id: str) -> bool:
        """Return whether a SyncGroup of *member_id* brings the assignment of this generation."""
        return (
            self.state is _COMPLETING
            and member_id == self._members.leader
            and self._assigning is None
        )

    def restore(self, snapshot: GroupSnapshot, now: float) -> None:
        """Take the group over from ZooKeeper, with a fresh session timeout for every member."""
        self.state = snapshot.state
        self.generation_id = snapshot.generation_id
        self.protocol_type = snapshot.protocol_type
        self.protocol_name = snapshot.protocol_name
        for saved in snapshot.members:
            member = Member.restored(saved)
            self._members.add(member)
            self._session_restarts(member, now)
        self._members.leader = snapshot.leader
        if self.state is _PREPARING:
            self._wait_for_joins(now + self._members.rebalance_timeout)
        elif self.state is _COMPLETING:
            self._wait_for_syncs(now)

    def unload(self, error: ErrorCode) -> None:
        """Let the group go: moved, deleted, or not to be persisted. All who wait get *error*."""
        self._out.fail_held(error)
        self._out.dirty = False
        for member in self._members:
            self._out.drop_join(member, error)
            self._out.drop_sync(member, error)
        self._members.clear()
        self._pending_sync.clear()
        self._assigning = None
        self.join_deadline = self.sync_deadline = inf
        self._transition(_DEAD)

    # --- What others hear ---------------------------------------------------------------------

    def tell_generation(
        self,
        token: Token,
        member: Member,
        *,
        skip_assignment: bool = False,
        leader: str | None = None,
    ) -> None:
        """Tell *member* the generation; the members too, if it leads. *leader*: whom to name."""
        named = leader if leader is not None else self._members.leader or ""
        leads = named == member.member_id
        joined = JoinGroupResult(
            error=ErrorCode.NONE,
            member_id=member.member_id,
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=named,
            members=self._members.joined_members(self.protocol_name) if leads else (),
            skip_assignment=skip_assignment,
        )
        self._out.answer_durably(token, joined, member.member_id)

    def _tell_assignment(self, token: Token, member: Member) -> None:
        synced = SyncGroupResult(
            ErrorCode.NONE, self.protocol_type, self.protocol_name, member.assignment
        )
        self._out.answer_durably(token, synced, member.member_id)

    def snapshot(self) -> GroupSnapshot:
        """Return what the next coordinator needs.

        Members who joined during this rebalance and were told nothing yet are left out.
        """
        assigned = self._assigning
        state = self.state if assigned is None else _STABLE
        members = tuple(
            m.snapshot(m.assignment if assigned is None else assigned[m.member_id])
            for m in self._members
            if not m.is_new
        )
        if not members:
            return GroupSnapshot(_EMPTY, self.generation_id, self.protocol_type)
        leader = self._members.leader
        if leader not in {member.member_id for member in members}:
            leader = members[0].member_id
        return GroupSnapshot(
            state, self.generation_id, self.protocol_type, self.protocol_name, leader, members
        )

    # --- Joining ------------------------------------------------------------------------------

    def _begin(self, reason: str, now: float) -> None:
        self._assigning = None
        for member in self._members:
            if member.awaiting_sync is not None:
                self._out.drop_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
                if member.awaiting_join is None:
                    self._session_restarts(member, now)
        self._pending_sync.clear()
        self.sync_deadline = inf
        initial = self.state is _EMPTY
        self._transition(_PREPARING)
        self._out.note(f"prepares to rebalance, generation {self.generation_id}: {reason}")
        delay = self._limits.initial_rebalance_delay
        if initial and delay > 0:
            self._initial_remaining = max(self._members.rebalance_timeout - delay, 0.0)
            self._new_member_added = False
            self._wait_for_joins(now + delay)
        elif self._members.all_joined:
            self._finish(now)
        else:
            self._wait_for_joins(now + self._members.rebalance_timeout)

    def _join_deadline_reached(self, now: float) -> None:
        remaining = self._initial_remaining
        if remaining and self._new_member_added:
            # More members keep coming: give them as long again, up to the rebalance timeout.
            self._new_member_added = False
            delay = min(self._limits.initial_rebalance_delay, remaining)
            self._initial_remaining = remaining - delay
            self._wait_for_joins(now + delay)
        else:
            self._finish(now)

    def _finish(self, now: float) -> None:
        """Begin the next generation with those who are here."""
        self.join_deadline = inf
        self._initial_remaining = None
        for member in list(self._members):
            # A static member keeps its place until its session ends.
            if member.awaiting_join is None and member.group_instance_id is None:
                self._out.note(f"removes {member.member_id}: it did not rejoin in time")
                self.remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if len(self._members) and not self._members.elect_leader():
            self._wait_for_joins(now + self._members.rebalance_timeout)
            return
        self.generation_id += 1
        self._out.dirty = True
        self.protocol_name = select_protocol(self._members)
        if not len(self._members):
            self._transition(_EMPTY)
            self._out.note(f"is empty, generation {self.generation_id}")
            return
        self._transition(_COMPLETING)
        self._out.note(
            f"begins generation {self.generation_id} with {len(self._members)} members, "
            f"protocol {self.protocol_name}"
        )
        for member in self._members:
            member.is_new = False
            member.assignment = b""
            if member.awaiting_join is not None:
                token, member.awaiting_join = member.awaiting_join, None
                member.session_deadline = inf  # until it is answered
                self.tell_generation(token, member)
        self._wait_for_syncs(now)

    def _wait_for_joins(self, deadline: float) -> None:
        self.join_deadline = deadline
        self._out.arm(deadline)

    # --- Assigning ----------------------------------------------------------------------------

    def _take_assignment(self, assignments: dict[str, bytes], now: float) -> None:
        size = self._members.state_bytes + sum(
            len(data) * 4 // 3
            for member_id, data in assignments.items()
            if member_id in self._members
        )
        if size > self._limits.max_state_bytes:
            self._out.note(
                f"cannot keep its leader's assignment: {size} bytes of state, its znode has room "
                f"for {self._limits.max_state_bytes}; use fewer members or partitions per group"
            )
            for member in self._members:
                if member.awaiting_sync is not None:
                    self._out.drop_sync(member, ErrorCode.UNKNOWN_SERVER_ERROR)
                    self._session_restarts(member, now)
            self._begin("its assignment is too large", now)
            return
        self._assigning = {m.member_id: assignments.get(m.member_id, b"") for m in self._members}
        self._assigning_sequence = self._out.next_sequence
        self._out.dirty = True

    def _sync_deadline_reached(self, now: float) -> None:
        self.sync_deadline = inf
        late = [member for member in self._members if member.member_id in self._pending_sync]
        for member in late:
            self.remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if late:
            names = listed(sorted(member.member_id for member in late))
            self.members_gone(f"{names} did not fetch their assignment in time", now)

    def _wait_for_syncs(self, now: float) -> None:
        self._pending_sync = {member.member_id for member in self._members}
        self.sync_deadline = now + self._members.rebalance_timeout
        self._out.arm(self.sync_deadline)

    def _session_restarts(self, member: Member, now: float) -> None:
        member.session_deadline = now + member.session_timeout
        self._out.arm(member.session_deadline)

    def _transition(self, state: GroupState) -> None:
        if self.state not in VALID_FROM[state]:
            raise AssertionError(f"{self.state} cannot become {state}")
        self.state = state
