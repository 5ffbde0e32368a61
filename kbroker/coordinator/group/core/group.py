"""One consumer group, as its coordinator decides about it.

Theory of operation
===================
Kafka's classic group protocol. A member that wants in, or whose subscription changed, sends
JoinGroup: that begins a rebalance (`rebalance.py`), at whose end every member has its assignment.
Heartbeats keep members alive and tell them to rejoin; who is silent for its session timeout is
removed. New members are first given an id (KIP-394); members with an instance id keep their place
through a restart (KIP-345). Here it is decided who asks, and what for; `rebalance.py` has state and
generation, `members.py` who is a member, `outbox.py` what waits to be told.

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

While nothing can be written the owner does not begin what has to be: `join_writes`, `sync_writes`
and `tick_writes` tell.

In: join, sync, heartbeat, leave, check_commit, tick, persisted, write_is_late, restore, unload
Out: Persist, Answer, SetTimer, Note
Owner: the group coordinator, on the reactor's thread.
"""

from collections.abc import Sequence
from math import inf

from kbroker.coordinator.group.core.admission import Refusal, refusal
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
from kbroker.coordinator.group.core.members import Member, Roster, listed, select_protocol
from kbroker.coordinator.group.core.outbox import Outbox
from kbroker.coordinator.group.core.rebalance import Rebalance
from kbroker.coordinator.group.core.records import GroupSnapshot
from kbroker.coordinator.group.core.states import GroupState
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
        self.members = Roster()
        self._limits = limits
        self._out = Outbox(group_id)
        self._rebalance = Rebalance(self.members, self._out, limits)

    @property
    def state(self) -> GroupState:
        """Where in a rebalance the group is, or whether it is over."""
        return self._rebalance.state

    @property
    def generation_id(self) -> int:
        """How many rebalances came to an end."""
        return self._rebalance.generation_id

    @property
    def protocol_type(self) -> str | None:
        """What kind of group it is: "consumer", "connect"; None if nobody ever joined."""
        return self._rebalance.protocol_type

    @property
    def protocol_name(self) -> str | None:
        """What the members of this generation voted for."""
        return self._rebalance.protocol_name

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
        self._rebalance.ask_for_assignment(
            token, self.members[sync.member_id], sync.assignments, now
        )
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
            self._out.answer(token, LeaveGroupResult(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return self._flush()
        before = len(self.members)
        results = tuple((identity, self._leave_one(identity)) for identity in identities)
        gone = [i.member_id or str(i.group_instance_id) for i, error in results if not error]
        if len(self.members) < before:
            self._rebalance.members_gone(f"{listed(gone)} left: {reason or 'no reason given'}", now)
        elif gone:
            self._rebalance.maybe_finish(now)
        self._out.answer_durably(token, LeaveGroupResult(ErrorCode.NONE, results))
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

    # --- What has to be written ---------------------------------------------------------------

    def join_writes(self, join: Join) -> bool:
        """Return whether *join* begins a rebalance, or gives a static member's place to another process.

        During a rebalance all joins may come: members that wait in JoinGroup are not removed.
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
        return self._rebalance.awaits_assignment_of(sync.member_id)

    def tick_writes(self, now: float) -> bool:
        """Return whether a tick at *now* removes a member or ends a rebalance."""
        if self._rebalance.is_due(now) or any(m.session_deadline <= now for m in self.members):
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
            self._rebalance.maybe_finish(now)
        expired = [member for member in self.members if member.session_deadline <= now]
        if expired:
            for member in expired:
                self._rebalance.remove(member, ErrorCode.UNKNOWN_MEMBER_ID)
            ids = [member.member_id for member in expired]
            self._rebalance.members_gone(
                f"nothing was heard of {listed(ids)} for a session timeout", now
            )
        self._rebalance.tick(now)
        self._out.arm(self.members.next_deadline)
        return self._flush()

    def persisted(self, sequence: int, now: float) -> list[Effect]:
        """Handle ZooKeeper's acknowledgement of snapshot *sequence*, and thereby of all before."""
        self._rebalance.persisted(sequence, now)
        return self._flush()

    def write_is_late(self, now: float) -> list[Effect]:
        """Handle that ZooKeeper does not acknowledge a snapshot in time: answers that wait for it are refused."""
        self._rebalance.write_is_late(now)
        return self._flush()

    def restore(self, snapshot: GroupSnapshot, now: float) -> list[Effect]:
        """Take the group over from ZooKeeper, with a fresh session timeout for every member."""
        self._rebalance.restore(snapshot, now)
        return self._flush()

    def unload(self, error: ErrorCode) -> list[Effect]:
        """Let the group go: moved, deleted, or not to be persisted. All who wait get *error*."""
        self._rebalance.unload(error)
        return self._flush()

    def snapshot(self) -> GroupSnapshot:
        """Return what the next coordinator needs."""
        return self._rebalance.snapshot()

    # --- Joining ------------------------------------------------------------------------------

    def _refuse(self, token: Token, join: Join, why: Refusal, now: float) -> None:
        if why.cause:
            self._out.note(why.cause)
        if why.error is ErrorCode.GROUP_MAX_SIZE_REACHED:
            self._out.answer(token, JoinGroupResult(why.error))
            self._push_out(join.member_id, now)
        else:
            self._out.answer(token, JoinGroupResult(why.error, join.member_id))

    def _push_out(self, member_id: str, now: float) -> None:
        """Remove a member that rejoined and does not fit any more."""
        self.members.pending.pop(member_id, None)
        member = self.members.get(member_id)
        if member is not None:
            self._rebalance.remove(member, ErrorCode.GROUP_MAX_SIZE_REACHED)
            self._rebalance.members_gone(f"{member_id} does not fit any more", now)

    def _join_known(self, token: Token, join: Join, now: float) -> None:
        """Handle a JoinGroup that brings a member id."""
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
            self._rebalance.begin_or_finish(f"{member_id} rejoined, {join.reason or why}", now)
        else:
            # It did not hear our first answer, or it is curious: the generation stands.
            _keep_alive(member, now)
            self._rebalance.tell_generation(token, member)

    def _join_new_static(self, token: Token, join: Join, now: float) -> None:
        """Handle a member with an instance id that does not know its member id: it (re)started."""
        member = self.members.static(join.group_instance_id)
        if member is None:
            self._add(token, join, join.fresh_member_id, now)
            return
        old_leader = self.members.leader
        self._rebalance.replaced(member, join.fresh_member_id)
        self._update(token, member, join)
        self._out.dirty = True
        if self.state is _STABLE and select_protocol(self.members) == self.protocol_name:
            # It takes its place again, assignment and all: nobody else is disturbed.
            member.awaiting_join = None
            if join.supports_skip_assignment:
                leads = member.member_id == self.members.leader
                self._rebalance.tell_generation(token, member, skip_assignment=leads)
            else:
                # An older client would assign if told that it leads: name the id it had.
                self._rebalance.tell_generation(token, member, leader=old_leader)
        elif self.state is _COMPLETING:
            # The leader was told the old id and would assign to it.
            self._rebalance.begin_or_finish(
                f"{join.group_instance_id} was replaced during the rebalance", now
            )
        else:
            self._rebalance.begin_or_finish(f"{join.group_instance_id} came back", now)

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
            self._rebalance.protocol_type = join.protocol_type
        self.members.add(member)
        self._out.arm(member.session_deadline)
        why = f": {join.reason}" if join.reason else ""
        self._rebalance.member_came(f"{member_id} joins{why}", now)

    def _update(self, token: Token, member: Member, join: Join) -> None:
        self._out.drop_join(member, ErrorCode.REBALANCE_IN_PROGRESS)  # an older attempt of the same
        member.awaiting_join = token
        member.session_timeout = join.session_timeout
        member.rebalance_timeout = join.rebalance_timeout
        self.members.set_protocols(member, join.protocols)
        if not member.is_new:
            member.session_deadline = inf

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
            self._rebalance.remove(self.members[member_id], ErrorCode.UNKNOWN_MEMBER_ID)
        return error

    # --- Checks -------------------------------------------------------------------------------

    def _check_member(
        self, member_id: str, group_instance_id: str | None, generation_id: int
    ) -> ErrorCode:
        if self.state is _DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.members.check(member_id, group_instance_id)
        if error is ErrorCode.NONE and generation_id != self.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def _flush(self) -> list[Effect]:
        return self._out.flush(self.snapshot)


def _keep_alive(member: Member, now: float) -> None:
    # Infinite means that it waits for us, and what it is told then restarts its session.
    if member.session_deadline != inf and not member.is_new:
        member.session_deadline = now + member.session_timeout


def _differ(asked: str | None, ours: str | None) -> bool:
    return asked is not None and ours is not None and asked != ours
