"""One consumer group: the state machine of its coordinator.

Theory of operation
===================
Kafka's classic group protocol. A member joins, or joins again with another subscription, by JoinGroup. That starts a
rebalance, which ends when every member has its assignment. Heartbeats keep members alive, and their answers ask for a
rejoin. A member without a request for its session timeout is removed. New members first get an id (KIP-394); members
with an instance id keep their place through a restart (KIP-345).

::

    _prepare_rebalance ──► PreparingRebalance: wait until every known member has joined, or until the longest
                           rebalance timeout among them is over. Members that did not join are removed. The first
                           rebalance of an empty group also waits for further members (KIP-134).
    _complete_join     ──► CompletingRebalance: the next generation, sent to every member that joined. Wait for the
                           leader's assignment, at most as long. Members without a SyncGroup are removed.
    persisted          ──► Stable: ZooKeeper has the assignment, and every SyncGroup is answered with it.

A member that joins, leaves or changes its subscription starts a rebalance again, from every state
(`states.VALID_FROM`). If no member is left at its end the group is Empty, which is a generation, too.

Generation, members and assignments leave as `Persist` in the step that changes them. That is when a generation begins,
the leader's assignment arrives, a member leaves or is replaced, or the group becomes empty. The next coordinator calls
`restore` and continues in the same generation, with a fresh session timeout for every member and without a rebalance.

Invariants
----------
1. `generation_id` only grows.
2. Every JoinGroup, SyncGroup and LeaveGroup is answered exactly once.
3. An answer with a generation, an assignment or a removal leaves only after the snapshot that holds it was persisted.
4. In CompletingRebalance and Stable there are members, and one of them leads.
5. Heartbeats, syncs and commits of another generation are refused.
6. In PreparingRebalance and CompletingRebalance a deadline is armed: the group cannot get stuck.
7. One member per instance id.

While ZooKeeper does not answer, the owner starts nothing that needs a write: `join_writes`, `sync_writes` and
`tick_writes` decide.

In: join, sync, heartbeat, leave, check_commit, tick, persisted, persist_timed_out, restore, unload
Out: Persist, Answer, SetTimer, LogLine
Owner: `GroupMetadata`, on the reactor's thread
"""

from collections.abc import Sequence
from math import inf

from kbroker.coordinator.group.core.effects import (
    Effect,
    Join,
    JoinGroupResult,
    LeaveGroupResult,
    MemberIdentity,
    Sync,
    SyncGroupResult,
    Token,
)
from kbroker.coordinator.group.core.limits import GroupLimits
from kbroker.coordinator.group.core.members import (
    GroupMembers,
    MemberMetadata,
    Refusal,
    listed,
    refusal,
    select_protocol,
)
from kbroker.coordinator.group.core.outbox import Outbox
from kbroker.coordinator.group.core.records import GroupSnapshot
from kbroker.coordinator.group.core.states import VALID_FROM, GroupState
from kclient.wire.error_codes import ErrorCode

_EMPTY = GroupState.EMPTY
_PREPARING = GroupState.PREPARING_REBALANCE
_COMPLETING = GroupState.COMPLETING_REBALANCE
_STABLE = GroupState.STABLE
_DEAD = GroupState.DEAD


class Group:
    """The group *group_id*. New groups are Empty, in generation 0. Times are seconds."""

    def __init__(self, group_id: str, limits: GroupLimits) -> None:
        self.group_id = group_id
        self.state = _EMPTY
        self.generation_id = 0
        """How many rebalances completed their join phase."""
        self.protocol_type: str | None = None
        """The kind of the group: "consumer", "connect"; None before the first member."""
        self.protocol_name: str | None = None
        """The protocol that the members of this generation voted for."""
        self.members = GroupMembers()
        self.join_deadline = inf
        """End of PreparingRebalance, whether or not all members have joined."""
        self.sync_deadline = inf
        """End of the wait for SyncGroup requests."""

        self._limits = limits
        self._out = Outbox(group_id)
        self._pending_sync: set[str] = set()
        """Members of this generation without a SyncGroup yet."""
        self._initial_remaining: float | None = None
        """In the first rebalance of an empty group: how much longer it may be delayed."""
        self._new_member_added = False
        self._assignment: dict[str, bytes] | None = None
        """The leader's assignment by member id, while ZooKeeper has not acknowledged it."""
        self._assignment_sequence = 0

    # --- Events: requests ---------------------------------------------------------------------

    def join(self, token: Token, join: Join, now: float) -> list[Effect]:
        """Handle a JoinGroup request."""
        why = refusal(join, self.state, self.members, self.protocol_type, self._limits)
        if why is not None:
            self._refuse(token, join, why, now)
        elif join.member_id:
            self._join_known(token, join, now)
        elif join.group_instance_id is not None:
            self._join_new_static(token, join, now)
        elif join.requires_known_member_id:
            deadline = now + join.session_timeout
            self.members.pending[join.fresh_member_id] = deadline
            self._out.arm(deadline)
            self._out.answer(
                token, JoinGroupResult(ErrorCode.MEMBER_ID_REQUIRED, join.fresh_member_id)
            )
        else:
            self._add(token, join, join.fresh_member_id, now)
        return self._flush()

    def sync(self, token: Token, sync: Sync, now: float) -> list[Effect]:
        """Handle a SyncGroup request."""
        error = self._check_member(sync.member_id, sync.group_instance_id, sync.generation_id)
        if error is ErrorCode.NONE and (
            _differ(sync.protocol_type, self.protocol_type)
            or _differ(sync.protocol_name, self.protocol_name)
        ):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if error is ErrorCode.NONE and self.state is _PREPARING:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error is not ErrorCode.NONE:
            self._out.answer(token, SyncGroupResult(error))
            return self._flush()
        self._sync_member(token, self.members[sync.member_id], sync.assignments, now)
        return self._flush()

    def heartbeat(
        self, member_id: str, group_instance_id: str | None, generation_id: int, now: float
    ) -> ErrorCode:
        """Handle a heartbeat: it restarts the session timeout of the member."""
        error = self._check_member(member_id, group_instance_id, generation_id)
        if error is ErrorCode.NONE:
            _keep_alive(self.members[member_id], now)
            if self.state is _PREPARING:
                error = ErrorCode.REBALANCE_IN_PROGRESS
        return error

    def leave(
        self, token: Token, identities: Sequence[MemberIdentity], reason: str, now: float
    ) -> list[Effect]:
        """Handle a LeaveGroup request; the answer has an error per identity."""
        if self.state is _DEAD:
            self._out.answer(token, LeaveGroupResult(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return self._flush()
        before = len(self.members)
        results = tuple((identity, self._leave_one(identity)) for identity in identities)
        gone = [i.member_id or str(i.group_instance_id) for i, error in results if not error]
        if len(self.members) < before:
            self._members_removed(f"{listed(gone)} left: {reason or 'no reason given'}", now)
        elif gone:
            self._maybe_complete_join(now)
        self._out.answer_durably(token, LeaveGroupResult(ErrorCode.NONE, results))
        return self._flush()

    def check_commit(
        self, member_id: str, group_instance_id: str | None, generation_id: int, now: float
    ) -> ErrorCode:
        """Return whether these may commit offsets now; a member's commit also keeps it alive.

        Generation -1 is a client outside the group protocol (assign(), an admin tool): allowed
        while the group is empty.
        """
        if self.state is _DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation_id < 0 and self.state is _EMPTY:
            return ErrorCode.NONE
        error = self._check_member(member_id, group_instance_id, generation_id)
        if error is not ErrorCode.NONE:
            return error
        _keep_alive(self.members[member_id], now)
        if self.state is _COMPLETING:
            # The member rejoined and has no new assignment yet: it must not commit for its former partitions.
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def check_transactional_commit(
        self, member_id: str, group_instance_id: str | None, generation_id: int
    ) -> ErrorCode:
        """Return whether these may commit offsets in a transaction now (KIP-447).

        Without a generation, a member id and an instance id, as before TxnOffsetCommit v3, nothing is checked.
        Differs from `check_commit` as in Kafka: allowed while a rebalance completes, and no sign of life.
        """
        if self.state is _DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation_id < 0 and (
            self.state is _EMPTY or (not member_id and group_instance_id is None)
        ):
            return ErrorCode.NONE
        return self._check_member(member_id, group_instance_id, generation_id)

    # --- Which events need a write ------------------------------------------------------------

    def join_writes(self, join: Join) -> bool:
        """Return whether *join* starts a rebalance, or replaces a static member.

        During a rebalance every join is accepted: members that wait in JoinGroup are not removed.
        """
        if self.state in (_PREPARING, _DEAD):
            return False
        if not join.member_id:
            return join.group_instance_id is not None or not join.requires_known_member_id
        member = self.members.get(join.member_id)
        if member is None:
            return join.member_id in self.members.pending
        leads = join.member_id == self.members.leader
        return member.protocols != join.protocols or (self.state is _STABLE and leads)

    def sync_writes(self, sync: Sync) -> bool:
        """Return whether *sync* brings the assignment of this generation."""
        return (
            self.state is _COMPLETING
            and sync.member_id == self.members.leader
            and self._assignment is None
        )

    def tick_writes(self, now: float) -> bool:
        """Return whether a tick at *now* removes a member or ends a rebalance."""
        if min(self.join_deadline, self.sync_deadline) <= now or any(
            m.session_deadline <= now for m in self.members
        ):
            return True
        pending = self.members.pending.values()
        return self.state is _PREPARING and any(deadline <= now for deadline in pending)

    # --- Events: time, ZooKeeper, leadership --------------------------------------------------

    def tick(self, now: float) -> list[Effect]:
        """Handle the timer set by `SetTimer`: everything due by *now*."""
        self._out.disarm()
        pending = self.members.pending
        for member_id in [m for m, deadline in pending.items() if deadline <= now]:
            del pending[member_id]
            self._maybe_complete_join(now)
        expired = [member for member in self.members if member.session_deadline <= now]
        if expired:
            for member in expired:
                self._remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
            ids = [member.member_id for member in expired]
            self._members_removed(f"no request of {listed(ids)} for a session timeout", now)
        self._tick_rebalance(now)
        self._out.arm(self.members.next_deadline)
        return self._flush()

    def _tick_rebalance(self, now: float) -> None:
        """Handle the deadlines that are over by *now*, and arm the next one."""
        if self.join_deadline <= now:
            self._join_deadline_reached(now)
        if self.sync_deadline <= now:
            self._sync_deadline_reached(now)
        self._out.arm(min(self.join_deadline, self.sync_deadline))

    def persisted(self, sequence: int, now: float) -> list[Effect]:
        """Handle ZooKeeper's acknowledgement of snapshot *sequence*, and so of all earlier ones."""
        self._out.acknowledge(sequence)
        if self._assignment is not None and sequence >= self._assignment_sequence:
            self._transition(_STABLE)
            assignment, self._assignment = self._assignment, None
            for member in self.members:
                member.assignment = assignment[member.member_id]
                if member.awaiting_sync is not None:
                    token, member.awaiting_sync = member.awaiting_sync, None
                    self._answer_sync(token, member)
                    self._restart_session(member, now)
        self._restart_sessions(self._out.release(), now)
        return self._flush()

    def persist_timed_out(self, now: float) -> list[Effect]:
        """Handle a snapshot that is not acknowledged in time: the answers that wait for it fail, retriably."""
        waiting = self._out.fail_held(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self._assignment is not None:
            for member in self.members:
                if member.awaiting_sync is not None:
                    self._out.fail_sync(member, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                    waiting.append(member.member_id)
        self._restart_sessions(waiting, now)
        return self._flush()

    def restore(self, snapshot: GroupSnapshot, now: float) -> list[Effect]:
        """Restore the group from ZooKeeper, with a fresh session timeout for every member."""
        self.state = snapshot.state
        self.generation_id = snapshot.generation_id
        self.protocol_type = snapshot.protocol_type
        self.protocol_name = snapshot.protocol_name
        for saved in snapshot.members:
            member = MemberMetadata.restored(saved)
            self.members.add(member)
            self._restart_session(member, now)
        self.members.leader = snapshot.leader
        if self.state is _PREPARING:
            self._await_joins(now + self.members.rebalance_timeout)
        elif self.state is _COMPLETING:
            self._await_syncs(now)
        return self._flush()

    def unload(self, error: ErrorCode) -> list[Effect]:
        """Unload the group: moved, deleted, or not persistable. Every waiting request gets *error*."""
        self._out.fail_held(error)
        self._out.dirty = False
        for member in self.members:
            self._out.fail_join(member, error)
            self._out.fail_sync(member, error)
        self.members.clear()
        self._pending_sync.clear()
        self._assignment = None
        self.join_deadline = self.sync_deadline = inf
        self._transition(_DEAD)
        return self._flush()

    def snapshot(self) -> GroupSnapshot:
        """Return the state that the next coordinator restores.

        Members that joined during this rebalance and have no generation yet are left out.
        """
        assigned = self._assignment
        state = self.state if assigned is None else _STABLE
        members = tuple(
            m.snapshot(m.assignment if assigned is None else assigned[m.member_id])
            for m in self.members
            if not m.is_new
        )
        if not members:
            return GroupSnapshot(_EMPTY, self.generation_id, self.protocol_type)
        leader = self.members.leader
        if leader not in {member.member_id for member in members}:
            leader = members[0].member_id
        return GroupSnapshot(
            state, self.generation_id, self.protocol_type, self.protocol_name, leader, members
        )

    # --- Members ------------------------------------------------------------------------------

    def _refuse(self, token: Token, join: Join, why: Refusal, now: float) -> None:
        if why.cause:
            self._out.note(why.cause)
        if why.error is ErrorCode.GROUP_MAX_SIZE_REACHED:
            self._out.answer(token, JoinGroupResult(why.error))
            self._remove_rejoining(join.member_id, now)
        else:
            self._out.answer(token, JoinGroupResult(why.error, join.member_id))

    def _remove_rejoining(self, member_id: str, now: float) -> None:
        """Remove a member that rejoined and exceeds the limits of the group."""
        self.members.pending.pop(member_id, None)
        member = self.members.get(member_id)
        if member is not None:
            self._remove(member, ErrorCode.GROUP_MAX_SIZE_REACHED)
            self._members_removed(f"{member_id} exceeds the limits of the group", now)

    def _join_known(self, token: Token, join: Join, now: float) -> None:
        """Handle a JoinGroup with a member id."""
        member_id = join.member_id
        if member_id in self.members.pending and join.group_instance_id is None:
            del self.members.pending[member_id]
            self._add(token, join, member_id, now)
            return
        error = self.members.check(member_id, join.group_instance_id)
        if error is not ErrorCode.NONE:
            self._out.answer(token, JoinGroupResult(error, member_id))
            return
        member = self.members[member_id]
        changed = member.protocols != join.protocols
        is_leader = member_id == self.members.leader
        if self.state is _PREPARING or changed or (self.state is _STABLE and is_leader):
            # A leader rejoins when what it assigns has changed, like the number of partitions.
            self._update(token, member, join)
            why = "its subscription changed" if changed else "it asks for a rebalance"
            self._maybe_prepare_rebalance(f"{member_id} rejoined, {join.reason or why}", now)
        else:
            # The first answer was lost, or the member only repeats itself: the generation stays.
            _keep_alive(member, now)
            self._answer_join(token, member)

    def _join_new_static(self, token: Token, join: Join, now: float) -> None:
        """Handle a JoinGroup with an instance id and no member id: its process (re)started."""
        member = self.members.static(join.group_instance_id)
        if member is None:
            self._add(token, join, join.fresh_member_id, now)
            return
        old_leader = self.members.leader
        self._replace_static_member(member, join.fresh_member_id)
        self._update(token, member, join)
        self._out.dirty = True
        if self.state is _STABLE and select_protocol(self.members) == self.protocol_name:
            # It gets its place and its assignment back, without a rebalance.
            member.awaiting_join = None
            if join.supports_skip_assignment:
                leads = member.member_id == self.members.leader
                self._answer_join(token, member, skip_assignment=leads)
            else:
                # An older client that leads would assign: name its former id as the leader.
                self._answer_join(token, member, leader=old_leader)
        elif self.state is _COMPLETING:
            # The leader has the old id in its list of members and would assign to it.
            self._maybe_prepare_rebalance(
                f"{join.group_instance_id} was replaced during the rebalance", now
            )
        else:
            self._maybe_prepare_rebalance(f"{join.group_instance_id} rejoined", now)

    def _add(self, token: Token, join: Join, member_id: str, now: float) -> None:
        member = MemberMetadata(
            member_id=member_id,
            group_instance_id=join.group_instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            session_timeout=join.session_timeout,
            rebalance_timeout=join.rebalance_timeout,
            protocols=join.protocols,
            session_deadline=now + self._limits.new_member_join_timeout,
            awaiting_join=token,
            is_new=True,
        )
        if not len(self.members):
            self.protocol_type = join.protocol_type
        self.members.add(member)
        self._out.arm(member.session_deadline)
        why = f": {join.reason}" if join.reason else ""
        self._member_joined(f"{member_id} joins{why}", now)

    def _update(self, token: Token, member: MemberMetadata, join: Join) -> None:
        # An earlier attempt of the member.
        self._out.fail_join(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.awaiting_join = token
        member.session_timeout = join.session_timeout
        member.rebalance_timeout = join.rebalance_timeout
        self.members.set_protocols(member, join.protocols)
        if not member.is_new:
            member.session_deadline = inf

    def _member_joined(self, reason: str, now: float) -> None:
        """Handle a new member; its JoinGroup waits already."""
        if self._initial_remaining is not None:
            self._new_member_added = True
        self._maybe_prepare_rebalance(reason, now)

    def _replace_static_member(self, member: MemberMetadata, new_id: str) -> None:
        """Give *member* the id *new_id*; requests with the old id are fenced."""
        self._out.fail_join(member, ErrorCode.FENCED_INSTANCE_ID)
        self._out.fail_sync(member, ErrorCode.FENCED_INSTANCE_ID)
        self._out.fail_held_of(member.member_id, ErrorCode.FENCED_INSTANCE_ID)
        if member.member_id in self._pending_sync:
            self._pending_sync.remove(member.member_id)
            self._pending_sync.add(new_id)
        self.members.rename(member, new_id)

    def _leave_one(self, identity: MemberIdentity) -> ErrorCode:
        member_id, instance_id = identity
        if member_id in self.members.pending:
            del self.members.pending[member_id]
            return ErrorCode.NONE
        static = None if member_id else self.members.static(instance_id)
        if static is not None:
            # An administrator removes by instance id alone.
            member_id = static.member_id
        error = self.members.check(member_id, instance_id)
        if error is ErrorCode.NONE:
            self._remove(self.members[member_id], ErrorCode.UNKNOWN_MEMBER_ID)
        return error

    def _remove(self, member: MemberMetadata, error: ErrorCode) -> None:
        """Remove *member*; its waiting requests get *error*. `_members_removed` comes next."""
        self._out.fail_join(member, error)
        self._out.fail_sync(member, error)
        self._out.fail_held_of(member.member_id, error)
        self.members.remove(member)
        self._pending_sync.discard(member.member_id)
        if not member.is_new:
            self._out.dirty = True

    def _members_removed(self, reason: str, now: float) -> None:
        """Start a rebalance after a removal; in the join phase, complete it if no member is missing now."""
        if self.state in (_STABLE, _COMPLETING):
            self._prepare_rebalance(reason, now)
        else:
            self._out.note(f"goes on without: {reason}")
            self._maybe_complete_join(now)

    # --- The join phase -----------------------------------------------------------------------

    def _maybe_prepare_rebalance(self, reason: str, now: float) -> None:
        """Start a rebalance, or complete the join phase under way if every member has joined."""
        if self.state in VALID_FROM[_PREPARING]:
            self._prepare_rebalance(reason, now)
        else:
            self._maybe_complete_join(now)

    def _prepare_rebalance(self, reason: str, now: float) -> None:
        self._assignment = None
        for member in self.members:
            if member.awaiting_sync is not None:
                self._out.fail_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
                if member.awaiting_join is None:
                    self._restart_session(member, now)
        self._pending_sync.clear()
        self.sync_deadline = inf
        initial = self.state is _EMPTY
        self._transition(_PREPARING)
        self._out.note(f"prepares to rebalance, generation {self.generation_id}: {reason}")
        delay = self._limits.initial_rebalance_delay
        if initial and delay > 0:
            self._initial_remaining = max(self.members.rebalance_timeout - delay, 0.0)
            self._new_member_added = False
            self._await_joins(now + delay)
        elif self.members.all_joined:
            self._complete_join(now)
        else:
            self._await_joins(now + self.members.rebalance_timeout)

    def _maybe_complete_join(self, now: float) -> None:
        """Complete the join phase under way, if there is one, when every member has joined."""
        if self.state is not _PREPARING or not self.members.all_joined:
            return
        if self._initial_remaining is None or not len(self.members):
            self._complete_join(now)

    def _join_deadline_reached(self, now: float) -> None:
        remaining = self._initial_remaining
        if remaining and self._new_member_added:
            # More members keep joining: wait as long again, up to the rebalance timeout.
            self._new_member_added = False
            delay = min(self._limits.initial_rebalance_delay, remaining)
            self._initial_remaining = remaining - delay
            self._await_joins(now + delay)
        else:
            self._complete_join(now)

    def _complete_join(self, now: float) -> None:
        """Begin the next generation with the members that joined."""
        self.join_deadline = inf
        self._initial_remaining = None
        for member in list(self.members):
            # A static member keeps its place until its session ends.
            if member.awaiting_join is None and member.group_instance_id is None:
                self._out.note(f"removes {member.member_id}: it did not rejoin in time")
                self._remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if len(self.members) and not self.members.elect_leader():
            self._await_joins(now + self.members.rebalance_timeout)
            return
        over = self._out.fail_held_of_generation(ErrorCode.REBALANCE_IN_PROGRESS)
        self._restart_sessions(over, now)
        self.generation_id += 1
        self._out.dirty = True
        self.protocol_name = select_protocol(self.members)
        if not len(self.members):
            self._transition(_EMPTY)
            self._out.note(f"is empty, generation {self.generation_id}")
            return
        self._transition(_COMPLETING)
        self._out.note(
            f"begins generation {self.generation_id} with {len(self.members)} members, "
            f"protocol {self.protocol_name}"
        )
        for member in self.members:
            member.is_new = False
            member.assignment = b""
            if member.awaiting_join is not None:
                token, member.awaiting_join = member.awaiting_join, None
                member.session_deadline = inf  # until it is answered
                self._answer_join(token, member)
        self._await_syncs(now)

    def _answer_join(
        self,
        token: Token,
        member: MemberMetadata,
        *,
        skip_assignment: bool = False,
        leader: str | None = None,
    ) -> None:
        """Answer *member* with the generation, and with the members if it leads. *leader* overrides the leader's id."""
        named = leader if leader is not None else self.members.leader or ""
        leads = named == member.member_id
        joined = JoinGroupResult(
            error=ErrorCode.NONE,
            member_id=member.member_id,
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=named,
            members=self.members.joined_members(self.protocol_name) if leads else (),
            skip_assignment=skip_assignment,
        )
        self._out.answer_durably(token, joined, member.member_id)

    def _await_joins(self, deadline: float) -> None:
        self.join_deadline = deadline
        self._out.arm(deadline)

    # --- The sync phase -----------------------------------------------------------------------

    def _sync_member(
        self, token: Token, member: MemberMetadata, assignments: dict[str, bytes], now: float
    ) -> None:
        """Handle a SyncGroup of *member*, except in PreparingRebalance. *assignments* are the leader's."""
        self._pending_sync.discard(member.member_id)
        if self.state is _STABLE:
            _keep_alive(member, now)
            self._answer_sync(token, member)
            return
        # An earlier attempt of the member.
        self._out.fail_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.awaiting_sync = token
        member.session_deadline = inf
        if member.member_id == self.members.leader and self._assignment is None:
            self._store_assignment(assignments, now)

    def _store_assignment(self, assignments: dict[str, bytes], now: float) -> None:
        size = self.members.state_bytes + sum(
            len(data) * 4 // 3
            for member_id, data in assignments.items()
            if member_id in self.members
        )
        if size > self._limits.max_state_bytes:
            self._out.note(
                f"cannot store its leader's assignment: {size} bytes of state, its znode has room "
                f"for {self._limits.max_state_bytes}; use fewer members or partitions per group"
            )
            for member in self.members:
                if member.awaiting_sync is not None:
                    self._out.fail_sync(member, ErrorCode.UNKNOWN_SERVER_ERROR)
                    self._restart_session(member, now)
            self._prepare_rebalance("its assignment is too large", now)
            return
        self._assignment = {m.member_id: assignments.get(m.member_id, b"") for m in self.members}
        self._assignment_sequence = self._out.next_sequence
        self._out.dirty = True

    def _answer_sync(self, token: Token, member: MemberMetadata) -> None:
        synced = SyncGroupResult(
            ErrorCode.NONE, self.protocol_type, self.protocol_name, member.assignment
        )
        self._out.answer_durably(token, synced, member.member_id)

    def _sync_deadline_reached(self, now: float) -> None:
        self.sync_deadline = inf
        late = [member for member in self.members if member.member_id in self._pending_sync]
        for member in late:
            self._remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if late:
            names = listed(sorted(member.member_id for member in late))
            self._members_removed(f"{names} did not fetch their assignment in time", now)

    def _await_syncs(self, now: float) -> None:
        self._pending_sync = {member.member_id for member in self.members}
        self.sync_deadline = now + self.members.rebalance_timeout
        self._out.arm(self.sync_deadline)

    # --- Checks and state ---------------------------------------------------------------------

    def _check_member(
        self, member_id: str, group_instance_id: str | None, generation_id: int
    ) -> ErrorCode:
        if self.state is _DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.members.check(member_id, group_instance_id)
        if error is ErrorCode.NONE and generation_id != self.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def _restart_sessions(self, answered: list[str], now: float) -> None:
        """Restart the sessions of the members that were *answered* and have no other request waiting."""
        for member_id in answered:
            member = self.members.get(member_id)
            if member is not None and member.awaiting_join is None and member.awaiting_sync is None:
                self._restart_session(member, now)

    def _restart_session(self, member: MemberMetadata, now: float) -> None:
        member.session_deadline = now + member.session_timeout
        self._out.arm(member.session_deadline)

    def _transition(self, state: GroupState) -> None:
        if self.state not in VALID_FROM[state]:
            raise AssertionError(f"{self.state} cannot become {state}")
        self.state = state

    def _flush(self) -> list[Effect]:
        return self._out.flush(self.snapshot)


def _keep_alive(member: MemberMetadata, now: float) -> None:
    # Infinite: a request of it waits, and the answer restarts its session.
    if member.session_deadline != inf and not member.is_new:
        member.session_deadline = now + member.session_timeout


def _differ(asked: str | None, ours: str | None) -> bool:
    return asked is not None and ours is not None and asked != ours
