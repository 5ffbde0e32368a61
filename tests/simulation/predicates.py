"""What must hold after every step, whatever happened; and what must be so again some time after the last fault.

The observer keeps a copy of every replica's log (who wrote each record, and its CRC), and for every partition
the *ledger*: each record that was ever below the high watermark of anybody who thought himself leader, for
that is what consumers may have seen and producers were told is safe. The ledger only grows.

1. ControllerEpoch: /controller_epoch only grows; so does the leader epoch of a partition, and a new leader
   has a new one.
2. LeaderInIsr: no state is written whose leader is outside of its ISR, or whose ISR is empty.
3. OneLeader: a leader epoch is led by one life of one broker.
4. ValidHighWatermark: it is never above its log's end, and does not fall under one leader epoch.
5. LeaderCompleteness: who leads begins with the whole ledger.
6. StrongIsr: every member of the ISR in ZooKeeper has the whole ledger. (A machine that lost its power is
   excused until it is taken out of the ISR.)
7. Agreement: below the high watermark that a replica knows, it holds what the ledger holds.
8. NoDuplicates: an idempotent producer's batch is in the ledger once.
9. Acknowledged: what acks=all answered is in the ledger, at the offset that was answered; what a consumer was
   given too.
10. NoErrors: no broker reports an error of its own making.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kbroker.zk import znodes
from kclient.wire.batches import iterate

if TYPE_CHECKING:
    from kbroker.log.partition_log import PartitionLog
    from kbroker.runtime.partition import Partition
    from tests.simulation.node import Node
    from tests.simulation.zookeeper import Change, Znode

Record = tuple[int, int]
"""Leader epoch and CRC of the batch that holds it."""

Where = tuple[UUID, int]
"""Topic id and partition."""


class Broken(AssertionError):
    """A predicate does not hold."""


@dataclass(slots=True)
class Copy:
    """One replica's log as last seen."""

    log: PartitionLog | None = None
    truncations: int = -1
    records: list[Record] = field(default_factory=list)
    numbers: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """By the offset of a batch of an idempotent producer: its id, epoch and sequence."""
    seen: tuple[Any, ...] = ()
    leading: Any = None
    high_watermark: int = 0


@dataclass(slots=True)
class State:
    """A partition's state as ZooKeeper holds it."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int


class Observer:
    """Looks at the whole cluster after every step."""

    def __init__(self, nodes: dict[int, Node], say: Any) -> None:
        self._nodes = nodes
        self._say = say
        self.copies: dict[tuple[int, UUID, int], Copy] = {}
        self.ledgers: dict[Where, list[Record]] = {}
        self.topics: dict[str, UUID] = {}
        """Names of the topics that exist."""
        self.names: dict[UUID, str] = {}
        self.states: dict[tuple[str, int], State] = {}
        self.replicas: dict[tuple[str, int], tuple[int, ...]] = {}
        self.moving: dict[tuple[str, int], bool] = {}
        self.excused: set[tuple[int, str, int]] = set()
        """Who lost his power and was not taken out of that partition's ISR since."""
        self._leaders: dict[tuple[UUID, int, int], tuple[int, int]] = {}
        self._produced: dict[tuple[UUID, int, int, int, int], int] = {}
        self._controller_epoch = 0
        self.deposits = 0

    # -- ZooKeeper

    def committed(self, change: Change) -> None:
        """Take a write that ZooKeeper has just done."""
        kind, path, data, _, _ = change
        if path == znodes.CONTROLLER_EPOCH:
            epoch = int(data or b"0")
            if epoch < self._controller_epoch:
                raise Broken(f"ControllerEpoch: {self._controller_epoch} -> {epoch}")
            self._controller_epoch = epoch
            self._say(f"controller epoch {epoch}")
            return
        if not path.startswith("/brokers/topics/"):
            return
        elements = path.split("/")
        name = elements[3]
        if len(elements) == 4:
            self._topic(kind, name, data)
        elif elements[-1] == "state":
            self._state(kind, name, int(elements[5]), data)

    def _topic(self, kind: str, name: str, data: bytes) -> None:
        if kind == "delete":
            del self.topics[name]
            self._say(f"topic {name} is gone")
            for key in [key for key in self.replicas if key[0] == name]:
                del self.replicas[key]
            return
        read = znodes.decode_topic(name, data)
        assert read.topic_id is not None
        if kind == "create":
            self._say(f"topic {name} is {read.topic_id.hex[:6]}")
        self.topics[name] = read.topic_id
        self.names[read.topic_id] = name
        for number, assignment in read.partitions.items():
            before = self.replicas.get((name, number))
            if before not in (None, assignment.replicas) or assignment.adding:
                self._say(
                    f"{name}-{number} has the replicas {assignment.replicas},"
                    f" adding {assignment.adding}, removing {assignment.removing}"
                )
            self.replicas[name, number] = assignment.replicas
            self.moving[name, number] = bool(assignment.adding or assignment.removing)

    def _state(self, kind: str, name: str, partition: int, data: bytes) -> None:
        key = (name, partition)
        if kind == "delete":
            self.states.pop(key, None)
            return
        read = json.loads(data)
        state = State(
            read["leader"], read["leader_epoch"], tuple(read["isr"]), read["controller_epoch"]
        )
        before = self.states.get(key)
        where = f"{name}-{partition}"
        self._say(
            f"{where}: leader {state.leader} in epoch {state.leader_epoch},"
            f" ISR {','.join(map(str, state.isr))}"
        )
        if not state.isr or state.leader not in (-1, *state.isr):
            raise Broken(f"LeaderInIsr: {where} is {state}")
        if before is not None:
            if state.leader_epoch < before.leader_epoch:
                raise Broken(f"ControllerEpoch: leader epoch of {where}: {before} -> {state}")
            if state.leader != before.leader and state.leader_epoch == before.leader_epoch:
                raise Broken(f"ControllerEpoch: {where} has another leader: {before} -> {state}")
            if state.controller_epoch < before.controller_epoch:
                raise Broken(f"ControllerEpoch: {where}: {before} -> {state}")
        self.states[key] = state
        self.excused = {
            (node, *at) for node, *at in self.excused if tuple(at) != key or node in state.isr
        }
        self._check_isr(name, partition)

    # -- brokers

    def after(self, node: Node) -> None:
        """Look at *node*, where something may have happened."""
        if node.fatal:
            raise Broken(f"NoErrors: {node.fatal[0]}")
        broker = node.broker
        if broker is None or not node.running:
            return
        for partition in broker.replicas.hosted:
            log = partition.log
            if log is None:
                continue
            leading = partition.leading
            mark = leading.high_watermark if leading is not None else partition.high_watermark
            role = partition.role
            seen = (log, log.log_end_offset, log._truncations, mark, leading, role.leader_epoch)
            topic_id = role.topic_id
            if topic_id is None:
                continue
            where = (node.number, topic_id, partition.key[1])
            copy = self.copies.get(where)
            if copy is None:
                copy = self.copies[where] = Copy()
            if copy.seen != seen:
                self._look(node, partition, copy, seen)

    def _look(self, node: Node, partition: Partition, copy: Copy, seen: tuple[Any, ...]) -> None:
        log, end, truncations, mark, leading, epoch = seen
        before, copy.seen = copy.seen, seen
        if copy.log is not log or copy.truncations != truncations:
            copy.records.clear()
            copy.numbers.clear()
            copy.log, copy.truncations = log, truncations
        _read(log, copy)
        topic_id = partition.role.topic_id
        assert topic_id is not None
        topic, number = partition.key
        ledger = self.ledgers.setdefault((topic_id, number), [])
        name = f"{partition} on {node.number}"
        if before[1:] != seen[1:]:
            standing = "leads" if leading is not None else f"follows {partition.role.leader}"
            self._say(f"{name} {standing} in epoch {epoch}: ends at {end}, watermark {mark}")
        if mark > end:
            raise Broken(f"ValidHighWatermark: {name} ends at {end}, its watermark is {mark}")
        if leading is not None:
            if copy.leading is leading and mark < copy.high_watermark:
                raise Broken(f"ValidHighWatermark: {name}: {copy.high_watermark} -> {mark}")
            if copy.leading is not leading:
                self._begins_to_lead(node, (topic_id, number), epoch, copy, ledger, name)
            if mark > len(ledger):
                self._expose(topic, (topic_id, number), copy, ledger, mark)
        elif mark > len(ledger):
            raise Broken(f"ValidHighWatermark: {name}: {mark}, {len(ledger)} are committed")
        copy.leading, copy.high_watermark = leading, mark
        if copy.records[:mark] != ledger[:mark]:
            raise Broken(
                f"Agreement: {name} below {mark}: {_difference(copy.records, ledger, mark)}"
            )
        if len(copy.records) < len(ledger) or copy.records[: len(ledger)] != ledger:
            self._check_isr(topic, number, only=node.number)

    def _begins_to_lead(
        self,
        node: Node,
        where: Where,
        epoch: int,
        copy: Copy,
        ledger: list[Record],
        name: str,
    ) -> None:
        life = (node.number, node.lives)
        first = self._leaders.setdefault((*where, epoch), life)
        if first != life:
            raise Broken(
                f"OneLeader: {name} in epoch {epoch} is life {node.lives};"
                f" broker {first[0]} led in it, life {first[1]}"
            )
        if copy.records[: len(ledger)] != ledger:
            state = self.states.get((self.names.get(where[0], ""), where[1]))
            if state is not None and state.leader_epoch > epoch:
                return  # a message from the past: he will hear of his successor
            raise Broken(
                f"LeaderCompleteness: {name} begins to lead in epoch {epoch}:"
                f" {_difference(copy.records, ledger, len(ledger))}"
            )

    def _expose(
        self, topic: str, where: Where, copy: Copy, ledger: list[Record], mark: int
    ) -> None:
        for offset in range(len(ledger), mark):
            numbers = copy.numbers.get(offset)
            if numbers is not None:
                first = self._produced.setdefault((*where, *numbers), offset)
                if first != offset:
                    raise Broken(
                        f"NoDuplicates: {topic}-{where[1]}: producer {numbers[0]}'s batch"
                        f" {numbers[2]} is at {first} and at {offset}"
                    )
        ledger += copy.records[len(ledger) : mark]
        self.deposits += 1
        self._check_isr(topic, where[1])

    def _check_isr(self, topic: str, partition: int, only: int | None = None) -> None:
        state = self.states.get((topic, partition))
        topic_id = self.topics.get(topic)
        if state is None or topic_id is None:
            return
        ledger = self.ledgers.get((topic_id, partition), [])
        for member in state.isr if only is None else (only,):
            if member not in state.isr or (member, topic, partition) in self.excused:
                continue
            copy = self.copies.get((member, topic_id, partition))
            records = copy.records if copy is not None else []
            if records[: len(ledger)] != ledger:
                raise Broken(
                    f"StrongIsr: {topic}-{partition}: {member} is in the ISR {state.isr} of epoch"
                    f" {state.leader_epoch}: {_difference(records, ledger, len(ledger))}"
                )

    # -- clients

    def acknowledged(self, topic: str, partition: int, offset: int, crc: int) -> None:
        """Take an answer to acks=all."""
        for topic_id in [t for t, name in self.names.items() if name == topic]:
            ledger = self.ledgers.get((topic_id, partition), [])
            if offset < len(ledger) and ledger[offset][1] == crc:
                return
        raise Broken(f"Acknowledged: {topic}-{partition} at {offset}, CRC {crc:#x}: not committed")

    def consumed(self, topic_id: UUID, partition: int, data: memoryview) -> int:
        """Take what a consumer was given; return the next offset."""
        ledger = self.ledgers.get((topic_id, partition), [])
        following = -1
        for info in iterate(data):
            for offset in range(info.base_offset, info.next_offset):
                record = (info.leader_epoch, info.crc)
                if offset >= len(ledger) or ledger[offset] != record:
                    there = ledger[offset] if offset < len(ledger) else "nothing"
                    raise Broken(
                        f"Acknowledged: a consumer of {self.names.get(topic_id)}-{partition} was"
                        f" given {record} at {offset}, where {there} is committed"
                    )
            following = info.next_offset
        return following

    # -- faults

    def lost_power(self, node: int) -> None:
        """Excuse a machine whose disk forgot something."""
        for topic, partition in self.states:
            self.excused.add((node, topic, partition))

    def may_lose_power(self, node: int) -> bool:
        """Whether it is within the promise: one disk at a time, and never the last of an ISR."""
        return all(lost == node for lost, *_ in self.excused) and all(
            node not in state.isr or len(state.isr) > 1 for state in self.states.values()
        )

    # -- the end

    def not_whole(self, tree: dict[str, Znode], expected: Iterable[str]) -> str | None:
        """Say what is still missing, None once the cluster is whole."""
        if sorted(self.topics) != sorted(expected):
            return f"the topics are {sorted(self.topics)}, not {sorted(expected)}"
        for path in (znodes.DELETE_TOPICS, znodes.ISR_CHANGES):
            if tree[path].children:
                return f"{path} still has {sorted(tree[path].children)}"
        for (topic, partition), replicas in self.replicas.items():
            if self.moving.get((topic, partition)):
                return f"{topic}-{partition} is being moved still: {replicas}"
            missing = self._not_whole(topic, partition, replicas)
            if missing is not None:
                return f"{topic}-{partition}: {missing}"
        return self._leftovers()

    def _not_whole(self, topic: str, partition: int, replicas: tuple[int, ...]) -> str | None:
        state = self.states.get((topic, partition))
        if state is None:
            return "no state"
        if sorted(state.isr) != sorted(replicas) or state.leader < 0:
            return f"{state}, replicas {replicas}"
        topic_id = self.topics[topic]
        ledger = self.ledgers.get((topic_id, partition), [])
        for number in replicas:
            broker = self._nodes[number].broker
            assert broker is not None
            held = broker.replicas._partitions.get((topic, partition))
            if held is None or held.log is None or held.topic_id != topic_id:
                return f"broker {number} has no replica"
            if held.role.leader != state.leader or held.role.leader_epoch != state.leader_epoch:
                return f"broker {number} believes in {held.role.leader}, epoch {held.role.leader_epoch}"
            copy = self.copies.get((number, topic_id, partition))
            if copy is None or copy.records != ledger:
                there = [] if copy is None else copy.records
                return (
                    f"broker {number}: {_difference(there, ledger, max(len(there), len(ledger)))}"
                )
            if held.leading is None and held.high_watermark != len(ledger):
                return f"broker {number} knows {held.high_watermark} of {len(ledger)}"
        for number, node in self._nodes.items():
            assert node.broker is not None
            told = node.broker.metadata.partition(topic, partition)
            if told is None or told.leader != state.leader or sorted(told.isr) != sorted(state.isr):
                return f"broker {number} tells clients {told}, not {state}"
        return None

    def _leftovers(self) -> str | None:
        for number, node in self._nodes.items():
            assert node.broker is not None
            for partition in node.broker.replicas.hosted:
                if self.topics.get(partition.key[0]) != partition.topic_id:
                    return f"broker {number} still has {partition} of {partition.topic_id}"
                if number not in self.replicas.get(partition.key, ()):
                    return f"broker {number} still has {partition}, which was moved"
            for name in node.broker.metadata.topics:
                if name not in self.topics:
                    return f"broker {number} still tells of {name}"
        return None


def _read(log: PartitionLog, copy: Copy) -> None:
    """Bring *copy* up to the end of *log*."""
    records = copy.records
    while len(records) < log.log_end_offset:
        slices = log.read(len(records), 1 << 20).slices
        data = b"".join(part.read() for part in slices)
        if not data:
            raise Broken(
                f"{log.directory} ends at {log.log_end_offset}, and {len(records)} is not there"
            )
        for info in iterate(data):
            if info.base_offset != len(records):
                raise Broken(f"{log.directory}: a batch at {info.base_offset}, not {len(records)}")
            records += [(info.leader_epoch, info.crc)] * info.record_count
            if info.producer_id >= 0:
                copy.numbers[info.base_offset] = (
                    info.producer_id, info.producer_epoch, info.base_sequence,
                )  # fmt: skip


def _difference(records: list[Record], ledger: list[Record], up_to: int) -> str:
    for offset in range(up_to):
        ours = records[offset] if offset < len(records) else None
        theirs = ledger[offset] if offset < len(ledger) else None
        if ours != theirs:
            return (
                f"at {offset} it has {_shown(ours)}, committed is {_shown(theirs)}"
                f" (it ends at {len(records)}, the ledger at {len(ledger)})"
            )
    return "no difference"


def _shown(record: Record | None) -> str:
    return "nothing" if record is None else f"{record[1]:08x} of epoch {record[0]}"
