"""Requests the input of `health` from a cluster: metadata, min.insync.replicas, log directories of each broker."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any

from kclient.admin.configs import ConfigResource, ResourceType, describe_configs
from kclient.admin.elections import list_reassignments
from kclient.admin.health import Health, health_of
from kclient.admin.log_dirs import describe_log_dirs
from kclient.errors import ClientError, KafkaError
from kclient.net.cluster import Cluster
from kclient.net.waiting import all_settled
from kclient.types import TopicPartition
from kclient.wire.errors import NotController, UnknownTopicOrPartition, UnsupportedVersion

MIN_ISR = "min.insync.replicas"
ANSWER_TIMEOUT_S = 3.0
"""Seconds after which a registered broker counts as not answering; requests are repeated until then."""


async def describe_health(cluster: Cluster, *, timeout: float) -> Health:
    """Return the health of *cluster* as far as its brokers answer; what is unknown is in the report."""
    cluster.want_all()
    metadata = await cluster.retrying(
        cluster.refresh, timeout=timeout, what="metadata of all topics"
    )
    soon = min(timeout, ANSWER_TIMEOUT_S)
    # All at once: each of them may wait for a broker that was killed a moment ago.
    asked: list[Awaitable[Any]] = [
        describe_log_dirs(cluster, metadata.brokers, tps=[], timeout=soon),
        _min_isr_of(cluster, metadata.topics, timeout=soon),
        _replicas_being_added(cluster, timeout=soon),
    ]
    settled: list[Any] = await all_settled(asked)
    directories, min_isr, adding = settled
    unchecked = [
        f"log directories of broker {node} are unknown: {found}"
        for node, found in directories.items()
        if isinstance(found, KafkaError) and not isinstance(found, ClientError | UnsupportedVersion)
    ]
    if isinstance(min_isr, KafkaError):
        unchecked.append(f"min.insync.replicas is unknown: {min_isr}")
        min_isr = {}
    if isinstance(adding, KafkaError):
        # "no controller" is a reason of its own.
        if not (
            isinstance(adding, NotController) and metadata.controller_id not in metadata.brokers
        ):
            unchecked.append(f"reassignments are unknown: {adding}")
        adding = {}
    return health_of(
        metadata,
        min_isr,
        adding=adding,
        offline_log_dirs={
            node: failed
            for node, found in directories.items()
            if not isinstance(found, KafkaError)
            and (failed := tuple(path for path, each in found.items() if each.error is not None))
        },
        silent=[node for node, found in directories.items() if isinstance(found, ClientError)],
        unchecked=unchecked,
    )


async def _min_isr_of(cluster: Cluster, topics: Iterable[str], *, timeout: float) -> dict[str, int]:
    """Return min.insync.replicas of each of *topics* that still exists; raise an error about any other."""
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    answers = await describe_configs(
        cluster, resources, names=[MIN_ISR], documentation=False, timeout=timeout
    )
    found = {}
    for resource, answer in answers.items():
        if isinstance(answer, UnknownTopicOrPartition):
            continue
        if isinstance(answer, KafkaError):
            raise answer
        if MIN_ISR in answer:
            found[resource.name] = int(answer[MIN_ISR].value or 1)
    return found


async def _replicas_being_added(
    cluster: Cluster, *, timeout: float
) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the replicas that reassignments are adding; none if the cluster does not support it."""
    try:
        moving = await list_reassignments(cluster, None, timeout=timeout)
    except UnsupportedVersion:
        return {}
    return {tp: each.adding for tp, each in moving.items() if each.adding}
