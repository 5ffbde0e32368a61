"""A consumer group under every order of events, slow writes and changes of coordinator.

The numbers are those of the invariants in `kbroker.coordinator.group.core.group`.
"""

from dataclasses import replace
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.coordinator.group.core.effects import (
    JoinGroupResult,
    MemberIdentity,
    Sync,
    SyncGroupResult,
    Token,
)
from kbroker.coordinator.group.core.members import member_bytes
from kbroker.coordinator.group.core.states import GroupState
from kclient.wire.error_codes import ErrorCode
from tests.kit.groups import LIMITS, GroupHarness, join_request
from tests.kit.property_tests import examples

NAMES = st.sampled_from(["a", "b", "c", "d"])
PROTOCOLS = st.sampled_from(
    [
        (("range", b"1"), ("sticky", b"1")),
        (("sticky", b"2"), ("range", b"2")),
        (("range", b"3"),),
    ]
)
WITH_MEMBERS = (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)


class Client:
    """One consumer: its state after the responses that it received."""

    def __init__(self, name: str, instance_id: str | None) -> None:
        self.name = name
        self.instance_id = instance_id
        self.forget()

    def forget(self) -> None:
        """Start again, like a process that was killed."""
        self.member_id = ""
        self.generation = -1
        self.members: tuple[str, ...] = ()
        self.token: Token | None = None


class GroupUnderFire(RuleBasedStateMachine):
    """Four clients (one of them static), a clock, and a ZooKeeper that answers when it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = GroupHarness(auto_persist=False)
        self.clients = {n: Client(n, "i" if n == "d" else None) for n in "abcd"}
        self.highest = 0
        self.owners: dict[tuple[int, bytes], str] = {}
        self.serial = 0
        self.syncing: dict[Token, tuple[int, str]] = {}

    @initialize(delay=st.sampled_from([0.0, 3.0]), size=st.sampled_from([3, 100]))
    def begin(self, delay: float, size: int) -> None:
        limits = replace(LIMITS, initial_rebalance_delay=delay, max_size=size)
        self.harness = GroupHarness(limits, auto_persist=False)

    @rule(name=NAMES, protocols=PROTOCOLS, rebalance=st.sampled_from([5.0, 60.0]))
    def client_joins(
        self, name: str, protocols: tuple[tuple[str, bytes], ...], rebalance: float
    ) -> None:
        client = self.clients[name]
        self.serial += 1
        request = join_request(
            name,
            client.member_id,
            fresh_member_id=f"{name}-{self.serial}",
            protocols=protocols,
            rebalance_timeout=rebalance,
            group_instance_id=client.instance_id,
        )
        client.token = self.harness._token()
        self.harness.perform(self.harness.group.join(client.token, request, self.harness.now))
        self.listen()

    @rule(name=NAMES, old=st.booleans())
    def client_syncs(self, name: str, old: bool) -> None:
        client = self.clients[name]
        if not client.member_id:
            return
        generation = client.generation - old
        assignment = {m: f"p{i}".encode() for i, m in enumerate(client.members)}
        token = client.token = self.harness._token()
        self.syncing[token] = (generation, client.instance_id or client.member_id)
        sync = Sync(client.member_id, generation, assignment, client.instance_id)
        self.harness.perform(self.harness.group.sync(token, sync, self.harness.now))
        self.listen()

    @rule(name=NAMES)
    def client_beats(self, name: str) -> None:
        client = self.clients[name]
        error = self.harness.group.heartbeat(
            client.member_id, client.instance_id, client.generation, self.harness.now
        )
        if client.generation != self.harness.group.generation_id:
            assert error is not ErrorCode.NONE  # 5

    @rule(name=NAMES, generation=st.integers(0, 8))
    def client_commits(self, name: str, generation: int) -> None:
        client = self.clients[name]
        group = self.harness.group
        error = group.check_commit(
            client.member_id, client.instance_id, generation, self.harness.now
        )
        if error is ErrorCode.NONE:
            assert generation == group.generation_id  # 5
            assert client.member_id in group.members

    @rule(name=NAMES)
    def client_leaves(self, name: str) -> None:
        client = self.clients[name]
        self.harness.leave(MemberIdentity(client.member_id, client.instance_id))
        client.forget()
        self.listen()

    @rule(name=NAMES)
    def client_is_killed(self, name: str) -> None:
        self.clients[name].forget()

    @rule(seconds=st.sampled_from([0.0, 1.0, 3.0, 9.0, 11.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.harness.advance(seconds)
        self.listen()

    @precondition(lambda self: self.harness.unacknowledged)
    @rule(count=st.integers(1, 3))
    def zookeeper_acknowledges(self, count: int) -> None:
        for _ in range(min(count, len(self.harness.unacknowledged))):
            persist = self.harness.unacknowledged.pop(0)
            self.harness.durable = persist.snapshot
            effects = self.harness.group.persisted(persist.sequence, self.harness.now)
            self.harness.perform(effects)
        self.listen()

    @precondition(lambda self: self.harness.unacknowledged)
    @rule()
    def zookeeper_is_late(self) -> None:
        self.harness.perform(self.harness.group.persist_timed_out(self.harness.now))
        self.listen()

    @rule(applied=st.integers(0, 3))
    def coordinator_moves(self, applied: int) -> None:
        """It was killed, and some of what it had sent to ZooKeeper arrived."""
        for persist in self.harness.unacknowledged[:applied]:
            self.harness.durable = persist.snapshot
        for client in self.clients.values():
            client.token = None
        serial = self.harness._tokens
        self.harness = self.harness.take_over()
        self.harness._tokens = serial
        self.syncing.clear()

    @rule()
    def group_is_let_go(self) -> None:
        self.harness.perform(self.harness.group.unload(ErrorCode.NOT_COORDINATOR))
        assert not self.harness.waiting  # 2
        self.coordinator_moves(0)

    def listen(self) -> None:
        """Give the answers to the clients."""
        durable = self.harness.durable.generation_id if self.harness.durable is not None else 0
        for token, answer in self.harness.answers.items():
            if (
                isinstance(answer, JoinGroupResult | SyncGroupResult)
                and answer.error is ErrorCode.NONE
            ):
                assert isinstance(answer, SyncGroupResult) or answer.generation_id <= durable  # 3
            if (
                isinstance(answer, SyncGroupResult)
                and answer.error is ErrorCode.NONE
                and answer.assignment
            ):
                generation, owner = self.syncing[token]
                assert self.owners.setdefault((generation, answer.assignment), owner) == owner
        for client in self.clients.values():
            answer = self.harness.answers.get(client.token) if client.token is not None else None
            if isinstance(answer, JoinGroupResult):
                client.member_id = answer.member_id or client.member_id
                if answer.error is ErrorCode.NONE:
                    client.generation = answer.generation_id
                    client.members = tuple(m.member_id for m in answer.members)
                elif answer.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                    client.forget()
        self.harness.answers.clear()

    @invariant()
    def generations_only_grow(self) -> None:  # 1
        durable = self.harness.durable
        if durable is not None:
            assert durable.generation_id >= self.highest
            self.highest = durable.generation_id
        assert self.harness.group.generation_id >= self.highest

    @invariant()
    def states_fit_their_members(self) -> None:  # 4, 7
        group = self.harness.group
        members = list(group.members)
        if group.state in WITH_MEMBERS:
            assert members
        if group.state is GroupState.EMPTY:
            assert not members
        if members:
            assert group.members.leader in group.members
        instances = [m.group_instance_id for m in members if m.group_instance_id is not None]
        assert len(instances) == len(set(instances))

    @invariant()
    def a_tick_comes_before_the_first_deadline(self) -> None:  # 6
        group = self.harness.group
        rebalance = group
        waits = min(rebalance.join_deadline, rebalance.sync_deadline)
        first = min(waits, group.members.next_deadline)
        assert first == inf or (self.harness.timer is not None and self.harness.timer <= first)
        if group.state is GroupState.PREPARING_REBALANCE:
            assert rebalance.join_deadline < inf
        if group.state is GroupState.COMPLETING_REBALANCE:
            assert rebalance.sync_deadline < inf

    @invariant()
    def waiting_requests_are_known_to_wait(self) -> None:  # 2
        group = self.harness.group
        parked = {m.awaiting_join for m in group.members} | {m.awaiting_sync for m in group.members}
        held = {answer.token for _, answer, _ in group._out._held}
        assert self.harness.waiting == (parked | held) - {None}

    @invariant()
    def the_room_taken_is_counted(self) -> None:
        members = self.harness.group.members
        sizes = [
            member_bytes(
                m.protocols,
                sum(
                    map(
                        len,
                        (m.member_id, m.group_instance_id or "", m.client_id, m.client_host),
                    )
                ),
            )
            for m in members
        ]
        assert members.state_bytes == sum(sizes)

    def teardown(self) -> None:
        """When ZooKeeper answers and clients are silent, everything is answered and ends."""
        for _ in range(6):
            self.harness.acknowledge()
            self.harness.advance(301.0)
        self.harness.acknowledge()
        assert not self.harness.waiting  # 2, 6
        assert self.harness.group.state in (GroupState.EMPTY, GroupState.DEAD)


TestGroupUnderFire = GroupUnderFire.TestCase
TestGroupUnderFire.settings = settings(
    max_examples=examples(150), stateful_step_count=40, deadline=None
)
