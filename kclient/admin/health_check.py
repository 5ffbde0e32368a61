"""Requests the input of `health` from a cluster: metadata, min.insync.replicas, log directories of each broker."""

from __future__ import annotations

from collections.abc import Iterable

from kclient.admin.configs import ConfigResource, ResourceType, describe_configs
from kclient.admin.elections import list_reassignments
from kclient.admin.health import Health, health_of
from kclient.admin.log_dirs import describe_log_dirs
from kclient.errors import KafkaError, KafkaTimeoutError
from kclient.net.cluster import Cluster
from kclient.types import TopicPartition
from kclient.wire.errors import NotController, UnsupportedVersion

MIN_ISR = "min.insync.replicas"
ANSWER_TIMEOUT_S = 3.0
"""Seconds after which a registered broker counts as not answering."""


async def describe_health(cluster: Cluster, *, timeout: float) -> Health:
    """Return the health of *cluster*."""
    cluster.want_all()
    metadata = await cluster.refresh()
    directories = await describe_log_dirs(
        cluster, metadata.brokers, tps=[], timeout=min(timeout, ANSWER_TIMEOUT_S)
    )
    return health_of(
        metadata,
        await min_isr_of(cluster, metadata.topics, timeout=timeout),
        adding=await replicas_being_added(cluster, timeout=timeout),
        offline_log_dirs={
            node: failed
            for node, found in directories.items()
            if not isinstance(found, KafkaError)
            and (failed := tuple(path for path, each in found.items() if each.error is not None))
        },
        silent=[
            node
            for node, found in directories.items()
            if isinstance(found, KafkaError) and not isinstance(found, UnsupportedVersion)
        ],
    )


async def min_isr_of(cluster: Cluster, topics: Iterable[str], *, timeout: float) -> dict[str, int]:
    """Return min.insync.replicas of each of *topics* that still exists."""
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    answers = await describe_configs(
        cluster, resources, names=[MIN_ISR], documentation=False, timeout=timeout
    )
    return {
        resource.name: int(found[MIN_ISR].value or 1)
        for resource, found in answers.items()
        if not isinstance(found, KafkaError) and MIN_ISR in found
    }


async def replicas_being_added(
    cluster: Cluster, *, timeout: float
) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the replicas that reassignments are adding; none if the cluster does not support it."""
    try:
        moving = await list_reassignments(cluster, None, timeout=min(timeout, ANSWER_TIMEOUT_S))
    except (UnsupportedVersion, NotController, KafkaTimeoutError):
        return {}
    return {tp: each.adding for tp, each in moving.items() if each.adding}
