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

What the directories of one broker know together, and what it may claim for each replica, is in
`kbroker.log.log_dir_histories`.

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
from typing import Final, NamedTuple

from kbroker.common.log_dir_integrity import MAX_BROKER_EPOCH, LogDirCondition, LogDirIntegrity

FILE: Final = "broker-incarnation"
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


class LogDirHistory(NamedTuple):
    """The content of the file."""

    boot_id: str
    """Of the machine, as it ran in that life; "" where machines have none."""
    since: int | None
    """The first broker epoch since which nothing was lost; None before the first registration after a loss."""
    until: int | None
    """The broker epoch of that life; None while it registers."""
    directories: tuple[str, ...] = ()
    """directory.id of every log directory that the broker had."""
    pending_loss: LogDirCondition | None = None
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
                **({} if self.pending_loss is None else {"untold": self.pending_loss.value}),
            }
        ).encode("ascii")


def decode(content: bytes) -> LogDirHistory | None:
    """Read the file; None when it makes no sense, which is as good as none."""
    try:
        value = json.loads(content)
        boot_id, since, until = value["bootId"], value["intactSince"], value["brokerEpoch"]
        directories = tuple(map(str, value.get("directories", ())))
        absent = tuple(map(str, value.get("absent", ())))
        pending_loss = LogDirCondition(value["untold"]) if "untold" in value else None
        # Earlier versions let every directory begin anew when one had lost something.
        lost = value.get("lostAt", -1 if since is None else since)
    except (ValueError, KeyError, TypeError):
        return None
    numbers = all(number is None or type(number) is int for number in (since, until))
    numbers = numbers and type(lost) is int
    if not isinstance(boot_id, str) or not numbers:
        return None
    return LogDirHistory(boot_id, since, until, directories, pending_loss, absent, lost)


def assess(
    history: LogDirHistory | None, clean_epoch: int | None, boot_id: str, *, is_new: bool
) -> LogDirIntegrity:
    """Say what a directory's files mean on a machine that now runs as *boot_id*.

    *clean_epoch* is what the marker of a clean shutdown says, None without one, -1 where it does not say;
    *is_new* is a directory that had no meta.properties.
    """
    if history is None:
        if is_new:
            return LogDirIntegrity(LogDirCondition.NEW, None)
        # An earlier version, or Apache Kafka, wrote here last.
        return (
            LogDirIntegrity(LogDirCondition.POWER_LOSS, None)
            if clean_epoch is None
            else LogDirIntegrity(LogDirCondition.CLEAN, (0, MAX_BROKER_EPOCH))
        )
    if history.pending_loss is not None:
        return LogDirIntegrity(history.pending_loss, None)
    until = MAX_BROKER_EPOCH if history.until is None else history.until
    intact = None if history.since is None else (history.since, max(until, clean_epoch or -1))
    if clean_epoch is not None:
        return LogDirIntegrity(LogDirCondition.CLEAN, intact)
    if boot_id and history.boot_id == boot_id:
        return LogDirIntegrity(LogDirCondition.CRASHED, intact)
    return LogDirIntegrity(LogDirCondition.POWER_LOSS, None)


def combine(integrities: Iterable[LogDirIntegrity]) -> LogDirIntegrity:
    """Return what holds for all directories of a broker; one that was added to others says nothing."""
    known = [
        integrity for integrity in integrities if integrity.condition is not LogDirCondition.NEW
    ]
    if not known:
        return LogDirIntegrity(LogDirCondition.NEW, None)
    starts = {integrity.condition for integrity in known}
    order = (
        LogDirCondition.POWER_LOSS,
        LogDirCondition.PARTIAL,
        LogDirCondition.CRASHED,
        LogDirCondition.CLEAN,
    )
    start = next(s for s in order if s in starts)
    ranges = [integrity.intact for integrity in known if integrity.intact is not None]
    if len(ranges) < len(known):
        return LogDirIntegrity(start, None)
    since, until = max(low for low, _ in ranges), min(high for _, high in ranges)
    return LogDirIntegrity(start, (since, until) if since <= until else None)


def boot_id() -> str:
    """Return the id of the machine's present run; "" where the system has none."""
    try:
        with open(BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
