"""One consumer group, as its coordinator decides about it.

Theory of operation
===================
Kafka's classic group protocol. A member that wants in, or whose subscription changed, sends
JoinGroup; the group goes to PreparingRebalance and waits until every known member has sent one,
at most for the largest rebalance timeout among them; who did not is removed. Then the generation
is bumped, a protocol voted for, and everybody answered; the leader's answer lists the members. In
CompletingRebalance the members wait in SyncGroup for the leader's assignment; with it the group is
Stable. Heartbeats keep members alive and tell them to rejoin. New members are first given an id
(KIP-394); the first rebalance of an empty group is delayed for more members to come (KIP-134);
members with an instance id keep their place through a restart (KIP-345).

Whatever the next coordinator has to know (generation, members, assignments) leaves as `Persist`
in the step that changes it: when a generation begins, when the leader's assignment arrives, when a
member leaves or is replaced, when the group becomes empty. The next coordinator calls `restore` and
carries on: same generation, a fresh session timeout for everybody, no rebalance.

Invariants
----------
1. `generation_id` only grows.
2. Every JoinGroup, SyncGroup and LeaveGroup is answered exactly once.
3. An answer that tells a generation, an assignment or a removal leaves only after the snapshot
   that holds it was persisted.
4. In CompletingRebalance and Stable there are members, and one of them leads.
5. Heartbeats, syncs and commits of another generation are refused.
6. In PreparingRebalance and CompletingRebalance a deadline is armed: the group cannot get stuck.
7. One member per instance id.

In: join, sync, heartbeat, leave, check_commit, tick, persisted, restore, unload
Out: Persist, Answer, SetTimer, Note
Owner: the group coordinator, on the reactor's thread.
"""

from collections.abc import Sequence
from math import inf

from kbroker.groups.admission import Refusal, refusal
from kbroker.groups.effects import (
    Effect,
    Join,
    Joined,
    Left,
    MemberIdentity,
    Sync,
    Synced,
    Token,
)
from kbroker.groups.limits import GroupLimits
from kbroker.groups.members import Member, Roster, select_protocol
from kbroker.groups.outbox import Outbox
from kbroker.groups.records import GroupSnapshot
from kbroker.groups.states import VALID_FROM, GroupState
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
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.members = Roster()

        self._limits = limits
        self._out = Outbox()
        self._pending_sync: set[str] = set()
        """Members of this generation that have not asked for their assignment yet."""
        self._join_deadline = inf
        self._sync_deadline = inf
        self._initial_remaining: float | None = None
        """In the first rebalance of an empty group: how much longer it may be delayed."""
        self._new_member_added = False
        self._assigning: dict[str, bytes] | None = None
        """The leader's assignment by member id, on its way to ZooKeeper."""
        self._assigning_sequence = 0

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
            self._out.answer(token, Joined(ErrorCode.MEMBER_ID_REQUIRED, join.fresh_member_id))
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
            self._out.answer(token, Synced(error))
            return self._flush()
        member = self.members[sync.member_id]
        self._pending_sync.discard(member.member_id)
        if self.state is _STABLE:
            self._answer_sync(token, member)
            return self._flush()
        self._drop_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)  # an older attempt of the same
        member.awaiting_sync = token
        member.session_deadline = inf
        if member.member_id == self.members.leader and self._assigning is None:
            self._take_assignment(sync.assignments, now)
        return self._flush()

    def heartbeat(
        self, member_id: str, group_instance_id: str | None, generation_id: int, now: float
    ) -> ErrorCode:
        """Handle a heartbeat: the member lives for another session timeout."""
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
            self._out.answer(token, Left(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return self._flush()
        before = len(self.members)
        results = tuple((identity, self._leave_one(identity)) for identity in identities)
        gone = [i.member_id or str(i.group_instance_id) for i, error in results if not error]
        if len(self.members) < before:
            self._members_removed(f"{_some(gone)} left: {reason or 'no reason given'}", now)
        elif gone:
            self._maybe_complete_join(now)
        self._out.answer_durably(token, Left(ErrorCode.NONE, results))
        return self._flush()

    def check_commit(
        self, member_id: str, group_instance_id: str | None, generation_id: int, now: float
    ) -> ErrorCode:
        """Return whether these may commit offsets now; a member's commit also keeps it alive.

        Generation -1 is somebody outside the group protocol (assign(), an admin tool): allowed
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
            # The member rejoined and has not learnt its partitions yet: it must not commit
            # for those it had before.
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

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
            self._members_removed(f"nothing was heard of {_some(ids)} for a session timeout", now)
        if self._join_deadline <= now:
            self._join_deadline_reached(now)
        if self._sync_deadline <= now:
            self._sync_deadline_reached(now)
        self._out.arm(min(self._join_deadline, self._sync_deadline, self.members.next_deadline))
        return self._flush()

    def persisted(self, sequence: int, now: float) -> list[Effect]:
        """Handle ZooKeeper's acknowledgement of snapshot *sequence*, and thereby of all before."""
        self._out.acknowledge(sequence)
        if self._assigning is not None and sequence >= self._assigning_sequence:
            self._transition(_STABLE)
            assignment, self._assigning = self._assigning, None
            for member in self.members:
                member.assignment = assignment[member.member_id]
                if member.awaiting_sync is not None:
                    token, member.awaiting_sync = member.awaiting_sync, None
                    self._answer_sync(token, member)
                    self._session_restarts(member, now)
        for member_id in self._out.release():
            told = self.members.get(member_id)
            if told is not None and told.awaiting_join is None and told.awaiting_sync is None:
                self._session_restarts(told, now)
        return self._flush()

    def restore(self, snapshot: GroupSnapshot, now: float) -> list[Effect]:
        """Take the group over from ZooKeeper, with a fresh session timeout for every member."""
        self.state = snapshot.state
        self.generation_id = snapshot.generation_id
        self.protocol_type = snapshot.protocol_type
        self.protocol_name = snapshot.protocol_name
        for saved in snapshot.members:
            member = Member.restored(saved)
            self.members.add(member)
            self._session_restarts(member, now)
        self.members.leader = snapshot.leader
        if self.state is _PREPARING:
            self._wait_for_joins(now + self.members.rebalance_timeout)
        elif self.state is _COMPLETING:
            self._wait_for_syncs(now)
        return self._flush()

    def unload(self, error: ErrorCode) -> list[Effect]:
        """Let the group go: moved, deleted, or not to be persisted. All who wait get *error*."""
        self._out.fail_held(error)
        self._out.dirty = False
        for member in self.members:
            self._drop_join(member, error)
            self._drop_sync(member, error)
        self.members = Roster()
        self._pending_sync.clear()
        self._assigning = None
        self._join_deadline = self._sync_deadline = inf
        self._transition(_DEAD)
        return self._flush()

    # --- Queries ------------------------------------------------------------------------------

    def snapshot(self) -> GroupSnapshot:
        """Return what the next coordinator needs.

        Members who joined during this rebalance and were told nothing yet are left out.
        """
        assigned = self._assigning
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

    # --- Joining ------------------------------------------------------------------------------

    def _refuse(self, token: Token, join: Join, why: Refusal, now: float) -> None:
        if why.cause:
            self._note(why.cause)
        if why.error is ErrorCode.GROUP_MAX_SIZE_REACHED:
            self._out.answer(token, Joined(why.error))
            self._push_out(join.member_id, now)
        else:
            self._out.answer(token, Joined(why.error, join.member_id))

    def _push_out(self, member_id: str, now: float) -> None:
        """Remove a member that rejoined and does not fit any more."""
        self.members.pending.pop(member_id, None)
        member = self.members.get(member_id)
        if member is not None:
            self._remove(member, ErrorCode.GROUP_MAX_SIZE_REACHED)
            self._members_removed(f"{member_id} does not fit any more", now)

    def _join_known(self, token: Token, join: Join, now: float) -> None:
        """Handle a JoinGroup that brings a member id."""
        member_id = join.member_id
        if member_id in self.members.pending:
            del self.members.pending[member_id]
            self._add(token, join, member_id, now)
            return
        error = self.members.check(member_id, join.group_instance_id)
        if error is not ErrorCode.NONE:
            self._out.answer(token, Joined(error, member_id))
            return
        member = self.members[member_id]
        changed = member.protocols != join.protocols
        is_leader = member_id == self.members.leader
        if self.state is _PREPARING or changed or (self.state is _STABLE and is_leader):
            # A leader rejoins when what it assigns has changed, like the number of partitions.
            self._update(token, member, join)
            why = "its subscription changed" if changed else "it asks for a rebalance"
            self._rebalance(f"{member_id} rejoined, {join.reason or why}", now)
        else:
            # It did not hear our first answer, or it is curious: the generation stands.
            _keep_alive(member, now)
            self._answer_join(token, member)

    def _join_new_static(self, token: Token, join: Join, now: float) -> None:
        """Handle a member with an instance id that does not know its member id: it (re)started."""
        member = self.members.static(join.group_instance_id)
        if member is None:
            self._add(token, join, join.fresh_member_id, now)
            return
        old_leader = self.members.leader
        self._replace_static(member, join.fresh_member_id)
        self._update(token, member, join)
        self._out.dirty = True
        if self.state is _STABLE and select_protocol(self.members) == self.protocol_name:
            # It takes its place again, assignment and all: nobody else is disturbed.
            member.awaiting_join = None
            if join.supports_skip_assignment:
                leads = member.member_id == self.members.leader
                self._answer_join(token, member, skip_assignment=leads)
            else:
                # An older client would assign if told that it leads: name the id it had.
                self._answer_join(token, member, leader=old_leader)
        elif self.state is _COMPLETING:
            # The leader was told the old id and would assign to it.
            self._rebalance(f"{join.group_instance_id} was replaced during the rebalance", now)
        else:
            self._rebalance(f"{join.group_instance_id} came back", now)

    def _add(self, token: Token, join: Join, member_id: str, now: float) -> None:
        member = Member(
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
        if self._initial_remaining is not None:
            self._new_member_added = True
        self.members.add(member)
        self._out.arm(member.session_deadline)
        why = f": {join.reason}" if join.reason else ""
        self._rebalance(f"{member_id} joins{why}", now)

    def _update(self, token: Token, member: Member, join: Join) -> None:
        self._drop_join(member, ErrorCode.REBALANCE_IN_PROGRESS)  # an older attempt of the same
        member.awaiting_join = token
        member.session_timeout = join.session_timeout
        member.rebalance_timeout = join.rebalance_timeout
        self.members.set_protocols(member, join.protocols)
        if not member.is_new:
            member.session_deadline = inf

    def _replace_static(self, member: Member, new_id: str) -> None:
        """Give the place of *member* to *new_id*; whoever still uses the old id is fenced."""
        self._drop_join(member, ErrorCode.FENCED_INSTANCE_ID)
        self._drop_sync(member, ErrorCode.FENCED_INSTANCE_ID)
        if member.member_id in self._pending_sync:
            self._pending_sync.remove(member.member_id)
            self._pending_sync.add(new_id)
        self.members.rename(member, new_id)

    # --- Rebalancing --------------------------------------------------------------------------

    def _rebalance(self, reason: str, now: float) -> None:
        """Start a rebalance, or finish the one under way if everybody is there."""
        if self.state in VALID_FROM[_PREPARING]:
            self._prepare_rebalance(reason, now)
        else:
            self._maybe_complete_join(now)

    def _prepare_rebalance(self, reason: str, now: float) -> None:
        self._assigning = None
        for member in self.members:
            if member.awaiting_sync is not None:
                self._drop_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
                if member.awaiting_join is None:
                    self._session_restarts(member, now)
        self._pending_sync.clear()
        self._sync_deadline = inf
        initial = self.state is _EMPTY
        self._transition(_PREPARING)
        self._note(f"prepares to rebalance, generation {self.generation_id}: {reason}")
        delay = self._limits.initial_rebalance_delay
        if initial and delay > 0:
            self._initial_remaining = max(self.members.rebalance_timeout - delay, 0.0)
            self._new_member_added = False
            self._wait_for_joins(now + delay)
        elif self.members.all_joined:
            self._complete_join(now)
        else:
            self._wait_for_joins(now + self.members.rebalance_timeout)

    def _maybe_complete_join(self, now: float) -> None:
        if self.state is not _PREPARING or not self.members.all_joined:
            return
        if self._initial_remaining is None or not len(self.members):
            self._complete_join(now)

    def _join_deadline_reached(self, now: float) -> None:
        remaining = self._initial_remaining
        if remaining and self._new_member_added:
            # More members keep coming: give them as long again, up to the rebalance timeout.
            self._new_member_added = False
            delay = min(self._limits.initial_rebalance_delay, remaining)
            self._initial_remaining = remaining - delay
            self._wait_for_joins(now + delay)
        else:
            self._complete_join(now)

    def _complete_join(self, now: float) -> None:
        """Begin the next generation with those who are here."""
        self._join_deadline = inf
        self._initial_remaining = None
        for member in list(self.members):
            # A static member keeps its place until its session ends.
            if member.awaiting_join is None and member.group_instance_id is None:
                self._note(f"removes {member.member_id}: it did not rejoin in time")
                self._remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if len(self.members) and not self.members.elect_leader():
            self._wait_for_joins(now + self.members.rebalance_timeout)
            return
        self.generation_id += 1
        self._out.dirty = True
        self.protocol_name = select_protocol(self.members)
        if not len(self.members):
            self._transition(_EMPTY)
            self._note(f"is empty, generation {self.generation_id}")
            return
        self._transition(_COMPLETING)
        self._note(
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
        self._wait_for_syncs(now)

    def _take_assignment(self, assignments: dict[str, bytes], now: float) -> None:
        size = self.members.state_bytes + sum(
            len(data) * 4 // 3
            for member_id, data in assignments.items()
            if member_id in self.members
        )
        if size > self._limits.max_state_bytes:
            self._note(
                f"cannot keep its leader's assignment: {size} bytes of state, its znode has room "
                f"for {self._limits.max_state_bytes}; use fewer members or partitions per group"
            )
            for member in self.members:
                if member.awaiting_sync is not None:
                    self._drop_sync(member, ErrorCode.UNKNOWN_SERVER_ERROR)
                    self._session_restarts(member, now)
            self._prepare_rebalance("its assignment is too large", now)
            return
        self._assigning = {m.member_id: assignments.get(m.member_id, b"") for m in self.members}
        self._assigning_sequence = self._out.next_sequence
        self._out.dirty = True

    def _sync_deadline_reached(self, now: float) -> None:
        self._sync_deadline = inf
        late = [self.members[member_id] for member_id in self._pending_sync]
        for member in late:
            self._remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if late:
            names = _some(sorted(member.member_id for member in late))
            self._members_removed(f"{names} did not fetch their assignment in time", now)

    # --- Members leaving ----------------------------------------------------------------------

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

    def _remove(self, member: Member, error: ErrorCode) -> None:
        """Take *member* out; what it waits for is answered with *error*."""
        self._drop_join(member, error)
        self._drop_sync(member, error)
        self.members.remove(member)
        self._pending_sync.discard(member.member_id)
        if not member.is_new:
            self._out.dirty = True

    def _members_removed(self, reason: str, now: float) -> None:
        """Members are gone: the others have to share, or need not be waited for any longer."""
        if self.state in (_STABLE, _COMPLETING):
            self._prepare_rebalance(reason, now)
        else:
            self._note(f"goes on without: {reason}")
            self._maybe_complete_join(now)

    # --- Checks and deadlines -----------------------------------------------------------------

    def _check_member(
        self, member_id: str, group_instance_id: str | None, generation_id: int
    ) -> ErrorCode:
        if self.state is _DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.members.check(member_id, group_instance_id)
        if error is ErrorCode.NONE and generation_id != self.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def _session_restarts(self, member: Member, now: float) -> None:
        member.session_deadline = now + member.session_timeout
        self._out.arm(member.session_deadline)

    def _wait_for_joins(self, deadline: float) -> None:
        self._join_deadline = deadline
        self._out.arm(deadline)

    def _wait_for_syncs(self, now: float) -> None:
        self._pending_sync = {member.member_id for member in self.members}
        self._sync_deadline = now + self.members.rebalance_timeout
        self._out.arm(self._sync_deadline)

    # --- Answers ------------------------------------------------------------------------------

    def _answer_join(
        self,
        token: Token,
        member: Member,
        *,
        skip_assignment: bool = False,
        leader: str | None = None,
    ) -> None:
        """Tell *member* the generation; the members too, if it leads. *leader*: whom to name."""
        named = leader if leader is not None else self.members.leader or ""
        leads = named == member.member_id
        joined = Joined(
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

    def _answer_sync(self, token: Token, member: Member) -> None:
        synced = Synced(ErrorCode.NONE, self.protocol_type, self.protocol_name, member.assignment)
        self._out.answer_durably(token, synced, member.member_id)

    def _drop_join(self, member: Member, error: ErrorCode) -> None:
        if member.awaiting_join is not None:
            # Who is told that its id is unknown shall come back without one.
            told_id = "" if error is ErrorCode.UNKNOWN_MEMBER_ID else member.member_id
            self._out.answer(member.awaiting_join, Joined(error, told_id))
            member.awaiting_join = None

    def _drop_sync(self, member: Member, error: ErrorCode) -> None:
        if member.awaiting_sync is not None:
            self._out.answer(member.awaiting_sync, Synced(error))
            member.awaiting_sync = None

    def _note(self, text: str) -> None:
        self._out.note(f"group {self.group_id!r} {text}")

    def _transition(self, state: GroupState) -> None:
        if self.state not in VALID_FROM[state]:
            raise AssertionError(f"{self.group_id}: {self.state} cannot become {state}")
        self.state = state

    def _flush(self) -> list[Effect]:
        return self._out.flush(self.snapshot)


def _keep_alive(member: Member, now: float) -> None:
    # Infinite means that it waits for us, and what it is told then restarts its session.
    if member.session_deadline != inf and not member.is_new:
        member.session_deadline = now + member.session_timeout


def _differ(asked: str | None, ours: str | None) -> bool:
    return asked is not None and ours is not None and asked != ours


def _some(names: list[str]) -> str:
    """Return *names* for a line of the log, the first ones if there are many."""
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
