"""The ACLs of a cluster with an authorizer (KIP-140), as its brokers return them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

from kclient.errors import KafkaError
from kclient.net.answers import error_of
from kclient.net.cluster import Cluster
from kclient.wire.schema.create_acls import AclCreation, CreateAclsRequest
from kclient.wire.schema.describe_acls import DescribeAclsRequest
from kclient.wire.versions import ApiKey

MOST = 500
"""ACLs of one request."""

_ANY = 1
_TOPIC = 2


class PatternType(IntEnum):
    """How the name of an ACL's resource is compared (KIP-290)."""

    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """What an ACL is about."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class AclPermission(IntEnum):
    """Whether an ACL allows or denies."""

    DENY = 2
    ALLOW = 3


class TopicAcl(NamedTuple):
    """One ACL about topics; numbers that this client does not know stay numbers."""

    name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


async def create_topic_acls(
    cluster: Cluster, acls: Sequence[TopicAcl], *, timeout: float
) -> dict[TopicAcl, KafkaError | None]:
    """Add *acls*; return what the cluster answers to each. One that exists already is no error."""
    answers: dict[TopicAcl, KafkaError | None] = {}

    async def send(request: CreateAclsRequest) -> Any:
        connection = await cluster.any_connection()
        return await connection.request(ApiKey.CREATE_ACLS, None, request, timeout=timeout)

    for first in range(0, len(acls), MOST):
        chosen = acls[first : first + MOST]
        request = CreateAclsRequest([AclCreation(_TOPIC, *acl) for acl in chosen])
        response = await cluster.retrying(
            partial(send, request), timeout=timeout, what="creating ACLs"
        )
        for acl, result in zip(chosen, response.results, strict=True):
            code, message = result.error_code, result.error_message
            answers[acl] = error_of(code, "creating an ACL", message) if code else None
    return answers


async def describe_topic_acls(cluster: Cluster, *, timeout: float) -> list[TopicAcl]:
    """Return all ACLs about topics. Raise KafkaError; `SecurityDisabled` if the cluster has no authorizer."""
    request = DescribeAclsRequest(_TOPIC, None, _ANY, None, None, _ANY, _ANY)

    async def send() -> Any:
        connection = await cluster.any_connection()
        response = await connection.request(ApiKey.DESCRIBE_ACLS, None, request, timeout=timeout)
        if response.error_code:
            raise error_of(response.error_code, "describing ACLs", response.error_message)
        return response.resources

    resources = await cluster.retrying(send, timeout=timeout, what="describing ACLs")
    return sorted(
        TopicAcl(
            each.resource_name,
            each.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for each in resources
        for acl in each.acls
    )
