"""Completes the moves between log directories that a crash interrupted, before any log is opened (KIP-113).

A moved log replaces the former one by two renames in two directories (log_manager.py). A process that was killed
between them left one log under the name of its copy. A power loss may bring a former name back, so that a partition is
in two directories. See docs/design/alter-log-dirs.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from kbroker.common.topic_partition import TopicPartition
from kbroker.log.core import directory_names
from kbroker.log.core.log_move import FoundTwice, half_replaced, newest
from kbroker.log.disk import Disk
from kbroker.log.log_dir import LogDir


def complete_moves(
    log_dirs: Sequence[LogDir], disk: Disk, new_uuid: Callable[[], UUID]
) -> list[str]:
    """Complete the replacements of moved logs; return what was done, for the broker's log. Slow.

    A directory that fails goes offline (`LogDir.failure`).
    """
    notes: list[str] = []
    names: dict[str, list[str]] = {}
    directories = {directory.path: directory for directory in log_dirs}
    for path, directory in directories.items():
        if directory.failure is None:
            try:
                names[path] = directory.names()
            except OSError as error:
                directory.failure = str(error)
    # In a directory that could not be read the log that is missing may be there.
    for each in half_replaced(names) if len(names) == len(directories) else ():
        to = directory_names.directory_name(*each.partition)
        notes.append(f"{each.path}/{to}: replaces the log that was moved to it")
        _rename(directories[each.path], each.name, to)
    notes += _keep_newest(directories, names, disk, new_uuid)
    if any(directory_names.is_deleted(name) for inside in names.values() for name in inside):
        # A power loss must not bring back a name of a log with files that are removed from now on.
        for path in names:
            _rename(directories[path])
    return notes


def _keep_newest(
    directories: Mapping[str, LogDir],
    names: Mapping[str, Sequence[str]],
    disk: Disk,
    new_uuid: Callable[[], UUID],
) -> list[str]:
    """Set logs aside that were replaced by logs in other directories, where a power loss brought them back."""
    notes: list[str] = []
    paths: dict[TopicPartition, list[str]] = {}
    for path, inside in names.items():
        for name in inside:
            key = directory_names.parse_directory(name)
            if key is not None:
                paths.setdefault(key, []).append(path)
    for key, those in paths.items():
        name = directory_names.directory_name(*key)
        if len(those) == 1 or not all(disk.is_dir(f"{path}/{name}") for path in those):
            continue
        found = {}
        for path in those:
            try:
                owner = directories[path].read_identity()
                directory_id = owner.directory_id if owner is not None else None
                found[path] = FoundTwice(directories[path].read_partition(name), directory_id)
            except OSError as error:
                directories[path].failure = str(error)
        kept = newest(key, found) if len(found) == len(those) else None
        for path in those if kept is not None else ():
            if path != kept:
                aside = directory_names.stray_name(*key, new_uuid().hex)
                _rename(directories[path], name, aside)
                notes.append(f"{path}/{aside}: was replaced by the log in {kept}, and is kept")
    return notes


def _rename(directory: LogDir, name: str = "", other: str = "") -> None:
    """Rename in a directory, if a name is given, and sync its names. An error takes it offline."""
    try:
        if name:
            directory.rename(name, other)
        elif directory.failure is None:
            directory.sync_names()
    except OSError as error:
        directory.failure = str(error)
