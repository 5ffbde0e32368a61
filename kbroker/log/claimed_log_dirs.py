"""The log directories of a broker, locked, and whether they are this broker's and this cluster's (S24, S43).

Two brokers, or two clusters, in one directory would write over each other's records. So a process locks all of its
directories before it does anything else. It compares the ids in their meta.properties before any other file is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from resource import RLIMIT_NOFILE, getrlimit
from uuid import UUID, uuid4

from kbroker.log import log_segment
from kbroker.log.disk import OS_DISK, Disk
from kbroker.log.log_dir import LogDir
from kbroker.log.meta_properties import MetaProperties
from kclient.wire.errors import InconsistentClusterId, KafkaError, KafkaStorageError
from kclient.wire.uuids import encode_uuid


class ClaimedLogDirs:
    """The directories of log.dirs, locked by this process until `release`."""

    def __init__(
        self,
        paths: Sequence[str],
        *,
        disk: Disk = OS_DISK,
        new_uuid: Callable[[], UUID] = uuid4,
    ) -> None:
        """Lock every directory, and create those that are missing; raise KafkaStorageError with none locked.

        Directories on disks that failed are left out, unless no other is left.
        """
        log_segment.max_open_files = getrlimit(RLIMIT_NOFILE)[0] // 2
        paths = [os.path.abspath(os.path.expanduser(path)) for path in paths]
        if len(set(paths)) != len(paths):
            raise KafkaStorageError(f"log.dirs names a directory twice: {', '.join(paths)}")
        self.disk = disk
        self.new_uuid = new_uuid
        self.directories: list[LogDir] = []
        """In the order of log.dirs; none after `release`."""
        try:
            for path in paths:
                self.directories.append(LogDir.claim(disk, path))
            _check_usable(self.directories)
        except KafkaError:
            self.release()
            raise

    @property
    def usable(self) -> list[LogDir]:
        """The directories on disks that have not failed; at least one until `release`."""
        return [directory for directory in self.directories if directory.failure is None]

    def stored_identity(self) -> MetaProperties:
        """Return the owner in the directories' meta.properties, with None for what no directory has.

        Raise KafkaStorageError when they disagree or one cannot be read.
        """
        return _stored(self.directories)

    def take_identity(self, broker_id: int, cluster_id: str) -> None:
        """Check that the directories are this broker's and this cluster's; write it into new ones.

        Raise InconsistentClusterId or KafkaStorageError; nothing is written then.
        """
        _take(self.directories, broker_id, cluster_id, self.new_uuid)

    def release(self) -> None:
        """Unlock the directories, and write nothing: after `LogManager.close`, or when the start failed."""
        for directory in self.directories:
            directory.release()
        self.directories.clear()


def _check_usable(directories: Sequence[LogDir]) -> None:
    """Raise KafkaStorageError unless a directory is left on a disk that has not failed."""
    if all(directory.failure is not None for directory in directories):
        failures = "; ".join(f"{directory.path}: {directory.failure}" for directory in directories)
        raise KafkaStorageError(f"no log directory is usable: {failures}")


def _stored(directories: Sequence[LogDir]) -> MetaProperties:
    """Return broker and cluster of the directories, None for what no directory has.

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


def _take(
    directories: Sequence[LogDir],
    broker_id: int,
    cluster_id: str,
    new_uuid: Callable[[], UUID],
) -> None:
    """Check that *directories* are of this broker and cluster, and write it into new ones.

    Raise InconsistentClusterId or KafkaStorageError; nothing is written then.
    """
    found = _stored(directories)
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
    _check_usable(directories)
