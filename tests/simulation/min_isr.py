"""What "acknowledged" means: min.insync.replicas replicas hold the record when it becomes visible.

A producer with acks=all is answered, and a consumer is served, once the leader's high watermark is above the record. So
the rule is checked when the watermark passes a record: at that moment at least min.insync.replicas replicas hold the
record in their logs (KAFKA-15583). A log that held the record and lost it since counts, too: its disk was wiped or
lost power, and the leader cannot know that yet. So does a log that deleted the record: it begins further on.

A leader with an ISR under min.insync.replicas rejects acks=all, and a refused batch is in no log.
"""

from __future__ import annotations

from uuid import UUID

from kbroker.replica.core.leader_state import LeaderState
from tests.simulation.copies import GONE, Broken, Copy, Record

MIN_INSYNC_REPLICAS = 2
"""Of all topics of the simulated cluster; none has fewer replicas."""


class MinIsr:
    """Counts the replicas that hold a record: *required* of them have to."""

    def __init__(self, copies: dict[tuple[int, UUID, int], Copy], required: int) -> None:
        self._copies = copies
        self._required = required
        self._lost_logs: dict[tuple[int, UUID, int], list[list[Record]]] = {}
        """What a replica's log held before its disk lost something."""

    def keep_logs_of(self, node: int) -> None:
        """Keep what the logs of *node* hold: its disk is about to lose some of it."""
        for key, copy in self._copies.items():
            if key[0] == node and copy.records:
                self._lost_logs.setdefault(key, []).append(list(copy.records))

    def check_visible(
        self, where: tuple[UUID, int], ledger: list[Record], begin: int, name: str
    ) -> None:
        """Check the records of *ledger* from offset *begin* on, which have just become visible."""
        wanted = ledger[begin:]
        end = begin + len(wanted)
        holders = []
        for key, copy in self._copies.items():
            if key[1:] != where:
                continue
            logs = (copy.records, *self._lost_logs.get(key, ()))
            if any(holds(log[begin:end], wanted) for log in logs):
                holders.append(key[0])
        if len(holders) < self._required:
            raise Broken(
                f"MinIsr: {name}: the high watermark passes {begin}..{end - 1}, which only the"
                f" brokers {holders} hold"
            )

    def check_refused(self, leader_state: LeaderState, copy: Copy, before: int, name: str) -> None:
        """Check that no acks=all batch was appended from offset *before* on where the ISR is too small for it.

        Batches of idempotent producers are those: all of them ask for acks=all.
        """
        isr = leader_state.isr
        if len(isr) >= self._required:
            return
        for offset in range(before, len(copy.records)):
            if offset in copy.numbers:
                raise Broken(
                    f"MinIsr: {name}: an acks=all batch was appended at {offset} while the ISR is"
                    f" {sorted(isr)}"
                )


def holds(log: list[Record], wanted: list[Record]) -> bool:
    """Return whether *log* has the records *wanted*, or had them and deleted them."""
    return len(log) == len(wanted) and all(
        mine in (GONE, theirs) for mine, theirs in zip(log, wanted, strict=True)
    )
