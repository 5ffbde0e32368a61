"""The history of one log directory: how the last run of the broker ended, and which records are intact (KIP-966).

Theory of operation
===================
Each registration of a broker has a broker epoch, and the state znode names the broker epoch under which each member
joined the ISR. After a restart the controller must know whether all that a directory held under an older epoch is still
there. The file ``broker-incarnation``, beside Kafka's marker of a clean shutdown, has the boot id of the machine and
broker epochs. Those are the epochs under which the directory was written and has kept everything since:

    clean marker                      everything was synced: nothing lost
    no marker, same boot id           the process died, the machine stayed up: the page cache was kept, nothing lost
    no marker, another boot id        the machine went down: what was not synced may be lost
    neither file nor meta.properties  a new directory: whatever was here is lost

`kbroker.log.log_dir_histories` joins the histories of a broker's directories; docs/design/log-integrity.md has the
proof.

The file is replaced without a sync: only a start without a power loss reads it. Before a registration the set of epochs
gets an open end, because the controller may act on the new epoch before the broker receives it.

Invariants:
1. The set has only epochs under which these very files were written, and none of their records was lost since.
2. A broker that did not lose power and has its directories covers all its epochs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import reduce
from typing import Any, Final, NamedTuple

from kbroker.common.log_dir_integrity import (
    MAX_BROKER_EPOCH,
    BrokerEpochs,
    LogDirCondition,
    LogDirIntegrity,
    broker_epochs,
)

FILE: Final = "broker-incarnation"
_PENDING_LOSS: Final = "untold"
"""The field of `LogDirHistory.pending_loss`, as earlier versions wrote it."""
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


class LogDirHistory(NamedTuple):
    """The content of the file."""

    boot_id: str
    """That of the machine in this run; "" where machines have none."""
    intact: BrokerEpochs | None
    """The epochs that the directory covers, with an open end while the broker registers; None after a loss."""
    directories: tuple[str, ...] = ()
    """directory.id of every log directory that the broker had."""
    pending_loss: LogDirCondition | None = None
    """A loss that no registration has reported yet: the next run reports it if this one ends before."""
    absent: tuple[str, ...] = ()
    """Those of *directories* that had failed, or could not be read."""
    lost_at: int = -1
    """The broker epoch of the registration that reported the last loss in any directory."""

    def encode(self) -> bytes:
        """Return the file's bytes. Versions that do not know `epochs` take all between the first and the last."""
        intact = self.intact
        value: dict[str, Any] = {
            "version": 0,
            "bootId": self.boot_id,
            "intactSince": None if intact is None else intact.first,
            "brokerEpoch": None if intact is None or intact.is_open else intact.last,
            "directories": self.directories,
            "lostAt": self.lost_at,
        }
        if intact is not None and len(intact.ranges) > 1:
            value["epochs"] = intact.ranges
        if self.absent:
            value["absent"] = self.absent
        if self.pending_loss is not None:
            value[_PENDING_LOSS] = self.pending_loss.value
        return json.dumps(value).encode("ascii")


def decode(content: bytes) -> LogDirHistory | None:
    """Read the file; None when it makes no sense, which counts as no file."""
    try:
        value = json.loads(content)
        since, until = value["intactSince"], value["brokerEpoch"]
        intact = None
        if since is not None:
            end = MAX_BROKER_EPOCH if until is None else until
            intact = _checked(value.get("epochs", [[since, end]]))
        # Earlier versions reset the range of every directory when one had lost something.
        lost_at = value.get("lostAt", -1 if since is None else since)
        history = LogDirHistory(
            value["bootId"],
            intact,
            tuple(map(str, value.get("directories", ()))),
            LogDirCondition(value[_PENDING_LOSS]) if _PENDING_LOSS in value else None,
            tuple(map(str, value.get("absent", ()))),
            lost_at,
        )
    except (ValueError, KeyError, TypeError):
        return None
    return history if isinstance(history.boot_id, str) and type(lost_at) is int else None


def _checked(ranges: Any) -> BrokerEpochs:
    """Return the set that *ranges* of the file make; raise ValueError or TypeError if they make none."""
    epochs = [epoch for low, high in ranges for epoch in (low, high)]
    if not epochs or any(type(epoch) is not int for epoch in epochs) or epochs != sorted(epochs):
        raise ValueError(f"{ranges} are no broker epochs")
    return broker_epochs(*((low, high) for low, high in ranges))


def assess(
    history: LogDirHistory | None, clean_epoch: int | None, boot_id: str, *, is_new: bool
) -> LogDirIntegrity:
    """Return what a directory vouches for on a machine that now runs as *boot_id*.

    *clean_epoch* is the broker epoch of the marker of a clean shutdown, None without a marker, -1 where the marker has
    none. *is_new* is a directory that had no meta.properties.
    """
    if history is None:
        if is_new:
            return LogDirIntegrity(LogDirCondition.NEW, None)
        # An earlier version, or Apache Kafka, wrote here last.
        if clean_epoch is None:
            return LogDirIntegrity(LogDirCondition.POWER_LOSS, None)
        return LogDirIntegrity(LogDirCondition.CLEAN, broker_epochs((0, MAX_BROKER_EPOCH)))
    if history.pending_loss is not None:
        return LogDirIntegrity(history.pending_loss, None)
    intact = history.intact
    if clean_epoch is not None:
        if intact is not None and clean_epoch > intact.last:
            intact = intact.registered(clean_epoch)
        return LogDirIntegrity(LogDirCondition.CLEAN, intact)
    if boot_id and history.boot_id == boot_id:
        return LogDirIntegrity(LogDirCondition.CRASHED, intact)
    return LogDirIntegrity(LogDirCondition.POWER_LOSS, None)


def combine(integrities: Iterable[LogDirIntegrity]) -> LogDirIntegrity:
    """Return what all directories of a broker vouch for; a new one beside others takes nothing away."""
    known = [each for each in integrities if each.condition is not LogDirCondition.NEW]
    if not known:
        return LogDirIntegrity(LogDirCondition.NEW, None)
    conditions = {each.condition for each in known}
    order = (
        LogDirCondition.POWER_LOSS,
        LogDirCondition.PARTIAL,
        LogDirCondition.CRASHED,
        LogDirCondition.CLEAN,
    )
    condition = next(each for each in order if each in conditions)
    return LogDirIntegrity(condition, reduce(_common, [each.intact for each in known]))


def _common(one: BrokerEpochs | None, other: BrokerEpochs | None) -> BrokerEpochs | None:
    return None if one is None or other is None else one.common_with(other)


def boot_id() -> str:
    """Return the id of the machine's present run; "" where the system has none."""
    try:
        with open(BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
