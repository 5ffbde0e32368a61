"""Whether the log directories are this broker's and this cluster's (S24, S43).

Two brokers, or two clusters, in one directory would write over each other's records: the id of both
is kept in each directory's meta.properties and compared before anything else is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID, uuid4

from kbroker.log.identity import MetaProperties, encode_uuid
from kbroker.log.log_dir import LogDir
from kclient.wire.errors import InconsistentClusterId, KafkaStorageError


def stored(directories: Sequence[LogDir]) -> MetaProperties:
    """Return what the directories say of their owner, None where none does.

    Raise KafkaStorageError when they disagree or one cannot be read.
    """
    broker_id: int | None = None
    cluster_id: str | None = None
    for directory in directories:
        owner = directory.read_identity()
        if owner is None:
            continue
        if broker_id is not None and owner.broker_id not in (None, broker_id):
            raise KafkaStorageError(
                f"log directory {directory.path} is of broker {owner.broker_id}, "
                f"another one is of broker {broker_id}",
                hint="log.dirs must not mix directories of several brokers",
            )
        if cluster_id is not None and owner.cluster_id not in (None, cluster_id):
            raise KafkaStorageError(
                f"log directory {directory.path} is of cluster {owner.cluster_id}, "
                f"another one is of cluster {cluster_id}",
                hint="log.dirs must not mix directories of several clusters",
            )
        broker_id = owner.broker_id if broker_id is None else broker_id
        cluster_id = cluster_id or owner.cluster_id
    return MetaProperties(broker_id, cluster_id, None)


def take(
    directories: Sequence[LogDir],
    broker_id: int,
    cluster_id: str,
    new_uuid: Callable[[], UUID] = uuid4,
) -> None:
    """Check that *directories* are of this broker and cluster, and write it into new ones.

    Raise InconsistentClusterId or KafkaStorageError; nothing is written then.
    """
    found = stored(directories)
    paths = ", ".join(directory.path for directory in directories)
    if found.broker_id not in (None, broker_id):
        raise KafkaStorageError(
            f"{paths} belongs to broker {found.broker_id}, not {broker_id}",
            hint="set broker.id as it was, or give this broker another log.dirs",
        )
    if found.cluster_id not in (None, cluster_id):
        raise InconsistentClusterId(
            f"{paths} belongs to cluster {found.cluster_id}, "
            f"but ZooKeeper is of cluster {cluster_id}",
            hint="check zookeeper.connect, or give this broker another log.dirs",
        )
    for directory in directories:
        owner = directory.read_identity()
        directory_id = owner.directory_id if owner else None
        wanted = MetaProperties(broker_id, cluster_id, directory_id or encode_uuid(new_uuid()))
        if owner != wanted:
            directory.write_identity(wanted)
