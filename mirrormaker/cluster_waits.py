"""Waits for a cluster of which a broker restarts, or a leader moves.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeVar

from kclient.errors import KafkaError
from kclient.net.cluster import Cluster
from kclient.net.waiting import sleep
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import LeaderNotAvailable
from kclient.wire.schema.metadata import MetadataRequest, MetadataRequestTopic
from kclient.wire.versions import ApiKey
from mirrormaker.catalog import Catalog

T = TypeVar("T")

TIMEOUT = 60.0
"""Seconds for one step at a cluster: the leaders of a broker that was killed move when its session ends, after 18 s."""
POLL = 0.1
"""Seconds between two requests."""
_NO_TOPIC = "kmirror.no-such-topic"


async def until_answered(reactor: Any, ask: Callable[[], Awaitable[T]]) -> T:
    """Return what *ask* returns. Raise its KafkaError if it cannot pass, or after `TIMEOUT`."""
    give_up_at = reactor.seconds() + TIMEOUT
    while True:
        try:
            return await ask()
        except KafkaError as problem:
            if not problem.retriable or reactor.seconds() >= give_up_at:
                raise
        await sleep(reactor, POLL)


async def names_with(
    reactor: Any, catalog: Catalog, names: Collection[str]
) -> tuple[Mapping[str, int], set[str]]:
    """Return `Catalog.names` of a cluster, when those of *names* that it lacks do not exist. Raise KafkaError.

    A broker that has just started does not know its topics yet. If it stays so for `TIMEOUT`, the second result has
    the topics of which that is unknown.
    """
    give_up_at = reactor.seconds() + TIMEOUT
    while True:
        present = await catalog.names()
        absent = {*names} - present.keys()
        unknown = absent - await catalog.deleted(absent)
        if not unknown or reactor.seconds() >= give_up_at:
            return present, unknown
        await sleep(reactor, POLL)


async def names_that_exist(
    reactor: Any, cluster: Cluster, catalog: Catalog, selects: Callable[[str], bool]
) -> tuple[Mapping[str, int], set[str]]:
    """Return `Catalog.names`, when those that the controller has, and *selects* chooses, are among them.

    If a broker that has just started still lacks some after `TIMEOUT`, they are the second result. Raise KafkaError.
    """
    give_up_at = reactor.seconds() + TIMEOUT
    while True:
        # The broker first: a topic that is deleted between the two is not missed.
        present = await catalog.names()
        at_controller = await until_answered(reactor, lambda: _names_at_controller(cluster))
        unknown = {name for name in at_controller - present.keys() if selects(name)}
        if not unknown or reactor.seconds() >= give_up_at:
            return present, unknown
        await sleep(reactor, POLL)


async def _names_at_controller(cluster: Cluster) -> set[str]:
    """Return the topics that the controller has. Raise LeaderNotAvailable if it has just started itself."""
    connection = await cluster.controller()
    # A broker of ours that does not know all topics yet answers so for one that does not exist.
    absent = MetadataRequest(
        [MetadataRequestTopic(name=_NO_TOPIC)], allow_auto_topic_creation=False
    )
    (answer,) = (await connection.request(ApiKey.METADATA, None, absent)).topics
    if answer.error_code == ErrorCode.LEADER_NOT_AVAILABLE:
        raise LeaderNotAvailable("the controller does not know all topics yet")
    everything = MetadataRequest(None, allow_auto_topic_creation=False)
    response = await connection.request(ApiKey.METADATA, None, everything)
    return {each.name for each in response.topics if each.partitions and not each.error_code}
