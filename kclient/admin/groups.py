"""Consumer groups: listed at every broker; described, deleted, and their offsets deleted, at the coordinator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kclient.errors import KafkaError
from kclient.net.answers import error_of
from kclient.net.cluster import Cluster
from kclient.net.connection import Connection
from kclient.net.group_offsets import (
    by_topic,
    partition_answers,
    raise_if_coordinator_moved,
    retry_coordinator,
)
from kclient.net.waiting import all_of, settled_by
from kclient.types import TopicPartition
from kclient.wire.errors import ErrorCode, MalformedMessage
from kclient.wire.messages import decode_consumer_protocol
from kclient.wire.schema.consumer_protocol_assignment import ConsumerProtocolAssignment
from kclient.wire.schema.delete_groups import DeleteGroupsRequest
from kclient.wire.schema.describe_groups import DescribeGroupsRequest
from kclient.wire.schema.leave_group import LeaveGroupRequest, MemberIdentity
from kclient.wire.schema.list_groups import ListGroupsRequest
from kclient.wire.schema.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kclient.wire.versions import ApiKey


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A listed group; *state* is "" if the broker is too old to return it (before KIP-518).

    print([group.group_id for group in admin.list_groups(states=["Stable"])])
    """

    group_id: str
    protocol_type: str
    state: str = ""
    type: str = ""
    coordinator: int = -1


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member and its assignment.

    for member in admin.describe_groups(["billing"])["billing"].members:
        print(member.client_id, member.host, *member.assignment)
    """

    member_id: str
    client_id: str
    host: str
    group_instance_id: str | None = None
    assignment: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as its coordinator describes it; state Dead means that the group does not exist.

    group = admin.describe_groups(["billing"])["billing"]
    print(group.state, len(group.members))
    """

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: int
    members: tuple[GroupMember, ...] = field(default=())


async def list_groups(
    cluster: Cluster, *, states: Iterable[str], timeout: float
) -> list[GroupListing]:
    """Return the groups of every broker, by name; *states* limits them (KIP-518).

    Raise if a broker does not answer, because the list would be incomplete.
    """
    await cluster.retrying(cluster.start, timeout=timeout, what="listing groups")
    wanted = list(states)

    async def one(node: int) -> list[GroupListing]:
        async def attempt() -> list[GroupListing]:
            response = await cluster.request(
                node, ApiKey.LIST_GROUPS, ListGroupsRequest(states_filter=wanted)
            )
            if response.error_code:
                raise error_of(response.error_code, f"groups of broker {node}")
            return [
                GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type, node)
                for g in response.groups
            ]

        return await cluster.retrying(attempt, timeout=timeout, what=f"groups of broker {node}")

    results = await all_of(one(node) for node in sorted(cluster.metadata.brokers))
    return sorted((g for groups in results for g in groups), key=lambda g: g.group_id)


async def describe_groups(
    cluster: Cluster, groups: Iterable[str], *, timeout: float
) -> dict[str, GroupDescription | KafkaError]:
    """Return state and members of each group."""

    async def one(group: str) -> GroupDescription | KafkaError:
        async def send(connection: Connection) -> GroupDescription | KafkaError:
            response = await connection.request(
                ApiKey.DESCRIBE_GROUPS, None, DescribeGroupsRequest(groups=[group])
            )
            answer = response.groups[0]
            raise_if_coordinator_moved(answer.error_code, group)
            if answer.error_code:
                return error_of(answer.error_code, f"group {group!r}")
            known = cluster.coordinators.known(group)
            return _description(answer, known[0] if known else -1)

        return await retry_coordinator(
            cluster, group, send, timeout=timeout, what=f"describing group {group!r}"
        )

    return await settled_by(groups, one)


async def delete_groups(
    cluster: Cluster, groups: Iterable[str], *, timeout: float
) -> dict[str, KafkaError | None]:
    """Delete groups without members, and their offsets."""

    async def one(group: str) -> KafkaError | None:
        async def send(connection: Connection) -> KafkaError | None:
            response = await connection.request(
                ApiKey.DELETE_GROUPS, None, DeleteGroupsRequest(groups_names=[group])
            )
            code = response.results[0].error_code
            raise_if_coordinator_moved(code, group)
            return error_of(code, f"group {group!r}") if code else None

        return await retry_coordinator(
            cluster, group, send, timeout=timeout, what=f"deleting group {group!r}"
        )

    return await settled_by(groups, one)


async def remove_group_members(
    cluster: Cluster,
    group: str,
    members: Iterable[str | GroupMember] | None,
    *,
    reason: str,
    timeout: float,
) -> dict[str, KafkaError | None]:
    """Remove members, or all that there are; a group instance id stands for a static member (KIP-345, KIP-571).

    The keys of the answers are group instance ids, and member ids of members without one.
    """
    everyone = members is None
    if members is None:
        described = (await describe_groups(cluster, [group], timeout=timeout))[group]
        if isinstance(described, KafkaError):
            raise described
        members = described.members
    leaving = {
        each.group_instance_id or each.member_id: each
        for each in (_identity(member, reason) for member in members)
    }
    if not leaving:
        return {}
    request = LeaveGroupRequest(group_id=group, members=list(leaving.values()))

    async def send(connection: Connection) -> dict[str, KafkaError | None]:
        response = await connection.request(ApiKey.LEAVE_GROUP, None, request)
        raise_if_coordinator_moved(response.error_code, group)
        if response.error_code:
            raise error_of(response.error_code, f"group {group!r}")
        answers: dict[str, KafkaError | None] = dict.fromkeys(leaving)
        for member in response.members:
            name, code = member.group_instance_id or member.member_id, member.error_code
            left_meanwhile = everyone and code == ErrorCode.UNKNOWN_MEMBER_ID
            if code and not left_meanwhile:
                answers[name] = error_of(code, f"member {name!r} of group {group!r}")
        return answers

    return await retry_coordinator(
        cluster, group, send, timeout=timeout, what=f"removing members of group {group!r}"
    )


def _identity(member: str | GroupMember, reason: str) -> MemberIdentity:
    why = f"member was removed by an admin{': ' * bool(reason)}{reason}"
    if isinstance(member, str):
        return MemberIdentity(group_instance_id=member, reason=why)
    if member.group_instance_id:
        return MemberIdentity(group_instance_id=member.group_instance_id, reason=why)
    return MemberIdentity(member_id=member.member_id, reason=why)


async def delete_group_offsets(
    cluster: Cluster, group: str, tps: Iterable[TopicPartition], *, timeout: float
) -> dict[TopicPartition, KafkaError | None]:
    """Delete the offsets of partitions that no member is subscribed to (KIP-496)."""
    request = OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequestTopic(
                name=topic, partitions=[OffsetDeleteRequestPartition(p) for p in partitions]
            )
            for topic, partitions in by_topic(tps).items()
        ],
    )

    async def send(connection: Connection) -> dict[TopicPartition, KafkaError | None]:
        response = await connection.request(ApiKey.OFFSET_DELETE, None, request)
        if response.error_code:
            raise error_of(response.error_code, f"group {group!r}")
        return partition_answers(response.topics, group)

    return await retry_coordinator(
        cluster, group, send, timeout=timeout, what=f"deleting offsets of group {group!r}"
    )


def _description(answer: Any, coordinator: int) -> GroupDescription:
    return GroupDescription(
        answer.group_id,
        answer.group_state,
        answer.protocol_type,
        answer.protocol_data,
        coordinator,
        tuple(
            GroupMember(
                m.member_id,
                m.client_id,
                m.client_host,
                m.group_instance_id,
                _assigned(m.member_assignment),
            )
            for m in answer.members
        ),
    )


def _assigned(data: bytes) -> tuple[TopicPartition, ...]:
    """Parse a member's assignment; empty for another protocol than the consumer's."""
    if not data:
        return ()
    try:
        _version, assignment = decode_consumer_protocol(ConsumerProtocolAssignment, data)
    except MalformedMessage:
        return ()
    return tuple(
        sorted(
            TopicPartition(t.topic, p) for t in assignment.assigned_partitions for p in t.partitions
        )
    )
