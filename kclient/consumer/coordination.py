"""The four requests of a group member to its coordinator: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

JoinGroup v2-9 (v4 MEMBER_ID_REQUIRED, KIP-394; v5 group.instance.id, KIP-345; v8 reason, KIP-800; v9 skip_assignment,
KIP-814), SyncGroup v1-5, Heartbeat v1-4, LeaveGroup v1-5. Each is sent once. An error code raises its class; a
coordinator that answers NOT_COORDINATOR is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kclient.config import ConsumerConfig
from kclient.consumer.assignors import Strategy
from kclient.consumer.positions import OFFSETS_CHANNEL
from kclient.consumer.protocol import PROTOCOL_TYPE, encode_assignment, encode_subscription
from kclient.net.answers import error_of
from kclient.net.cluster import Cluster
from kclient.net.connection import Connection
from kclient.net.group_offsets import Generation, request_coordinator
from kclient.types import TopicPartition
from kclient.wire.errors import ErrorCode, MemberIdRequired
from kclient.wire.schema.heartbeat import HeartbeatRequest
from kclient.wire.schema.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kclient.wire.schema.leave_group import LeaveGroupRequest
from kclient.wire.schema.leave_group import MemberIdentity as LeavingMember
from kclient.wire.schema.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kclient.wire.versions import ApiKey

_CHANNEL = "group"
"""A coordinator may hold a JoinGroup for minutes; commits must not wait behind it."""
_LAPSE_S = 5.0
"""Seconds that a JoinGroup response may take beyond the rebalance timeout, as in Kafka's client."""


class MemberIdAssigned(MemberIdRequired):
    """The coordinator assigned a member id; the client must join again with it."""

    def __init__(self, member_id: str) -> None:
        super().__init__()
        self.member_id = member_id


class CoordinatorRequests:
    """Sends the requests of one member; keeps no state beside the settings."""

    def __init__(self, cluster: Cluster, config: ConsumerConfig) -> None:
        self._cluster = cluster
        self._config = config
        self._group = config.group_id
        self.instance_id = config.group_instance_id or None

    async def join(
        self,
        member: Generation,
        strategies: Sequence[Strategy],
        topics: Iterable[str],
        owned: Iterable[TopicPartition],
        reason: str,
    ) -> Any:
        """Join; return the response, which arrives when all members have joined or the rebalance timeout has passed.

        Raise `MemberIdAssigned` if the coordinator requires another JoinGroup with the member id in its response
        (KIP-394).
        """
        rebalance_ms = self._config.rebalance_timeout_ms or self._config.max_poll_interval_ms
        metadata = encode_subscription(topics, owned, member.generation_id)
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=self._config.session_timeout_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member.member_id,
            group_instance_id=self.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequestProtocol(name=strategy.name, metadata=metadata)
                for strategy in strategies
            ],
            reason=reason,
        )
        timeout = max(self._config.request_timeout_ms, rebalance_ms) / 1000 + _LAPSE_S
        return await self._send(ApiKey.JOIN_GROUP, request, "join", timeout)

    async def sync(
        self,
        member: Generation,
        strategy: str,
        assignments: Mapping[str, Iterable[TopicPartition]],
    ) -> bytes:
        """Send the leader's assignments (other members send none); return this member's assignment."""
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=member.generation_id,
            member_id=member.member_id,
            group_instance_id=self.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=strategy,
            assignments=[
                SyncGroupRequestAssignment(member_id=name, assignment=encode_assignment(partitions))
                for name, partitions in assignments.items()
            ],
        )
        response = await self._send(ApiKey.SYNC_GROUP, request, "sync", None)
        return bytes(response.assignment)

    async def heartbeat(self, member: Generation) -> None:
        """Send a heartbeat; raise the error in its response."""
        request = HeartbeatRequest(
            group_id=self._group,
            generation_id=member.generation_id,
            member_id=member.member_id,
            group_instance_id=self.instance_id,
        )
        timeout = self._config.session_timeout_ms / 1000
        await self._send(ApiKey.HEARTBEAT, request, "heartbeat", timeout)

    async def leave(self, member: Generation, reason: str) -> None:
        """Leave the group, so that it rebalances at once.

        Not behind a JoinGroup that the coordinator holds: the other members would wait for this one.
        """
        request = LeaveGroupRequest(
            group_id=self._group,
            member_id=member.member_id,
            members=[LeavingMember(member_id=member.member_id, reason=reason)],
        )
        await self._send(ApiKey.LEAVE_GROUP, request, "leaving", 5.0, OFFSETS_CHANNEL)

    async def _send(
        self,
        api_key: ApiKey,
        request: Any,
        what: str,
        timeout: float | None,
        channel: str = _CHANNEL,
    ) -> Any:
        async def send(connection: Connection) -> Any:
            response = await connection.request(api_key, None, request, timeout=timeout)
            if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                raise MemberIdAssigned(response.member_id)
            if response.error_code:
                raise error_of(response.error_code, f"{what} of group {self._group!r}")
            return response

        return await request_coordinator(self._cluster, self._group, send, channel=channel)
