"""The admin client of the asyncio API: the methods of `kclient.admin.client`, as coroutines."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from twisted.internet.defer import Deferred

from kclient.admin.client import AdminClient as Core
from kclient.aio.event_loop import ClientLoop

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(
    method: Callable[Concatenate[Core, P], Deferred[T]],
) -> Callable[Concatenate[AdminClient, P], Coroutine[Any, Any, T]]:
    """Return *method* of the core as a coroutine method, with its parameters and its docstring."""

    @functools.wraps(method)
    async def awaited(self: AdminClient, /, *args: P.args, **keywords: P.kwargs) -> T:
        return await self._loop.wait(method(self._checked(), *args, **keywords))

    return awaited


class AdminClient:
    """Administers one cluster; see `kclient.admin.client.AdminClient` for arguments and results.

    async with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
        await admin.create_topics({"payments": {"num_partitions": 6}})
        print(await admin.list_topics())
    """

    def __init__(
        self, config: Mapping[str, Any] | None = None, *, reactor: Any = None, **keywords: Any
    ) -> None:
        self._loop = ClientLoop("AdminClient", reactor)
        self._core = Core(config, reactor=self._loop.reactor, **keywords)

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _checked(self) -> Core:
        self._loop.check()
        return self._core

    async def start(self) -> Self:
        """Connect and fetch metadata; raise `BootstrapError` with each address and its cause if that fails."""
        await self._loop.wait(self._checked().start())
        return self

    async def close(self) -> None:
        """Close all connections."""
        await self._loop.wait(self._checked().close())
        self._loop.leave()

    stop = close

    def metrics(self) -> dict[str, float]:
        """Return the number of open connections, and of requests since the start."""
        return self._core.metrics()

    describe_cluster = _awaited(Core.describe_cluster)
    describe_health = _awaited(Core.describe_health)
    describe_log_dirs = _awaited(Core.describe_log_dirs)
    alter_replica_log_dirs = _awaited(Core.alter_replica_log_dirs)
    list_topics = _awaited(Core.list_topics)
    describe_topics = _awaited(Core.describe_topics)
    create_topics = _awaited(Core.create_topics)
    delete_topics = _awaited(Core.delete_topics)
    create_partitions = _awaited(Core.create_partitions)
    wait_for_topics = _awaited(Core.wait_for_topics)
    elect_leaders = _awaited(Core.elect_leaders)
    alter_partition_reassignments = _awaited(Core.alter_partition_reassignments)
    list_partition_reassignments = _awaited(Core.list_partition_reassignments)
    describe_configs = _awaited(Core.describe_configs)
    alter_configs = _awaited(Core.alter_configs)
    describe_client_quotas = _awaited(Core.describe_client_quotas)
    alter_client_quotas = _awaited(Core.alter_client_quotas)
    list_offsets = _awaited(Core.list_offsets)
    list_epoch_ends = _awaited(Core.list_epoch_ends)
    delete_records = _awaited(Core.delete_records)
    list_groups = _awaited(Core.list_groups)
    describe_groups = _awaited(Core.describe_groups)
    delete_groups = _awaited(Core.delete_groups)
    remove_group_members = _awaited(Core.remove_group_members)
    list_group_offsets = _awaited(Core.list_group_offsets)
    alter_group_offsets = _awaited(Core.alter_group_offsets)
    delete_group_offsets = _awaited(Core.delete_group_offsets)
    describe_producers = _awaited(Core.describe_producers)
    describe_transactions = _awaited(Core.describe_transactions)
    fence_producers = _awaited(Core.fence_producers)
    list_transactions = _awaited(Core.list_transactions)
    find_hanging_transactions = _awaited(Core.find_hanging_transactions)
    abort_transaction = _awaited(Core.abort_transaction)
