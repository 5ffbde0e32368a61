"""What a log directory knows of the broker's lives: how the last one ended, and since when nothing was lost (KIP-966).

Theory of operation
===================
Each life of a broker has a broker epoch (the czxid of its registration), and a place in an ISR is granted to a life.
After a restart the question is whether what the log directories held under an older epoch is all still there. A
small file in each directory, beside Kafka's marker of a clean shutdown, remembers the machine's boot id and the range
of broker epochs under which the directory was written and has kept everything since:

    clean marker                      everything was synced: nothing lost
    no marker, same boot id           the process died, the machine lived on: the page cache was kept, nothing lost
    no marker, another boot id        the machine went down: what was not synced may be gone
    neither file nor meta.properties  a new directory: whatever was here is gone

What the directories of one broker know together, and what it may claim for each replica, is in `kbroker.log.lives`.

A grant of an epoch *after* the range is not covered either: then the directory is of the past (a restored copy, an
older disk), and another one was in its place meanwhile.

The file is replaced without a sync, for only a life that ends without a power loss is to find it; before a
registration the range is left open, because somebody may act on the new epoch before its own broker knows it.

Invariants: 1. a range that is claimed covers only epochs under which these very files were written, and nothing of
them was lost since; 2. a broker that did not lose power and has its directories can claim all its epochs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

FILE: Final = "broker-incarnation"
OPEN_END: Final = 2**63 - 1
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


class Start(Enum):
    """What a broker's last life left behind."""

    CLEAN = "clean"
    CRASHED = "crashed"
    POWER_LOSS = "power-loss"
    NEW = "new"
    PARTIAL = "partial"
    """One of several directories is missing, or is another one: what was in the others is there."""


class Memory(NamedTuple):
    """The content of the file."""

    boot_id: str
    """Of the machine, as it ran in that life; "" where machines have none."""
    since: int | None
    """The first broker epoch since which nothing was lost; None before the first registration after a loss."""
    until: int | None
    """The broker epoch of that life; None while it registers."""
    directories: tuple[str, ...] = ()
    """directory.id of every log directory that the broker had."""
    untold: Start | None = None
    """The loss that no registration has told of yet: a life that ends before that leaves it to the next."""

    absent: tuple[str, ...] = ()
    """Those of them that had failed, or could not be read."""
    lost: int = -1
    """The broker epoch under which the last loss in any of them was told."""

    def encode(self) -> bytes:
        """Return the file's bytes."""
        return json.dumps(
            {
                "version": 0,
                "bootId": self.boot_id,
                "intactSince": self.since,
                "brokerEpoch": self.until,
                "directories": self.directories,
                "lostAt": self.lost,
                **({"absent": self.absent} if self.absent else {}),
                **({} if self.untold is None else {"untold": self.untold.value}),
            }
        ).encode("ascii")


class Past(NamedTuple):
    """What is to be thought of the lives before this one."""

    start: Start
    intact: tuple[int, int] | None
    """First and last broker epoch under which what was written is still there; None: under none."""

    def __str__(self) -> str:
        return _STORIES[self.start]


_STORIES: Final = {
    Start.CLEAN: "the last shutdown was clean",
    Start.CRASHED: "the last process was killed; the machine lived on and kept what was written",
    Start.POWER_LOSS: "the machine went down: records that were not synced may be gone; replicas that have"
    " them all lead first",
    Start.NEW: "the log directories are new",
    Start.PARTIAL: "a log directory of the broker's last life is missing, or another disk is in its place",
}


def decode(content: bytes) -> Memory | None:
    """Read the file; None when it makes no sense, which is as good as none."""
    try:
        value = json.loads(content)
        boot_id, since, until = value["bootId"], value["intactSince"], value["brokerEpoch"]
        directories = tuple(map(str, value.get("directories", ())))
        absent = tuple(map(str, value.get("absent", ())))
        untold = Start(value["untold"]) if "untold" in value else None
        # Earlier versions let every directory begin anew when one had lost something.
        lost = value.get("lostAt", -1 if since is None else since)
    except (ValueError, KeyError, TypeError):
        return None
    numbers = all(number is None or type(number) is int for number in (since, until))
    numbers = numbers and type(lost) is int
    if not isinstance(boot_id, str) or not numbers:
        return None
    return Memory(boot_id, since, until, directories, untold, absent, lost)


def judge(memory: Memory | None, clean_epoch: int | None, boot_id: str, *, is_new: bool) -> Past:
    """Say what a directory's files mean on a machine that now runs as *boot_id*.

    *clean_epoch* is what the marker of a clean shutdown says, None without one, -1 where it does not say;
    *is_new* is a directory that had no meta.properties.
    """
    if memory is None:
        if is_new:
            return Past(Start.NEW, None)
        # An earlier version, or Apache Kafka, wrote here last.
        return (
            Past(Start.POWER_LOSS, None)
            if clean_epoch is None
            else Past(Start.CLEAN, (0, OPEN_END))
        )
    if memory.untold is not None:
        return Past(memory.untold, None)
    until = OPEN_END if memory.until is None else memory.until
    intact = None if memory.since is None else (memory.since, max(until, clean_epoch or -1))
    if clean_epoch is not None:
        return Past(Start.CLEAN, intact)
    if boot_id and memory.boot_id == boot_id:
        return Past(Start.CRASHED, intact)
    return Past(Start.POWER_LOSS, None)


def together(pasts: Iterable[Past]) -> Past:
    """Return what holds for all directories of a broker; one that was added to others says nothing."""
    known = [past for past in pasts if past.start is not Start.NEW]
    if not known:
        return Past(Start.NEW, None)
    starts = {past.start for past in known}
    order = (Start.POWER_LOSS, Start.PARTIAL, Start.CRASHED, Start.CLEAN)
    start = next(s for s in order if s in starts)
    ranges = [past.intact for past in known if past.intact is not None]
    if len(ranges) < len(known):
        return Past(start, None)
    since, until = max(low for low, _ in ranges), min(high for _, high in ranges)
    return Past(start, (since, until) if since <= until else None)


def boot_id() -> str:
    """Return the id of the machine's present run; "" where the system has none."""
    try:
        with open(BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
