"""The blocking admin client: the methods of `kclient.admin.client`, which wait for the result."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from twisted.internet.defer import Deferred

from kclient.admin.client import AdminClient as Core
from kclient.blocking.thread import check_process, reactor_thread

P = ParamSpec("P")
T = TypeVar("T")


def _waiting(
    method: Callable[Concatenate[Core, P], Deferred[T]],
) -> Callable[Concatenate[AdminClient, P], T]:
    """Return *method* of the core as a method that waits, with its parameters and its docstring."""

    @functools.wraps(method)
    def waiting(self: AdminClient, /, *args: P.args, **keywords: P.kwargs) -> T:
        return self._run(lambda: method(self._core, *args, **keywords))

    return waiting


class AdminClient:
    """Administers one cluster; see `kclient.admin.client.AdminClient` for arguments and results.

        with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
            admin.create_topics({"payments": {"num_partitions": 6}})

    Methods about several topics, groups or brokers return a dictionary of results. An error of one of them is raised,
    or with raise_errors=False is its result.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        self._thread = reactor_thread()
        self._core = Core(config, reactor=self._thread.reactor, **keywords)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self, call: Callable[[], Deferred[T]]) -> T:
        check_process(self._thread)
        return self._thread.run(call)

    def start(self) -> Self:
        """Connect and fetch metadata; raise `BootstrapError` with each address and its cause if that fails."""
        self._run(self._core.start)
        return self

    def close(self) -> None:
        """Close all connections."""
        self._run(self._core.close)

    def metrics(self) -> dict[str, float]:
        """Return the number of open connections, and of requests since the start."""
        return self._core.metrics()

    describe_cluster = _waiting(Core.describe_cluster)
    describe_health = _waiting(Core.describe_health)
    describe_log_dirs = _waiting(Core.describe_log_dirs)
    alter_replica_log_dirs = _waiting(Core.alter_replica_log_dirs)
    list_topics = _waiting(Core.list_topics)
    describe_topics = _waiting(Core.describe_topics)
    create_topics = _waiting(Core.create_topics)
    delete_topics = _waiting(Core.delete_topics)
    create_partitions = _waiting(Core.create_partitions)
    wait_for_topics = _waiting(Core.wait_for_topics)
    elect_leaders = _waiting(Core.elect_leaders)
    alter_partition_reassignments = _waiting(Core.alter_partition_reassignments)
    list_partition_reassignments = _waiting(Core.list_partition_reassignments)
    describe_configs = _waiting(Core.describe_configs)
    alter_configs = _waiting(Core.alter_configs)
    describe_client_quotas = _waiting(Core.describe_client_quotas)
    alter_client_quotas = _waiting(Core.alter_client_quotas)
    list_offsets = _waiting(Core.list_offsets)
    list_epoch_ends = _waiting(Core.list_epoch_ends)
    delete_records = _waiting(Core.delete_records)
    list_groups = _waiting(Core.list_groups)
    describe_groups = _waiting(Core.describe_groups)
    delete_groups = _waiting(Core.delete_groups)
    remove_group_members = _waiting(Core.remove_group_members)
    list_group_offsets = _waiting(Core.list_group_offsets)
    alter_group_offsets = _waiting(Core.alter_group_offsets)
    delete_group_offsets = _waiting(Core.delete_group_offsets)
    describe_producers = _waiting(Core.describe_producers)
    describe_transactions = _waiting(Core.describe_transactions)
    fence_producers = _waiting(Core.fence_producers)
    list_transactions = _waiting(Core.list_transactions)
    find_hanging_transactions = _waiting(Core.find_hanging_transactions)
    abort_transaction = _waiting(Core.abort_transaction)
