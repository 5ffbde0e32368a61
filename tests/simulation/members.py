"""Members of consumer groups, commits without a member, and fetches of committed offsets.

Every member is a process of its own: it crashes, pauses and comes back like one. It uses the group protocol over
real connections (`kclient.net.connection`): FindCoordinator, JoinGroup, SyncGroup, Heartbeat, OffsetCommit, LeaveGroup;
the member that is elected assigns by range. Every answer goes to `group_rules.py`. A part of all requests goes to any
broker that acts as coordinator, so that a deposed coordinator receives some.
"""

from __future__ import annotations

from random import Random
from typing import Any

from twisted.internet.defer import Deferred

from kbroker.common.internal_topics import OFFSETS_TOPIC
from kbroker.coordinator.placement import partition_for
from kclient.consumer.assignors import assign_range
from kclient.consumer.protocol import (
    PROTOCOL_TYPE,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kclient.errors import Address
from kclient.net.connection import Connection
from kclient.types import TopicPartition
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import KafkaError
from kclient.wire.schema.find_coordinator import FindCoordinatorRequest
from kclient.wire.schema.heartbeat import HeartbeatRequest
from kclient.wire.schema.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from kclient.wire.schema.leave_group import LeaveGroupRequest, MemberIdentity
from kclient.wire.schema.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kclient.wire.schema.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kclient.wire.schema.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kclient.wire.versions import ApiKey
from tests.simulation.clock import Process
from tests.simulation.cluster_access import ClusterAccess
from tests.simulation.group_events import DELETED_TOPIC, OF_DELETED_TOPIC
from tests.simulation.network import Network
from tests.simulation.node import PORT

TOPIC = "a"
"""What members subscribe to, and what is committed: the topic that is never deleted."""
DELETED_PARTITIONS = 2
"""Of `DELETED_TOPIC`, whenever it exists."""

SESSION_MS, STATIC_SESSION_MS = 3000, 6000
REBALANCE_MS = 2500
"""Less than a static member's session: it may miss a rebalance and keep its membership."""
HEARTBEAT = (0.4, 0.9)
PAUSE = (0.1, 0.4)
CONNECT_SECONDS = 2.0
REQUEST_SECONDS = 3.0
JOIN_SECONDS = 12.0
PROTOCOL = "range"

LOOK_AGAIN = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
"""Errors after which a member keeps what it is and looks for its coordinator."""


def topic_of(group: str) -> str:
    """Return the topic that offsets of *group* are committed for."""
    return DELETED_TOPIC if group == OF_DELETED_TOPIC else TOPIC


class Peer:
    """A process outside of the cluster that sends requests to the coordinator of one group."""

    def __init__(self, groups: Groups, group: str, name: str) -> None:
        self.groups, self.group, self.name = groups, group, name
        self.rng = Random(groups.rng.getrandbits(64))
        self.process = Process(groups.clients.process.scheduler, f"{name} of {group}", self.rng)
        self.coordinator: int | None = None
        self._dial = groups.network.dialler(self.process, groups.node)
        self._connection: tuple[int, Connection] | None = None

    def __repr__(self) -> str:
        return f"{self.name} of {self.group}"

    async def ask(
        self, node: int, api: ApiKey, version: int, request: Any, timeout: float = REQUEST_SECONDS
    ) -> Any:
        """Return a broker's answer; KafkaError if there is none."""
        if self._connection is not None:
            there, connection = self._connection
            if there == node and connection.closed is None:
                return await connection.request(api, version, request, timeout=timeout)
            connection.close()
        connection = await self._dial(
            self.process,
            Address(f"node{node}", PORT),
            client_id=self.name,
            connect_timeout=CONNECT_SECONDS,
            request_timeout=REQUEST_SECONDS,
        )
        self._connection = node, connection
        return await connection.request(api, version, request, timeout=timeout)

    async def find(self) -> int:
        """Return the coordinator, once one is known."""
        while self.coordinator is None:
            acting_coordinator = self.groups.acting_coordinator(self.group, self.rng)
            if acting_coordinator is not None and self.rng.random() < 0.2:
                self.coordinator = acting_coordinator
                break
            if not self.groups.rules.partitions:
                await self.pause(*PAUSE)  # it would be created now, whichever brokers are alive
                continue
            node = self.rng.choice(list(self.groups.clients.nodes))
            request = FindCoordinatorRequest(coordinator_keys=[self.group])
            try:
                answer = (await self.ask(node, ApiKey.FIND_COORDINATOR, 4, request)).coordinators[0]
                if not answer.error_code:
                    self.coordinator = answer.node_id
                    break
            except KafkaError:
                pass
            await self.pause(*PAUSE)
        return self.coordinator

    async def pause(self, low: float, high: float) -> None:
        waiting: Deferred[None] = Deferred()
        self.process.callLater(self.rng.uniform(low, high), waiting.callback, None)
        await waiting

    async def commit(
        self,
        partitions: list[TopicPartition],
        member: str,
        generation: int,
        instance: str | None = None,
    ) -> ErrorCode:
        """Commit a new offset of every one of *partitions*; return the first error."""
        rules = self.groups.rules
        node = await self.find()
        commits = rules.commit_begins(self.group, member or self.name, generation, partitions)
        parts = [
            OffsetCommitRequestPartition(tp.partition, commit.offset)
            for tp, commit in commits.items()
        ]
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            group_instance_id=instance,
            topics=[OffsetCommitRequestTopic(topic_of(self.group), parts)],
        )
        answer = await self.ask(node, ApiKey.OFFSET_COMMIT, 8, request)
        first = ErrorCode.NONE
        for tp, part in zip(partitions, answer.topics[0].partitions, strict=True):
            error = ErrorCode(part.error_code)
            rules.commit_ends(self.group, tp, commits[tp], error)
            first = first or error
        self.groups.committed += not first
        return first

    async def fetch(self, node: int) -> ErrorCode:
        """Ask a broker for the committed offsets of the group."""
        rules, partitions = self.groups.rules, self.groups.partitions_of(self.group)
        floors = rules.fetch_begins(self.group, partitions)
        wanted = [
            OffsetFetchRequestTopics(topic_of(self.group), [tp.partition for tp in partitions])
        ]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(self.group, topics=wanted)])
        answer = (await self.ask(node, ApiKey.OFFSET_FETCH, 8, request)).groups[0]
        if not answer.error_code:
            found = {
                TopicPartition(topic.name, part.partition_index): part.committed_offset
                for topic in answer.topics
                for part in topic.partitions
            }
            rules.fetch_ends(self.group, floors, found)
            self.groups.clients.trace(f"{self!r}: broker {node} answers {list(found.values())}")
            self.groups.fetched += 1
        return ErrorCode(answer.error_code)


class Member(Peer):
    """A member of a group, from its start to its end."""

    def __init__(self, groups: Groups, group: str, name: str, instance: str | None) -> None:
        super().__init__(groups, group, name)
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.partitions: list[TopicPartition] = []
        self.stable = False
        self.commits = 0
        """How many are to be sent still."""
        self.leaving = False
        self.rejoins = False
        self.resyncs = False
        self.over = False
        """Whether it left, or another member took its instance id."""
        self._version = self.rng.choice((9, 9, 5))

    @property
    def live(self) -> bool:
        return self.process.alive and not self.over

    async def run(self) -> None:
        """Be a member until it is over."""
        while not self.over:
            try:
                node = await self.find()
                if self.leaving:
                    await self._leave(node)
                elif not self.stable or self.rejoins:
                    self.rejoins = False
                    await self._join(node)
                elif self.resyncs:
                    self.resyncs = False
                    await self._sync(node, JoinGroupResponse())
                elif self.commits:
                    self.commits -= 1
                    self._judge(await self._commit())
                else:
                    await self._beat(node)
                    await self.pause(*HEARTBEAT)
            except KafkaError:
                self.coordinator = None
                await self.pause(*PAUSE)

    async def _commit(self) -> ErrorCode:
        if not self.partitions:
            return ErrorCode.NONE
        return await self.commit(self.partitions, self.member_id, self.generation, self.instance)

    def _judge(self, error: ErrorCode) -> bool:
        """Handle the error of an answer; return whether there was none."""
        if error in LOOK_AGAIN:
            self.coordinator = None
        elif error is ErrorCode.FENCED_INSTANCE_ID:
            self.over = True
        elif error is not ErrorCode.NONE:
            self.stable = False
            if error is ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
                self.generation = -1
            elif error is ErrorCode.ILLEGAL_GENERATION:
                self.generation = -1
        if error is not ErrorCode.NONE:
            self.groups.clients.trace(f"{self!r}: {error.name}")
        return error is ErrorCode.NONE

    async def _join(self, node: int) -> None:
        rules = self.groups.rules
        begun_in = rules.group(self.group).generation
        metadata = encode_subscription([TOPIC], [], -1)
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=STATIC_SESSION_MS if self.instance else SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(PROTOCOL, metadata)],
        )
        answer = await self.ask(node, ApiKey.JOIN_GROUP, self._version, request, JOIN_SECONDS)
        error = ErrorCode(answer.error_code)
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif self._judge(error):
            self.member_id, self.generation = answer.member_id, answer.generation_id
            rules.joined(self.group, begun_in, self.generation, self.member_id, answer.leader)
            self.stable = False  # until the assignment is there: without an answer it joins again, as clients do
            await self._sync(node, answer)
        else:
            await self.pause(*PAUSE)

    async def _sync(self, node: int, joined: JoinGroupResponse) -> None:
        rules = self.groups.rules
        begun_in = rules.group(self.group).generation
        assignments = []
        if joined.leader == self.member_id and not joined.skip_assignment:
            members = {m.member_id: decode_subscription(m.metadata) for m in joined.members}
            assigned = assign_range({TOPIC: len(self.groups.partitions)}, members)
            assignments = [
                SyncGroupRequestAssignment(member, encode_assignment(partitions))
                for member, partitions in assigned.items()
            ]
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=PROTOCOL,
            assignments=assignments,
        )
        answer = await self.ask(node, ApiKey.SYNC_GROUP, 5, request, JOIN_SECONDS)
        if self._judge(ErrorCode(answer.error_code)):
            rules.synced(self.group, begun_in, self.generation, self.member_id, answer.assignment)
            self.partitions = decode_assignment(answer.assignment)
            self.stable = True
            self.groups.clients.trace(f"{self!r} owns {self.partitions} in {self.generation}")

    async def _beat(self, node: int) -> None:
        rules = self.groups.rules
        before = rules.holds_later(node, self.group, self.generation)
        request = HeartbeatRequest(self.group, self.generation, self.member_id, self.instance)
        answer = await self.ask(node, ApiKey.HEARTBEAT, 4, request)
        error = ErrorCode(answer.error_code)
        rules.heartbeat_ends(node, self.group, self.generation, before, error)
        self._judge(error)

    async def _leave(self, node: int) -> None:
        members = [MemberIdentity(self.member_id, self.instance)]
        answer = await self.ask(
            node, ApiKey.LEAVE_GROUP, 4, LeaveGroupRequest(group_id=self.group, members=members)
        )
        if answer.error_code:
            self._judge(ErrorCode(answer.error_code))
            await self.pause(*PAUSE)
        else:
            self.over = True


class Groups:
    """All groups, as a script moves them."""

    def __init__(self, clients: ClusterAccess, network: Network, node: int) -> None:
        self.clients, self.network, self.node = clients, network, node
        self.rules = clients.observer.groups
        self.rng = Random(clients.process._rng.getrandbits(64))
        self.committed = self.fetched = 0
        self._members: dict[tuple[str, str], Member] = {}
        self._names: dict[str, None] = {}
        self._open: dict[int, str] = {}
        """What is to be answered before the end, by number."""
        self._number = 0

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that members share."""
        return [TopicPartition(TOPIC, n) for n in range(self.clients.topics.get(TOPIC, 0))]

    def partitions_of(self, group: str) -> list[TopicPartition]:
        """Return the partitions that offsets of *group* are fetched for."""
        if group == OF_DELETED_TOPIC:
            return [TopicPartition(DELETED_TOPIC, n) for n in range(DELETED_PARTITIONS)]
        return self.partitions

    # -- verbs of scripts

    def member(self, group: str, name: str, instance: str | None) -> None:
        """Start a member, unless there is one of that name."""
        known = self._members.get((group, name))
        if known is None or not known.live:
            self._need(group)
            member = self._members[group, name] = Member(self, group, name, instance)
            self._start(member.run())

    def leave(self, group: str, name: str) -> None:
        if (member := self._live(group, name)) is not None:
            member.leaving = True

    def crash(self, group: str, name: str) -> None:
        if (member := self._live(group, name)) is not None:
            member.process.kill()
            self.network.process_ended(member.process)

    def freeze(self, group: str, name: str) -> None:
        if (member := self._live(group, name)) is not None:
            member.process.pause()

    def thaw(self, group: str, name: str) -> None:
        if (member := self._live(group, name)) is not None:
            member.process.resume()

    def rejoin(self, group: str, name: str, node: int | None = None) -> None:
        """Have a member send JoinGroup though nothing has changed, to a broker or to its coordinator."""
        if (member := self._live(group, name)) is not None:
            member.rejoins = True
            member.coordinator = node or member.coordinator

    def resync(self, group: str, name: str, node: int | None = None) -> None:
        """Have a member send SyncGroup for the generation it is in, to a broker or to its coordinator."""
        if (member := self._live(group, name)) is not None and member.stable:
            member.resyncs = True
            member.coordinator = node or member.coordinator

    def commit(self, group: str, name: str, count: int) -> None:
        if (member := self._live(group, name)) is not None:
            member.commits += count

    def solo(self, group: str, count: int) -> None:
        """Commit without a member, each until it is acknowledged, or its topic does not exist."""
        if self.partitions_of(group):
            self._need(group)
            for _ in range(count):
                self._until_answered(group, "committer", self._commit_alone)

    def fetch(self, group: str, node: int | None = None) -> None:
        """Ask for the offsets of a group, once: a broker, or one that acts as coordinator."""
        if node is None:
            node = self.acting_coordinator(group, self.rng)
        if node is not None and self.partitions_of(group):
            self._start(self._fetch_once(Peer(self, group, "asker"), node))

    def heal(self) -> None:
        """Let everything go on, and have every group show that it works."""
        for member in self._members.values():
            if member.live:
                member.process.resume()
                member.commits = max(member.commits, 1)
        for group in self._names:
            self._until_answered(group, "asker", self._fetch)

    # -- what is still under way

    @property
    def unfinished(self) -> str | None:
        """Return what a group still waits for."""
        for group in self._names:
            missing = self._not_settled(group)
            if missing is not None:
                return missing
        if (outlived := self.rules.outlived()) is not None:
            return outlived
        return next(iter(self._open.values()), None)

    def _not_settled(self, group: str) -> str | None:
        members = [m for (name, _), m in self._members.items() if name == group and m.live]
        for member in members:
            if not member.stable or member.commits or member.rejoins or member.leaving:
                return f"{member!r} is in generation {member.generation}, stable {member.stable}"
        if members and sorted(tp for m in members for tp in m.partitions) != self.partitions:
            return f"group {group} owns {[m.partitions for m in members]}"
        return self.rules.not_settled(group, {m.member_id: m.generation for m in members})

    def acting_coordinator(self, group: str, rng: Random) -> int | None:
        """Return a broker that acts as coordinator of a group, mostly the coordinator itself."""
        partitions = self.rules.partitions
        if not partitions:
            return None
        return self.clients.leader(OFFSETS_TOPIC, partition_for(group, partitions), rng)

    # -- the work

    def _need(self, group: str) -> None:
        self.clients.coordinate()
        self._names[group] = None

    def _live(self, group: str, name: str) -> Member | None:
        member = self._members.get((group, name))
        return member if member is not None and member.live else None

    def _start(self, work: Any) -> None:
        Deferred.fromCoroutine(work).addErrback(self.clients.failed)

    def _until_answered(self, group: str, name: str, work: Any) -> None:
        self._number += 1
        self._open[self._number] = f"{name} of {group} waits for an answer"
        self._start(self._repeat(Peer(self, group, name), work, self._number))

    async def _repeat(self, peer: Peer, work: Any, number: int) -> None:
        while True:
            try:
                if await work(peer) is ErrorCode.NONE:
                    break
            except KafkaError:
                pass
            peer.coordinator = None
            await peer.pause(*PAUSE)
        del self._open[number]

    async def _commit_alone(self, peer: Peer) -> ErrorCode:
        partitions = self.partitions_of(peer.group)
        if peer.group != OF_DELETED_TOPIC:
            return await peer.commit(partitions, "", -1)
        # The other partition keeps what it has: an offset of before the deletion, if that was not deleted.
        error = await peer.commit([peer.rng.choice(partitions)], "", -1)
        return ErrorCode.NONE if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else error

    async def _fetch(self, peer: Peer) -> ErrorCode:
        if self._not_settled(peer.group) is not None:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return await peer.fetch(await peer.find())

    async def _fetch_once(self, peer: Peer, node: int) -> None:
        try:
            await peer.fetch(node)
        except KafkaError as error:
            self.clients.trace(f"{peer!r}: broker {node}: {error}")
