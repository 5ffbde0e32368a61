"""What the log directories of a broker, together, know of its lives: which places in an ISR they stand for (KIP-966).

Theory of operation
===================
Each directory remembers by itself since which broker epoch it has kept everything (`kbroker.log.log_dir_history`). Two
claims follow. With the registration goes what holds for *every* replica, wherever it is or was: the epochs that all
directories cover. And of a partition that nobody leads the controller asks each replica; the answer says since when
*its* directory has kept everything, for more than the first claim may be true of it: a directory that lost something
takes nothing away from what was in another one.

Why the second claim is sound. A place was granted under epoch E: so in that life, or before it while nothing was
lost, the replica was in some directory X of this broker, and had all that is committed. Now its log was found, at
the start, in D, whose own range covers E, and D lost nothing since E. Were X not D, then the log in D was begun after
X had lost it, or X had gone. In that start, or before, the loss was told, under an epoch later than E: every directory
remembers the last such epoch (`lost`). And **before a log that may have been elsewhere is begun in a directory
whose range reaches further back, the range is cut to begin at `lost`**: D would not cover E. (While a directory cannot
be read no such log is begun at all: it may be there.) A life in which D could not be read, or failed before its
registration, wrote nothing in it, and the others remember that it was *absent*: so D's range has no end by then,
for a place that was renewed meanwhile was renewed for what D had before.

Where one of several directories is missing, or is another disk (the files name them all), nobody can say which
replicas were in it: such a start is *partial*, and every range begins with the next epoch. What is still there is told
one by one, in that life. A directory whose range ends before another's, and that was not absent, is of the past (a
restored copy, an older disk): another one was in its place meanwhile, and after the next epoch it claims nothing older.

What is not seen: that *all* directories of a broker are of the past, together. The first registration after they were
put back claims nothing of the lives that they missed, but the range that is remembered with it spans them, and the
next start claims it. A list of the epochs that were lived under, in the files and in the registration, would tell. And
a copy that was made in the midst of a life, and is put back on a machine that has not gone down since, looks
like what that life itself left behind.

Invariants: 1. a claim covers only epochs under which the log that is there now was written, or lay untouched, with
nothing lost since; 2. a broker that did not lose power and has its directories claims all its epochs; 3. a directory
in which a replica's log lies, and that kept everything, claims that replica's place, whatever befell the others.

In: what each directory held, registrations, logs begun   Out: claims, and what each file is to say   Owner: LogManager
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.common.log_dir_integrity import MAX_BROKER_EPOCH, LogDirCondition, LogDirIntegrity
from kbroker.common.topic_partition import TopicPartition
from kbroker.log.log_dir_history import LogDirHistory, combine

Range = tuple[int, int]
"""First and last broker epoch."""


class LogDirHistories:
    """The pasts of a broker's directories, by their paths, and the life that it has now."""

    def __init__(self, boot_id: str) -> None:
        self.integrity = LogDirIntegrity(LogDirCondition.NEW, None)
        """What holds for all directories: what the registration says."""
        self.missing_directories: set[str] = set()
        """Ids of log directories that the broker had in its last life, and that it does not have now."""
        self.found_logs: frozenset[TopicPartition] | None = None
        """Where directories are missing: the partitions that were found in the others; None: none is missing."""
        self.boot_id = boot_id
        self._ids: dict[str, str] = {}
        self._integrities: dict[str, LogDirIntegrity] = {}
        self._histories: dict[str, LogDirHistory] = {}
        self._unread = 0
        self._lost = -1
        """The broker epoch of the last life that told of a loss in any directory."""
        self._found_at_start: set[TopicPartition] = set()
        """Partitions whose logs were found at the start, and are still those."""
        self._registered: dict[str, Range | None] = {}
        """What was claimed with the last registration."""
        self._first: int | None = None
        """The first broker epoch of this process."""
        self._registering = False
        """Whether an epoch may have been given to us that we do not know yet."""

    # -- the start

    def add(
        self,
        path: str,
        directory_id: str | None,
        integrity: LogDirIntegrity,
        history: LogDirHistory | None,
    ) -> None:
        """Take what a directory holds."""
        self._integrities[path] = integrity
        if directory_id is not None:
            self._ids[path] = directory_id
        if history is not None:
            self._histories[path] = history
            self.missing_directories.update(history.directories)
            self._lost = max(self._lost, history.lost)

    def conclude(self, logs: Iterable[TopicPartition], unread: int) -> None:
        """Conclude, when all directories were taken but the *unread* ones, and *logs* were found in them."""
        self._unread = unread
        self._found_at_start = set(logs)
        newest = max(self._histories.values(), key=_end, default=None)
        for path, integrity in self._integrities.items():
            was_absent = newest is not None and self._ids.get(path) in newest.absent
            if was_absent and integrity.intact is not None:
                self._integrities[path] = integrity._replace(
                    intact=(integrity.intact[0], MAX_BROKER_EPOCH)
                )
        self.integrity = combine(self._integrities.values())
        self.missing_directories.difference_update(self._ids.values())
        if self._lost_a_directory():
            self.found_logs = frozenset(self._found_at_start)
        if self.missing_directories and self.integrity.condition in (
            LogDirCondition.CLEAN,
            LogDirCondition.CRASHED,
        ):
            self.integrity = LogDirIntegrity(LogDirCondition.PARTIAL, self.integrity.intact)

    def _lost_a_directory(self) -> bool:
        """Say whether a directory is missing that is not just one that cannot be read now."""
        return len(self.missing_directories) > self._unread

    def directory_id(self, path: str) -> str | None:
        """Return the directory.id of a directory that was taken."""
        return self._ids.get(path)

    def had(self, directory_id: str) -> bool:
        """Say whether the broker has a directory of that id, or had it in its last life."""
        return directory_id in self.missing_directories or directory_id in self._ids.values()

    # -- registrations

    def registering(self) -> LogDirIntegrity:
        """Return what the registration is to say; whatever epoch it gets, the next life may claim it."""
        self._registering = True
        self._registered = {path: integrity.intact for path, integrity in self._integrities.items()}
        return self.integrity

    def registered(self, broker_epoch: int) -> None:
        """Take the broker epoch that we live under from now on; what was lost has been told with it."""
        since = {path: self._since(path) for path in self._integrities}
        if any(each is None for each in since.values()):
            self._lost = broker_epoch
        for path, each in since.items():
            low = broker_epoch if each is None else each
            self._integrities[path] = LogDirIntegrity(LogDirCondition.CLEAN, (low, broker_epoch))
        start = LogDirCondition.PARTIAL if self._unread else LogDirCondition.CLEAN
        self.integrity = LogDirIntegrity(start, combine(self._integrities.values()).intact)
        self._registering = False
        if self._first is None:
            self._first = broker_epoch

    def _since(self, path: str) -> int | None:
        """Return since which broker epoch a directory claims; None: since the next registration."""
        integrity = self._integrities[path]
        if self._first is not None and integrity.intact is not None:
            return integrity.intact[0]
        if self._lost_a_directory():
            return None
        if (
            integrity.condition is LogDirCondition.NEW
            and self.integrity.condition is not LogDirCondition.NEW
        ):
            # It was added to others: nothing was ever in it.
            known = [p.intact[0] for p in self._integrities.values() if p.intact is not None]
            return max(known, default=None)
        if integrity.intact is None or integrity.intact[1] < self._last():
            return None
        return integrity.intact[0]

    def _last(self) -> int:
        """Return the last broker epoch that any directory is known to have lived under."""
        ends = [history.until for history in self._histories.values() if history.until is not None]
        return max([end for end in ends if end < MAX_BROKER_EPOCH], default=-1)

    # -- claims

    def before_new_log(self, path: str) -> bool:
        """Take note that a log that may have been elsewhere is begun in a directory.

        Return whether the directory's file is to be written first.
        """
        intact = self._integrities[path].intact
        if intact is None or intact[0] >= self._lost:
            return False
        self._integrities[path] = self._integrities[path]._replace(intact=(self._lost, intact[1]))
        return True

    def removed(self, partition: TopicPartition) -> None:
        """Take note that the log of a partition was deleted, or set aside."""
        self._found_at_start.discard(partition)

    def vouched_for(self, path: str, partition: TopicPartition) -> Range | None:
        """Return the epochs of which the log of a partition, in that directory, kept everything."""
        if partition in self._found_at_start:
            return self._registered.get(path)
        last = self._integrities[path].intact
        return (self._first, last[1]) if self._first is not None and last is not None else None

    # -- what the files are to say

    def history_of(self, path: str, failed: Iterable[str]) -> LogDirHistory:
        """Return what the file of a directory is to say now, when those at the paths *failed* have failed."""
        integrity, since = self._integrities[path], self._since(path)
        until = integrity.intact[1] if integrity.intact is not None else MAX_BROKER_EPOCH
        unknown = self._registering or since is None or until == MAX_BROKER_EPOCH
        away = set() if self._lost_a_directory() else self.missing_directories
        absent = away.union(self._ids[one] for one in failed if one in self._ids)
        pending_loss = (
            self.integrity.condition if integrity.intact is not None else integrity.condition
        )
        return LogDirHistory(
            self.boot_id,
            since,
            None if unknown else until,
            tuple(sorted(away.union(self._ids.values()))),
            pending_loss if since is None else None,
            tuple(sorted(absent)),
            self._lost,
        )


def _end(history: LogDirHistory) -> int:
    return MAX_BROKER_EPOCH if history.until is None else history.until
