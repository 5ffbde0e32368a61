"""What the log directories of one broker vouch for: all of them together, and each for the logs in it (KIP-966).

Theory of operation
===================
Each directory has its history (`kbroker.log.log_dir_history`). Two statements follow:

- The registration has what holds for *every* replica of the broker: the broker epochs that all directories cover.
- The controller asks each replica of a leaderless partition. The answer has what *its* directory covers, which may be
  more: a loss in one directory takes nothing away from another one.

A start that misses a directory is *partial*: no other directory shows which replicas were in the missing one. A
directory that ends before another one, and was not absent, is an old copy: after the next registration it covers
nothing older. docs/design/log-integrity.md has the table of cases, a worked example, the proof, and what is not
detected.

Invariants:
1. A statement covers only epochs under which the present log was written, or lay untouched, with nothing lost since.
2. A broker that did not lose power and has its directories covers all its epochs.
3. A directory that kept everything covers the ISR broker epochs of the replicas in it, whatever another one lost.

In: what each directory held, registrations, new logs   Out: statements, and the content of each file
Owner: LogManager
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.common.log_dir_integrity import (
    MAX_BROKER_EPOCH,
    BrokerEpochs,
    LogDirCondition,
    LogDirIntegrity,
    broker_epochs,
)
from kbroker.common.topic_partition import TopicPartition
from kbroker.log.log_dir_history import LogDirHistory, combine


class LogDirHistories:
    """The histories of a broker's directories, by their paths, and its present registration."""

    def __init__(self, boot_id: str) -> None:
        self.integrity = LogDirIntegrity(LogDirCondition.NEW, None)
        """What all directories vouch for: the content of the registration."""
        self.missing_directories: set[str] = set()
        """Ids of log directories that the broker had in its last run, and that it does not have now."""
        self.found_logs: frozenset[TopicPartition] | None = None
        """Where directories are missing: the partitions that the others hold; None: none is missing."""
        self.boot_id = boot_id
        self._ids: dict[str, str] = {}
        self._integrities: dict[str, LogDirIntegrity] = {}
        self._histories: dict[str, LogDirHistory] = {}
        self._unread = 0
        self._lost_at = -1
        """The broker epoch of the last registration that reported a loss in any directory."""
        self._found_at_start: set[TopicPartition] = set()
        """Partitions with a log in the directories at the start, and still."""
        self._moved_from: dict[TopicPartition, set[str]] = {}
        """The paths of the directories in which logs of the start have been before."""
        self._published: dict[str, BrokerEpochs | None] = {}
        """What each directory covered at the last registration."""
        self._first: int | None = None
        """The first broker epoch of this process."""
        self._attempt_since: int | None = None
        """The least broker epoch that the attempt to register under way may get; None: there is none."""
        self._unknown_since: int | None = None
        """The least one that attempts without an outcome may have got; None: there were none."""

    # Start

    def add(
        self,
        path: str,
        directory_id: str | None,
        integrity: LogDirIntegrity,
        history: LogDirHistory | None,
    ) -> None:
        """Add a directory."""
        self._integrities[path] = integrity
        if directory_id is not None:
            self._ids[path] = directory_id
        if history is not None:
            self._histories[path] = history
            self._lost_at = max(self._lost_at, history.lost_at)

    def conclude(self, logs: Iterable[TopicPartition], unreadable_dirs: int) -> None:
        """Conclude, when all directories but the *unread* ones were added, and *logs* lie in them."""
        self._unread = unreadable_dirs
        self._found_at_start = set(logs)
        newest = max(self._histories.values(), key=_end, default=None)
        for path, history in self._histories.items():
            if newest is None or not _is_outdated(self._ids.get(path), history, newest):
                self.missing_directories.update(history.directories)
        for path, integrity in self._integrities.items():
            was_absent = newest is not None and self._ids.get(path) in newest.absent
            if was_absent and integrity.intact is not None:
                self._integrities[path] = integrity._replace(intact=integrity.intact.opened())
        self.integrity = combine(self._integrities.values())
        self.missing_directories.difference_update(self._ids.values())
        if self._has_lost_directory():
            self.found_logs = frozenset(self._found_at_start)
        if self.missing_directories:
            self.integrity = _partial(self.integrity)

    def _has_lost_directory(self) -> bool:
        """Return whether a directory is missing beside those that cannot be read now."""
        return len(self.missing_directories) > self._unread

    def directory_id(self, path: str) -> str | None:
        """Return the directory.id of a directory that was added."""
        return self._ids.get(path)

    def lost_power(self, path: str) -> bool:
        """Return whether a power loss may have taken records from a directory, and no registration has reported it."""
        return self._integrities[path].condition is LogDirCondition.POWER_LOSS

    def had(self, directory_id: str) -> bool:
        """Return whether the broker has a directory of that id, or had it in its last run."""
        return directory_id in self.missing_directories or directory_id in self._ids.values()

    # Registrations

    def registering(self, after: int = -1) -> None:
        """Handle the begin of an attempt to register, with a broker epoch above *after*: the files get an open end.

        An attempt that was neither refused nor ended with a broker epoch has no known outcome.
        """
        if self._unknown_since is None:
            self._unknown_since = self._attempt_since
        self._attempt_since = after + 1
        self._published = {
            path: self._with_unknown(each.intact) for path, each in self._integrities.items()
        }

    def registration(self, *, has_failed: bool = False) -> LogDirIntegrity:
        """Return the content of the next registration, after the files of that attempt were written.

        If a directory failed in this run, the registration does not vouch for the replicas in it: it is partial.
        """
        integrity = self.integrity._replace(intact=self._with_unknown(self.integrity.intact))
        return _partial(integrity) if has_failed else integrity

    def refused(self) -> None:
        """Handle that the attempt has no broker epoch: the files get their known end back."""
        self._attempt_since = None

    def _with_unknown(self, intact: BrokerEpochs | None) -> BrokerEpochs | None:
        """Return *intact* with the epochs of attempts without an outcome.

        This broker may have been elected under such an epoch. All directories were as they are now.
        """
        if self._unknown_since is None:
            return intact
        if intact is None:
            return broker_epochs((self._unknown_since, MAX_BROKER_EPOCH))
        return intact.opened(self._unknown_since)

    def registered(self, broker_epoch: int) -> None:
        """Handle a registration under *broker_epoch*: what was lost is reported now."""
        kept = {path: self._kept(path) for path in self._integrities}
        if any(each is None for each in kept.values()):
            self._lost_at = broker_epoch
        for path, each in kept.items():
            each = self._with_unknown(each)
            intact = broker_epochs(broker_epoch) if each is None else each.registered(broker_epoch)
            self._integrities[path] = LogDirIntegrity(LogDirCondition.CLEAN, intact)
        condition = LogDirCondition.PARTIAL if self._unread else LogDirCondition.CLEAN
        self.integrity = LogDirIntegrity(condition, combine(self._integrities.values()).intact)
        self._attempt_since = self._unknown_since = None
        if self._first is None:
            self._first = broker_epoch

    def _kept(self, path: str) -> BrokerEpochs | None:
        """Return the epochs that a directory covers beyond the next registration; None: only that one."""
        integrity = self._integrities[path]
        if self._first is not None and integrity.intact is not None:
            return integrity.intact
        if self._has_lost_directory():
            return None
        if (
            integrity.condition is LogDirCondition.NEW
            and self.integrity.condition is not LogDirCondition.NEW
        ):
            # A new directory beside others: nothing was ever in it.
            known = [each.intact for each in self._integrities.values() if each.intact is not None]
            return max(known, key=_first_epoch, default=None)
        if integrity.intact is None or integrity.intact.last < self._last():
            return None
        return integrity.intact

    def _last(self) -> int:
        """Return the last broker epoch that is known of any directory."""
        ends = [each.intact.last for each in self._histories.values() if each.intact is not None]
        return max([end for end in ends if end < MAX_BROKER_EPOCH], default=-1)

    # Statements for one log

    def before_new_log(self, path: str) -> bool:
        """Handle the begin of a log that may have been in another directory.

        Return whether the directory's file must be written first.
        """
        integrity = self._integrities[path]
        if integrity.intact is None or integrity.intact.first >= self._lost_at:
            return False
        self._integrities[path] = integrity._replace(intact=integrity.intact.since(self._lost_at))
        return True

    def removed(self, partition: TopicPartition) -> None:
        """Handle the deletion of a partition's log, or its move to a stray directory."""
        self._found_at_start.discard(partition)
        self._moved_from.pop(partition, None)

    def moved(self, partition: TopicPartition, source: str) -> None:
        """Handle the move of a partition's log from the directory at *source*, after `before_new_log` of the other one.

        Under an earlier broker epoch the log was in the source, and may have lost records with it.
        """
        if partition in self._found_at_start:
            self._moved_from.setdefault(partition, set()).add(source)

    def vouched_for(self, path: str, partition: TopicPartition) -> BrokerEpochs | None:
        """Return the epochs under which a partition's log, in that directory, kept everything."""
        if partition in self._found_at_start:
            published = self._published.get(path)
            for former in self._moved_from.get(partition, ()):
                there = self._published.get(former)
                if published is None or there is None:
                    return None
                published = published.common_with(there)
            return published
        intact = self._with_unknown(self._integrities[path].intact)
        return None if self._first is None or intact is None else intact.since(self._first)

    # Files

    def history_of(self, path: str, failed: Iterable[str]) -> LogDirHistory:
        """Return the present content of a directory's file, while the directories at the paths *failed* have failed."""
        integrity, intact = self._integrities[path], self._kept(path)
        since = self._attempt_since if self._unknown_since is None else self._unknown_since
        if intact is not None and since is not None:
            intact = intact.opened(since)
        elif intact is not None and integrity.intact is None:
            intact = intact.opened()
        away = set() if self._has_lost_directory() else self.missing_directories
        absent = away.union(self._ids[each] for each in failed if each in self._ids)
        loss = self.integrity.condition if integrity.intact is not None else integrity.condition
        return LogDirHistory(
            self.boot_id,
            intact,
            tuple(sorted(away.union(self._ids.values()))),
            loss if intact is None else None,
            tuple(sorted(absent)),
            self._lost_at,
        )


def _partial(integrity: LogDirIntegrity) -> LogDirIntegrity:
    """Return *integrity* for directories of which one is away; without any epoch it vouches for nothing anyway."""
    if integrity.intact is None:
        return integrity
    return integrity._replace(condition=LogDirCondition.PARTIAL)


def _end(history: LogDirHistory) -> int:
    return MAX_BROKER_EPOCH if history.intact is None else history.intact.last


def _is_outdated(directory_id: str | None, history: LogDirHistory, newest: LogDirHistory) -> bool:
    """Return whether *history* names no directories that must be there: a later run could not write it.

    That run reported a loss after the last epoch of *history*. So the directories of *history* that are missing now are
    among those of *newest*, or no log may cover what was in them. `lost_at` limits it.
    """
    return directory_id in newest.absent and newest.lost_at > _end(history)


def _first_epoch(epochs: BrokerEpochs) -> int:
    return epochs.first
