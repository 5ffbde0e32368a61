"""Rules about the order of what a producer sends: per key, later sends lie behind earlier ones."""

from __future__ import annotations

from collections.abc import Iterator

from tests.checker.anomaly import Anomaly
from tests.checker.derived import Derived
from tests.checker.history import Operation, Process


def order_of_sends(derived: Derived) -> Iterator[Anomaly]:
    """nonmonotonic-send, and within one operation int-nonmonotonic-send.

    A client that retries without idempotence and is not marked as ordered may reorder: only reported.
    """
    last: dict[tuple[Process, str], tuple[int, Operation]] = {}
    for operation in derived.transfers():
        if not operation.is_acknowledged:
            continue
        bad = bool(operation.meta.get("ordered")) or not operation.may_repeat
        for key, offset, value in operation.sends():
            if offset is None:
                continue
            before = last.get((operation.process, key))
            if before is not None and offset <= before[0]:
                within = before[1] is operation
                yield Anomaly(
                    "int-nonmonotonic-send" if within else "nonmonotonic-send",
                    f"{operation.process} sent value {value} to {key} later,"
                    f" but it is at offset {offset}, not behind {before[0]}",
                    operation.events if within else (*before[1].events, *operation.events),
                    bad=bad,
                    key=key,
                )
            last[operation.process, key] = (offset, operation)
