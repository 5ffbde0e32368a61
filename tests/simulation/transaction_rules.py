"""Transactions: what must hold at every write to ZooKeeper, at every committed batch and at every answer (S38).

Each record names the transaction and the partition that it was written in, and each committed offset is one of a kind.
A transaction is *decided* by the write of PrepareCommit or PrepareAbort. Partitions with an accepted loss of records
are left out from then on (`losses.py`).

1. TransactionWriter: only the leader of its partition of `__transaction_state` writes the znode of a transactional id,
   only the coordinator of the group that of pending offsets.
2. Decision: a commit is decided only if the producer requested it. An abort that it did not request raises the epoch.
   A decision is not changed. The epoch of a producer id and the number of the transaction do not fall.
3. Marker: a marker that is committed to a partition is that of a decided transaction, and has its outcome.
4. Hanging: no record of a transaction is committed to a partition behind the marker of the transaction.
5. LastStableOffset: it is not above the first record of an open transaction that is not decided, and does not fall in
   one leadership. After a restart, a marker above the high watermark counts, as in Kafka.
6. ReadCommitted: a reader gets only records of transactions that were committed before. At the end it gets all
   records of each, in all partitions, each of them once.
7. PendingOffsets: offsets are set only by transactions that were committed, and do not go back. OffsetFetch with
   require_stable does not answer while a transaction is open that committed offsets before, and no former offset after
   the decision. At the end the last committed offset is that of the last such transaction.
8. EndTxn: what is acknowledged is decided; an acknowledged commit is visible, an acknowledged abort is not. A producer
   that was fenced before its request gets no acknowledgement.
9. Liveness: when everything is healed, each transaction ends: no pending offsets are left, all records are stable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kbroker.common.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.coordinator.placement import partition_for
from kbroker.coordinator.transaction.core.records import decode_metadata
from kbroker.coordinator.transaction.core.states import (
    IDLE,
    PREPARED,
    TransactionMetadata,
    TransactionState,
)
from kbroker.zk.znodes import decode_offset
from kbroker.zk.znodes.names import PENDING_OFFSETS, TRANSACTIONAL_IDS, unescape
from kbroker.zk.znodes.transactions import decode_pending_offsets_name
from kclient.wire.error_codes import ErrorCode
from kclient.wire.records import COMMIT
from tests.simulation.copies import Broken, Content, Record
from tests.simulation.losses import Losses, State
from tests.simulation.node import Node
from tests.simulation.zookeeper import Change

TOPIC = "t"
"""The topic that transactions write to. It is never deleted or trimmed."""
GROUP = "tg"
"""The group that transactions commit offsets of."""
PREFIX = "/transactions/"

Where = tuple[UUID, int]


@dataclass(eq=False)
class Transaction:
    """One transaction of a producer."""

    number: int
    id: str
    producer: tuple[int, int]
    """Producer id and epoch."""
    asked: str | None = None
    """`commit` or `abort`: EndTxn was sent."""
    answered: str | None = None
    """`commit` or `abort`: EndTxn was acknowledged."""
    decided: str | None = None
    """`commit` or `abort`, by ZooKeeper."""
    acknowledged: dict[str, int] = field(default_factory=dict)
    """By value: the partitions of records that were acknowledged."""
    firsts: dict[int, int] = field(default_factory=dict)
    """By partition: the offset of the first record that was acknowledged."""
    ended: set[int] = field(default_factory=set)
    """Partitions in which the marker is committed."""
    offset: int | None = None
    """The offset that it commits to the partition of its id in the group."""
    has_offset: bool = False
    """Whether that was acknowledged."""

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.id} (producer {self.producer[0]}, epoch {self.producer[1]})"


@dataclass
class Open:
    """A transaction that is open in the committed records of a partition."""

    transaction: Transaction
    first: int


class TransactionRules:
    """Judges what is written for transactions, and what their producers and readers are answered."""

    def __init__(
        self,
        nodes: dict[int, Node],
        states: dict[tuple[str, int], State],
        losses: Losses,
        log: Callable[[str], None],
    ) -> None:
        self._nodes, self._states, self._losses, self._log = nodes, states, losses, log
        self.writer: Callable[[], int | None] = lambda: None
        """Which broker sent the write that ZooKeeper does; None: no broker did."""
        self.partitions = self.group_partitions = 0
        """Of `__transaction_state` and of `__consumer_offsets`."""
        self.transactions: list[Transaction] = []
        self.stored: dict[str, TransactionMetadata] = {}
        self.pending: dict[tuple[int, str], None] = {}
        self.current: dict[tuple[str, tuple[int, int]], Transaction] = {}
        """By transactional id and producer: the transaction that was begun last."""
        self._epochs: dict[int, int] = {}
        """By producer id: the highest epoch that InitProducerId was answered with."""
        self._open: dict[int, dict[int, Open]] = {}
        """By partition and producer id, in the committed records."""
        self._stable: dict[tuple[int, int], tuple[Any, int]] = {}
        """By broker and partition: the leadership, and the last stable offset."""
        self._applied: dict[int, int] = {}
        """By partition: the offset that ZooKeeper holds for the group."""
        self._by_offset: dict[int, Transaction] = {}
        self._decisions: list[Transaction] = []
        """The transactions that are decided, in that order."""
        self._decided_before: dict[tuple[int, int, Record], int] = {}
        """By partition, offset and batch of a marker: how many were decided when a replica first had it."""
        self._next_offset = 0

    def coordinator(self, name: str) -> int | None:
        """Return the broker that coordinates a transactional id, by ZooKeeper; None if there is none."""
        return self._leader(TRANSACTIONS_TOPIC, name, self.partitions)

    def group_coordinator(self, group: str) -> int | None:
        """Return the broker that coordinates a group, by ZooKeeper; None if there is none."""
        return self._leader(OFFSETS_TOPIC, group, self.group_partitions)

    def leader(self, partition: int) -> int | None:
        """Return the leader of a partition with transactions, by ZooKeeper; None if there is none."""
        state = self._states.get((TOPIC, partition))
        return state.leader if state is not None and state.leader >= 0 else None

    def _leader(self, topic: str, name: str, partitions: int) -> int | None:
        if not partitions:
            return None
        state = self._states.get((topic, partition_for(name, partitions)))
        return state.leader if state is not None and state.leader >= 0 else None

    def is_lossy(self, partition: int) -> bool:
        """Return whether a loss of records of *partition* was accepted."""
        return (TOPIC, partition) in self._losses.accepted_losses

    # -- ZooKeeper

    def committed(self, change: Change) -> None:
        """Take a write below `/transactions` that ZooKeeper has just done."""
        kind, path, data, _, _ = change
        directory, _, name = path.rpartition("/")
        if directory == TRANSACTIONAL_IDS:
            self._wrote(path, self.coordinator(unescape(name)))
            self._stored(unescape(name), kind, path, data)
        elif directory == PENDING_OFFSETS:
            found = decode_pending_offsets_name(name)
            assert found is not None, path
            self._wrote(path, self.group_coordinator(found[1]))
            if kind == "delete":
                del self.pending[found]
            else:
                self.pending[found] = None

    def _wrote(self, path: str, coordinator: int | None) -> None:
        writer = self.writer()
        if writer is not None and writer != coordinator:
            raise Broken(f"TransactionWriter: broker {writer} writes {path}, {coordinator} leads")

    def _stored(self, name: str, kind: str, path: str, data: bytes) -> None:
        if kind == "delete":
            raise Broken(f"TransactionWriter: {path} is deleted")
        before, now = self.stored.get(name), decode_metadata(path, data)
        self.stored[name] = now
        self._log(
            f"transactional id {name}: transaction {now.number} of producer {now.producer_id}, epoch"
            f" {now.producer_epoch}, is {now.state.value}, partitions {sorted(now.partitions)}"
            f" groups {sorted(now.groups)}"
        )
        if before is None:
            return
        same = before.producer_id == now.producer_id
        if now.number < before.number or (same and now.producer_epoch < before.producer_epoch):
            raise Broken(f"Decision: {name} goes back: {before} -> {now}")
        if before.state in PREPARED and now.number == before.number:
            former = before.state is TransactionState.PREPARE_COMMIT
            if former != (
                now.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
            ):
                raise Broken(f"Decision: {name} is decided again: {before} -> {now}")
        if now.state in PREPARED and before.state is TransactionState.ONGOING:
            self._decided(name, before, now)

    def _decided(self, name: str, before: TransactionMetadata, now: TransactionMetadata) -> None:
        is_commit = now.state is TransactionState.PREPARE_COMMIT
        found = self.current.get((name, tuple(before.producer)))  # type: ignore[arg-type]
        is_raised = now.producer_epoch > before.producer_epoch
        asked = found.asked if found is not None and found.decided is None else None
        if is_commit and asked != "commit":
            raise Broken(f"Decision: {name} commits {found}, which did not request it")
        if not is_commit and not is_raised and asked != "abort":
            raise Broken(f"Decision: {name} aborts {found} by itself, without another epoch")
        if found is not None and found.decided is None:
            found.decided = "commit" if is_commit else "abort"
            self._decisions.append(found)

    def offset_written(self, kind: str, path: str, partition: int, data: bytes) -> None:
        """Take a write of the group's offset."""
        if kind == "delete":
            raise Broken(f"PendingOffsets: {path} is deleted")
        value = decode_offset(path, data)
        transaction = self._by_offset.get(value)
        self._log(f"offset of {GROUP}/{partition}: {value} of {transaction}")
        if transaction is None or transaction.decided != "commit":
            raise Broken(
                f"PendingOffsets: {path} becomes {value} of {transaction}, which is"
                f" {transaction and transaction.decided}"
            )
        if value < self._applied.get(partition, -1):
            raise Broken(f"PendingOffsets: {path} goes back to {value}")
        self._applied[partition] = value

    # -- producers

    def initialized(self, producer: tuple[int, int]) -> None:
        """Take an answer to InitProducerId."""
        self._epochs[producer[0]] = max(producer[1], self._epochs.get(producer[0], -1))

    def epoch_of(self, producer_id: int) -> int:
        """Return the highest epoch that was given out for a producer id."""
        return self._epochs.get(producer_id, -1)

    def begins(self, name: str, producer: tuple[int, int]) -> Transaction:
        """Return a new transaction."""
        made = Transaction(len(self.transactions) + 1, name, producer)
        self.transactions.append(made)
        self.current[name, producer] = made
        return made

    def new_offset(self, transaction: Transaction) -> int:
        """Return an offset to commit that no other transaction has."""
        self._next_offset += 1
        transaction.offset = self._next_offset
        self._by_offset[self._next_offset] = transaction
        return self._next_offset

    def answered(self, transaction: Transaction, known_epoch: int) -> None:
        """Take an acknowledgement of EndTxn; *known_epoch*: the highest one that was given out before the request."""
        if known_epoch > transaction.producer[1]:
            raise Broken(f"EndTxn: {transaction} is ended after epoch {known_epoch} was given out")
        if transaction.decided != transaction.asked:
            raise Broken(
                f"EndTxn: {transaction}: {transaction.asked} is acknowledged, it is {transaction.decided}"
            )
        transaction.answered = transaction.asked

    # -- committed batches

    def appended(self, partition: int, offset: int, batch: Record, content: Content) -> None:
        """Take a batch of transactions that a replica has, and no other had before it."""
        if content[1] is not None:
            self._decided_before.setdefault((partition, offset, batch), len(self._decisions))

    def exposed(self, partition: int, offset: int, batch: Record, content: Content) -> None:
        """Take a batch of transactions that is committed at *offset*."""
        producer_id, outcome, values = content
        open_here = self._open.setdefault(partition, {})
        if self.is_lossy(partition):
            open_here.clear()
            return
        found = open_here.get(producer_id)
        if outcome is not None:
            if found is None:
                # It was sent twice, or its transaction has no records here. The next one may be decided by now.
                known = self._decided_before[partition, offset, batch]
                for each in reversed(self._decisions[:known]):
                    if each.producer[0] == producer_id:
                        each.ended.add(partition)
                        break
                return
            del open_here[producer_id]
            is_right = found.transaction.decided == ("commit" if outcome == COMMIT else "abort")
            if not is_right:
                raise Broken(
                    f"Marker: {TOPIC}-{partition} has the marker {outcome} at {offset} for"
                    f" {found.transaction}, which is {found.transaction.decided}"
                )
            found.transaction.ended.add(partition)
            return
        transaction = self.transaction_of(values[0])
        if partition in transaction.ended:
            raise Broken(
                f"Hanging: {TOPIC}-{partition} has {values} at {offset}, behind the marker"
            )
        if found is None:
            open_here[producer_id] = Open(transaction, offset)
        elif found.transaction is not transaction:
            raise Broken(
                f"Marker: {TOPIC}-{partition} has {values} at {offset} without a marker of {found.transaction}"
            )

    def transaction_of(self, value: bytes | str) -> Transaction:
        """Return the transaction of a record."""
        text = value.decode() if isinstance(value, bytes) else value
        return self.transactions[int(text.partition("/")[0]) - 1]

    def stable(self, node: int, partition: int, leader_state: Any, offset: int) -> None:
        """Take the last stable offset of a leader."""
        if self.is_lossy(partition):
            return
        name = f"{TOPIC}-{partition} on {node}"
        state, before = self._stable.get((node, partition), (None, -1))
        if state is leader_state and offset < before:
            raise Broken(f"LastStableOffset: {name}: {before} -> {offset}")
        self._stable[node, partition] = leader_state, offset
        for each in self._open.get(partition, {}).values():
            if offset > each.first and each.transaction.decided is None:
                raise Broken(
                    f"LastStableOffset: {name} is {offset}, {each.transaction} is open from {each.first} on"
                )

    # -- readers

    def read(self, partition: int, values: list[str], last_stable_offset: int) -> None:
        """Judge what a reader with read_committed got."""
        if self.is_lossy(partition):
            return
        for value in values:
            transaction = self.transaction_of(value)
            if transaction.decided != "commit":
                raise Broken(
                    f"ReadCommitted: {TOPIC}-{partition}: {value} of {transaction} is read, which is"
                    f" {transaction.decided}"
                )
        for transaction in self.transactions:
            first = transaction.firsts.get(partition)
            if transaction.decided is None and first is not None and first < last_stable_offset:
                raise Broken(
                    f"LastStableOffset: a reader of {TOPIC}-{partition} got {last_stable_offset}, {transaction}"
                    f" is open from {first} on"
                )

    def fetch_begins(self) -> dict[int, tuple[Transaction, ...]]:
        """Return by partition the transactions that have committed an offset before, and can be visible or open."""
        found: dict[int, tuple[Transaction, ...]] = {}
        for transaction in self.transactions:
            if transaction.has_offset and transaction.decided != "abort":
                partition = offset_partition(transaction.id)
                found[partition] = (*found.get(partition, ()), transaction)
        return found

    def fetch_ends(
        self, before: dict[int, tuple[Transaction, ...]], partition: int, value: int
    ) -> None:
        """Judge an offset that OffsetFetch with require_stable answered."""
        name = f"{GROUP}/{partition}"
        if value != -1:
            transaction = self._by_offset.get(value)
            if transaction is None or transaction.decided != "commit":
                raise Broken(f"PendingOffsets: {name} is {value} of {transaction}, not committed")
        for each in before.get(partition, ()):
            if each.decided is None:
                raise Broken(f"PendingOffsets: {name} is {value} while {each} is open")
            if each.decided == "commit" and each.offset is not None and value < each.offset:
                raise Broken(f"PendingOffsets: {name} is {value}, {each} committed {each.offset}")

    # -- the end

    def not_settled(self) -> str | None:
        """Return a transaction that has not ended, None once there is none."""
        for name, stored in self.stored.items():
            if stored.state not in IDLE:
                return f"transactional id {name} is {stored.state.value}"
        if self.pending:
            return f"offsets are pending: {list(self.pending)}"
        for partition, leader in ((p, self.leader(p)) for p in range(2)):
            if self.is_lossy(partition) or leader is None:
                continue
            held = self._nodes[leader].partitions.get((TOPIC, partition))
            if held is None or held.log is None or held.leader_state is None:
                return f"{TOPIC}-{partition} is not led yet"
            mark = held.leader_state.high_watermark
            stable = held.log.last_stable_offset(mark)
            if stable != held.log.log_end_offset:
                return f"{TOPIC}-{partition} is stable below {stable}, ends at {held.log.log_end_offset}"
        return None

    def judge(self, read: dict[int, list[str]]) -> None:
        """Judge at the end what a reader got, by partition, from the first record to the last one."""
        for partition, values in read.items():
            if len(set(values)) != len(values):
                raise Broken(f"ReadCommitted: {TOPIC}-{partition} has records twice: {values}")
        for transaction in self.transactions:
            self._judge_one(transaction, {p: set(values) for p, values in read.items()})
        for partition, value in self._last_offsets():
            if self._applied.get(partition, -1) != value:
                raise Broken(
                    f"PendingOffsets: {GROUP}/{partition} is {self._applied.get(partition)}, not {value}"
                )

    def _judge_one(self, transaction: Transaction, read: dict[int, set[str]]) -> None:
        if transaction.answered is not None and transaction.answered != transaction.decided:
            raise Broken(f"EndTxn: {transaction} is not as answered")
        if transaction.decided != "commit":
            return  # `read` has found that nothing of it is visible
        for value, partition in transaction.acknowledged.items():
            if not self.is_lossy(partition) and value not in read.get(partition, ()):
                raise Broken(
                    f"ReadCommitted: {TOPIC}-{partition}: {value} of {transaction} is not read, which is committed"
                )

    def _last_offsets(self) -> Iterator[tuple[int, int]]:
        found: dict[int, int] = {}
        for each in self.transactions:
            if each.decided == "commit" and each.has_offset and each.offset is not None:
                partition = offset_partition(each.id)
                found[partition] = max(found.get(partition, -1), each.offset)
        yield from found.items()


def offset_partition(name: str) -> int:
    """Return the partition for which a transactional id commits an offset."""
    return 0 if name == "x" else 1


UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
