"""What the log directories of a broker, together, know of its lives: which places in an ISR they stand for (KIP-966).

Theory of operation
===================
Each directory remembers by itself since which broker epoch it has kept everything (`kbroker.log.incarnation`). Two
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

In: what each directory held, registrations, logs begun   Out: claims, and what each file is to say   Owner: LogDirs
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.common.topic_partition import TopicPartition
from kbroker.log.incarnation import OPEN_END, Memory, Past, Start, together

Range = tuple[int, int]
"""First and last broker epoch."""


class Lives:
    """The pasts of a broker's directories, by their paths, and the life that it has now."""

    def __init__(self, boot_id: str) -> None:
        self.past = Past(Start.NEW, None)
        """What holds for all directories: what the registration says."""
        self.missing: set[str] = set()
        """Ids of log directories that the broker had in its last life, and that it does not have now."""
        self.found: frozenset[TopicPartition] | None = None
        """Where directories are missing: the partitions that were found in the others; None: none is missing."""
        self.boot_id = boot_id
        self._ids: dict[str, str] = {}
        self._pasts: dict[str, Past] = {}
        self._memories: dict[str, Memory] = {}
        self._unread = 0
        self._lost = -1
        """The broker epoch of the last life that told of a loss in any directory."""
        self._old: set[TopicPartition] = set()
        """Partitions whose logs were found at the start, and are still those."""
        self._claims: dict[str, Range | None] = {}
        """What was claimed with the last registration."""
        self._first: int | None = None
        """The first broker epoch of this process."""
        self._registers = False
        """Whether an epoch may have been given to us that we do not know yet."""

    # -- the start

    def take(self, path: str, directory_id: str | None, past: Past, memory: Memory | None) -> None:
        """Take what a directory holds."""
        self._pasts[path] = past
        if directory_id is not None:
            self._ids[path] = directory_id
        if memory is not None:
            self._memories[path] = memory
            self.missing.update(memory.directories)
            self._lost = max(self._lost, memory.lost)

    def judge(self, logs: Iterable[TopicPartition], unread: int) -> None:
        """Conclude, when all directories were taken but the *unread* ones, and *logs* were found in them."""
        self._unread = unread
        self._old = set(logs)
        newest = max(self._memories.values(), key=_end, default=None)
        for path, past in self._pasts.items():
            was_absent = newest is not None and self._ids.get(path) in newest.absent
            if was_absent and past.intact is not None:
                self._pasts[path] = past._replace(intact=(past.intact[0], OPEN_END))
        self.past = together(self._pasts.values())
        self.missing.difference_update(self._ids.values())
        if self._forgets():
            self.found = frozenset(self._old)
        if self.missing and self.past.start in (Start.CLEAN, Start.CRASHED):
            self.past = Past(Start.PARTIAL, self.past.intact)

    def _forgets(self) -> bool:
        """Say whether a directory is missing that is not just one that cannot be read now."""
        return len(self.missing) > self._unread

    def directory_id(self, path: str) -> str | None:
        """Return the directory.id of a directory that was taken."""
        return self._ids.get(path)

    def had(self, directory_id: str) -> bool:
        """Say whether the broker has a directory of that id, or had it in its last life."""
        return directory_id in self.missing or directory_id in self._ids.values()

    # -- registrations

    def registering(self) -> Past:
        """Return what the registration is to say; whatever epoch it gets, the next life may claim it."""
        self._registers = True
        self._claims = {path: past.intact for path, past in self._pasts.items()}
        return self.past

    def registered(self, broker_epoch: int) -> None:
        """Take the broker epoch that we live under from now on; what was lost has been told with it."""
        since = {path: self._since(path) for path in self._pasts}
        if any(each is None for each in since.values()):
            self._lost = broker_epoch
        for path, each in since.items():
            low = broker_epoch if each is None else each
            self._pasts[path] = Past(Start.CLEAN, (low, broker_epoch))
        start = Start.PARTIAL if self._unread else Start.CLEAN
        self.past = Past(start, together(self._pasts.values()).intact)
        self._registers = False
        if self._first is None:
            self._first = broker_epoch

    def _since(self, path: str) -> int | None:
        """Return since which broker epoch a directory claims; None: since the next registration."""
        past = self._pasts[path]
        if self._first is not None and past.intact is not None:
            return past.intact[0]
        if self._forgets():
            return None
        if past.start is Start.NEW and self.past.start is not Start.NEW:
            # It was added to others: nothing was ever in it.
            known = [p.intact[0] for p in self._pasts.values() if p.intact is not None]
            return max(known, default=None)
        if past.intact is None or past.intact[1] < self._last():
            return None
        return past.intact[0]

    def _last(self) -> int:
        """Return the last broker epoch that any directory is known to have lived under."""
        ends = [memory.until for memory in self._memories.values() if memory.until is not None]
        return max([end for end in ends if end < OPEN_END], default=-1)

    # -- claims

    def begins(self, path: str) -> bool:
        """Take note that a log that may have been elsewhere is begun in a directory.

        Return whether the directory's file is to be written first.
        """
        intact = self._pasts[path].intact
        if intact is None or intact[0] >= self._lost:
            return False
        self._pasts[path] = self._pasts[path]._replace(intact=(self._lost, intact[1]))
        return True

    def gone(self, partition: TopicPartition) -> None:
        """Take note that the log of a partition was deleted, or set aside."""
        self._old.discard(partition)

    def claim(self, path: str, partition: TopicPartition) -> Range | None:
        """Return the epochs of which the log of a partition, in that directory, kept everything."""
        if partition in self._old:
            return self._claims.get(path)
        last = self._pasts[path].intact
        return (self._first, last[1]) if self._first is not None and last is not None else None

    # -- what the files are to say

    def memory(self, path: str, failed: Iterable[str]) -> Memory:
        """Return what the file of a directory is to say now, when those at the paths *failed* have failed."""
        past, since = self._pasts[path], self._since(path)
        until = past.intact[1] if past.intact is not None else OPEN_END
        unknown = self._registers or since is None or until == OPEN_END
        away = set() if self._forgets() else self.missing
        absent = away.union(self._ids[one] for one in failed if one in self._ids)
        untold = self.past.start if past.intact is not None else past.start
        return Memory(
            self.boot_id,
            since,
            None if unknown else until,
            tuple(sorted(away.union(self._ids.values()))),
            untold if since is None else None,
            tuple(sorted(absent)),
            self._lost,
        )


def _end(memory: Memory) -> int:
    return OPEN_END if memory.until is None else memory.until
