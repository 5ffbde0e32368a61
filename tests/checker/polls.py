"""Rules about the order of what a process polls: nothing is left out, nothing comes twice.

A process that assigns goes on where it was, until it seeks or gives the key up. One that subscribes may be given a key
from anywhere, so there only what one operation returned is judged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from tests.checker.anomaly import Anomaly
from tests.checker.derived import Derived, KeyLog
from tests.checker.history import Operation, Process

Last = tuple[int, Operation]
"""An index, and the operation that set it: the next record polled has the index behind."""


class _Positions:
    """Where a process is, per key; absent: anywhere."""

    def __init__(self) -> None:
        self.last: dict[str, Last] = {}

    def follow(self, operation: Operation, logs: dict[str, KeyLog]) -> None:
        """Handle what moves positions without returning records."""
        match operation.f:
            case "assign":
                self.last = {key: at for key, at in self.last.items() if key in operation.v}
            case "subscribe" | "crash" | "assigned":
                self.last.clear()
            case "seek":
                for key, offset in operation.v.items():
                    if key in logs:
                        self.last[key] = (_index_before(logs[key], offset), operation)


def _index_before(log: KeyLog, offset: int) -> int:
    return bisect_left(log.offsets, offset) - 1


def order_of_polls(derived: Derived) -> Iterator[Anomaly]:
    """poll-skip, nonmonotonic-poll and their forms within one operation (int-)."""
    positions: dict[Process, _Positions] = {}
    for operation in derived.operations:
        here = positions.setdefault(operation.process, _Positions())
        here.follow(operation, derived.logs)
        if operation.f not in ("poll", "txn") or operation.outcome == "info":
            continue
        moved = {key for key, _ in operation.polls() if key in operation.meta.get("rebalanced", ())}
        for key, records in operation.polls():
            if key not in derived.logs:
                continue
            if key in moved:
                here.last.pop(key, None)
            yield from _one_key(derived.logs[key], key, records, operation, here)
            if operation.outcome == "fail":
                here.last.pop(key, None)  # an aborted transaction may go back, or not


def _one_key(
    log: KeyLog,
    key: str,
    records: list[tuple[int, int]],
    operation: Operation,
    here: _Positions,
) -> Iterator[Anomaly]:
    last = here.last.get(key)
    for number, (offset, value) in enumerate(records):
        index = log.index[offset]
        if last is not None and index != last[0] + 1:
            within = number > 0
            name = "poll-skip" if index > last[0] + 1 else "nonmonotonic-poll"
            yield Anomaly(
                f"int-{name}" if within else name,
                f"{operation.process} polled value {value} of {key} at index {index}, offset {offset},"
                f" after index {last[0]}",
                operation.events if within else (last[1].events[-1], *operation.events),
                key=key,
            )
        last = (index, operation)
    if last is not None:
        here.last[key] = last


def realtime_lag(derived: Derived) -> Iterator[Anomaly]:
    """Report how far behind an assigned process was at worst: the age of what it had not seen yet, in seconds."""
    acknowledged: dict[str, list[tuple[int, int]]] = {}
    for key, log in derived.logs.items():
        known = sorted(
            (write.offset, write.operation.ended.t)
            for write in log.writes.values()
            if write.binding and write.offset is not None and write.operation.ended is not None
        )
        acknowledged[key] = known
    worst: tuple[float, str, Operation] | None = None
    for operation in derived.operations:
        if operation.f != "poll" or operation.ended is None or operation.meta.get("catching_up"):
            continue
        now = operation.ended.t
        for key, records in operation.polls():
            known = acknowledged.get(key, [])
            at = bisect_right(known, (records[-1][0], now)) if records else len(known)
            if at < len(known) and known[at][1] < now:
                lag = (now - known[at][1]) / 1e9
                if worst is None or lag > worst[0]:
                    worst = (lag, key, operation)
    if worst is not None:
        lag, key, operation = worst
        yield Anomaly(
            "realtime-lag",
            f"{operation.process} was {lag:.1f} s behind on {key}",
            operation.events,
            bad=False,
            key=key,
        )
