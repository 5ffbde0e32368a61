"""What must hold after every step, and what must hold again some time after the last fault.

The observer keeps a copy of every replica's log (the leader epoch of each record, and its CRC), and for every partition
the *ledger*: each record that was ever below the high watermark of any broker that considered itself leader, for
that is what consumers may have read and producers got acknowledged. The ledger only grows, except by an accepted loss
(`losses.py`): then it is cut where the new leader's log ends, and earlier epochs are judged no more.

1. ControllerEpoch: /controller_epoch only grows; so does the leader epoch of a partition, and a new leader
   has a new one. No deposed controller elects a leader.
2. LeaderInIsr: no state is written with a leader outside of its ISR, or with an empty ISR.
3. OneLeader: a leader epoch is led by one run of one broker's process.
4. ValidHighWatermark: it is never above its log's end, nor below a leader's log start, and does not fall under one
   leader epoch.
5. LeaderCompleteness: a leader begins with the whole ledger, unless its election is an accepted loss.
6. StrongIsr: every member of the ISR in ZooKeeper has the whole ledger, unless its disk has lost data since the broker
   epoch by which it is a member.
7. Agreement: below the high watermark that a replica knows, it holds what the ledger holds; and a log begins
   nowhere above what is committed, at 0 where nothing is ever deleted.
8. NoDuplicates: an idempotent producer's batch is in the ledger once.
9. Acknowledged: what acks=all acknowledged is in the ledger, at the acknowledged offset; so is what a consumer
   received.
10. NoErrors: no broker reports an error of its own making.
11. Unclean: a leader is elected with a loss only where all members of the ISR and the ELR have lost data, where the
    topic allows it, or where the operator accepted it; and the state records it.
12. Available: at the end a partition is without a leader only where all those members have lost data, or are on a
    broker that lost another of its disks.
13. Led: a broker that lost a disk leads nothing that was on it, where another one could lead; without a restart.
14. Flushed: where flush.messages=1 every member of the ISR has the whole ledger synced. Power takes nothing of it: 5
    and 6 hold for members that lost power, too.
15. Metadata: at the end every broker's metadata has the actual leaders and ISRs, all brokers, and the
    controller.
16. MinIsr: what becomes visible is held by min.insync.replicas replicas, and acks=all is refused where the ISR is
    smaller (`min_isr.py`).
17. LeaderEpoch: the leader epoch of a replica does not fall in one run of its broker.
18. StaleBrokerEpoch: no leader proposes a member of the ISR in a broker epoch that it knows to be over (KIP-903).
19. ExpiredLeader: a leader with an expired session serves no client once its successor leads (S11,
    `expired_leaders.py`).
20. Sequences: the batches of an idempotent producer follow each other in the ledger, and what a producer sends out of
    its sequence, or in an epoch that is over, is refused (`sequences.py`).
21. ValidBatches: the CRC of every batch that a log gives out is right.
22. TornTail: a log that was opened again has nothing behind its last batch on the disk (`disk_checks.py`, 22 to 25).
23. RecoveryPoint: everything below a recovery point, in memory or in its checkpoint, is on the disk itself.
24. CleanShutdown: a directory is marked clean when all logs in it are synced, and not while its broker runs.
25. Fenced: after a write or a sync of a segment failed, nothing more is written to its log by the same process.

What holds of consumer groups and committed offsets is in `group_rules.py`, what holds of transactions in
`transaction_rules.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from kbroker.common.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.log.unified_log import UnifiedLog
from kbroker.replica.core.leader_state import LeaderState
from kbroker.replica.partition import Partition
from kbroker.zk import znodes
from kclient.wire.batches import iterate
from tests.simulation import disk_checks
from tests.simulation.clock import Scheduler
from tests.simulation.copies import Broken, Copy, Record, difference
from tests.simulation.expired_leaders import ExpiredLeaders
from tests.simulation.group_rules import PREFIX, GroupRules
from tests.simulation.losses import Losses, State
from tests.simulation.min_isr import MIN_INSYNC_REPLICAS, MinIsr
from tests.simulation.node import Node
from tests.simulation.sequences import Sequences
from tests.simulation.synced import synced_end
from tests.simulation.transaction_rules import PREFIX as TRANSACTIONS
from tests.simulation.transaction_rules import TOPIC as TRANSACTIONAL_TOPIC
from tests.simulation.transaction_rules import TransactionRules
from tests.simulation.zookeeper import Change, Znode

Where = tuple[UUID, int]
"""Topic id and partition."""


class Observer:
    """Looks at the whole cluster after every step."""

    def __init__(
        self,
        nodes: dict[int, Node],
        trace: Any,
        scheduler: Scheduler,
        *,
        min_insync_replicas: int = MIN_INSYNC_REPLICAS,
    ) -> None:
        self._nodes = nodes
        self._trace = trace
        self.copies: dict[tuple[int, UUID, int], Copy] = {}
        self.min_isr = MinIsr(self.copies, min_insync_replicas)
        self.expired_leaders = ExpiredLeaders(nodes, scheduler)
        self._copy_of: dict[Partition, tuple[UUID, Copy]] = {}
        """The same, by the replica itself, and the topic it was of when that was looked up."""
        self.ledgers: dict[Where, list[Record]] = {}
        self.topics: dict[str, UUID] = {}
        """Names of the topics that exist."""
        self.names: dict[UUID, str] = {}
        self.states: dict[tuple[str, int], State] = {}
        self.replicas: dict[tuple[str, int], tuple[int, ...]] = {}
        self.moving: dict[tuple[str, int], bool] = {}
        self.losses = Losses()
        self.groups = GroupRules(nodes, self.states, trace)
        self.transactions = TransactionRules(nodes, self.states, self.losses, trace)
        self.groups.transactional_offset = self.transactions.offset_written
        self.deletes = False
        """Whether records are deleted at all, by retention or by request."""
        self._loss_epochs: dict[Where, int] = {}
        """The leader epoch that began with the last accepted loss."""
        self._lost: dict[Where, set[tuple[int, int]]] = {}
        """The committed records that are lost: offsets and CRCs."""
        self._leaders: dict[tuple[UUID, int, int], tuple[int, int]] = {}
        self._sequences = Sequences()
        self._controller_epoch = 0
        self.ledger_updates = 0

    # -- ZooKeeper

    def committed(self, change: Change) -> None:
        """Take a write that ZooKeeper has just done."""
        kind, path, data, _, _ = change
        if path == znodes.CONTROLLER_EPOCH:
            epoch = int(data or b"0")
            if epoch < self._controller_epoch:
                raise Broken(f"ControllerEpoch: {self._controller_epoch} -> {epoch}")
            self._controller_epoch = epoch
            self._trace(f"controller epoch {epoch}")
            return
        self.expired_leaders.committed(kind, path)
        if path.startswith(PREFIX):
            self.groups.committed(change)
        if path.startswith(TRANSACTIONS):
            self.transactions.committed(change)
        if path.startswith(f"{znodes.DELETE_TOPICS}/"):
            self.groups.deletion_requested(path.rpartition("/")[2], kind != "delete")
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
            self.groups.topic_deleted(name)
            self._trace(f"topic {name} is gone")
            for key in [key for key in self.replicas if key[0] == name]:
                del self.replicas[key]
                self.losses.pending.discard(key)
                self.losses.accepted_by_operator.discard(key)
            return
        read = znodes.decode_topic(name, data)
        assert read.topic_id is not None
        if name == OFFSETS_TOPIC:
            self.groups.partitions = self.transactions.group_partitions = len(read.partitions)
        if name == TRANSACTIONS_TOPIC:
            self.transactions.partitions = len(read.partitions)
        if kind == "create":
            self.groups.topic_created(name)
            self._trace(f"topic {name} is {read.topic_id.hex[:6]}")
        self.topics[name] = read.topic_id
        self.names[read.topic_id] = name
        for number, assignment in read.partitions.items():
            before = self.replicas.get((name, number))
            if before not in (None, assignment.replicas) or assignment.adding:
                self._trace(
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
        state = State.decode(data)
        before = self.states.get(key)
        where = f"{name}-{partition}"
        self._trace(
            f"{where}: leader {state.leader} in epoch {state.leader_epoch},"
            f" ISR {','.join(map(str, state.isr))}{' by an unclean election' if state.recovers else ''}"
        )
        if not state.isr or state.leader not in (-1, *state.isr):
            raise Broken(f"LeaderInIsr: {where} is {state}")
        if before is not None:
            if state.leader_epoch < before.leader_epoch:
                raise Broken(f"ControllerEpoch: leader epoch of {where}: {before} -> {state}")
            if state.leader != before.leader and state.leader_epoch == before.leader_epoch:
                raise Broken(f"ControllerEpoch: {where} has another leader: {before} -> {state}")
            by_controller = state.leader_epoch > before.leader_epoch
            if by_controller and state.controller_epoch < self._controller_epoch:
                raise Broken(f"ControllerEpoch: {where} was written by a deposed one: {state}")
            if state.controller_epoch < before.controller_epoch:
                raise Broken(f"ControllerEpoch: {where}: {before} -> {state}")
            if state.leader not in (-1, before.leader):
                wrong = self.losses.elected(key, before, state)
                if wrong is not None:
                    raise Broken(f"Unclean: {where} {wrong}: {before.member_epochs} -> {state}")
            if state.leader >= 0:
                self.losses.accepted_by_operator.discard(key)
        self.states[key] = state
        self._check_isr(name, partition)

    # -- brokers

    def after(self, node: Node) -> None:
        """Look at *node*, where something may have happened."""
        if node.fatal:
            raise Broken(f"NoErrors: {node.fatal[0]}")
        if node.wrong is not None or node.disk.written_after_a_failure:
            self.check_disk(node)
        process = node.process
        if process is None or not process.alive:
            return
        copy_of = self._copy_of
        for partition in node.partitions.values():
            log = partition.log
            if log is None:
                continue
            leader_state, role, flush_state = (
                partition.leader_state,
                partition.role,
                log.flush_state,
            )
            pending = None
            if leader_state is not None:
                mark, pending = leader_state.high_watermark, leader_state.pending
            elif (follower_state := partition.follower_state) is not None:
                mark = follower_state.high_watermark
            else:
                mark = partition.high_watermark
            seen = (
                log, log.log_end_offset, flush_state.truncations, mark, leader_state, role.leader_epoch,
                log.log_start_offset, pending, flush_state.recovery_point,
            )  # fmt: skip
            topic_id = role.topic_id
            found = copy_of.get(partition)
            if found is None or found[0] is not topic_id:
                if topic_id is None:
                    continue
                found = copy_of[partition] = topic_id, self._copy(node, partition)
            if found[1].seen != seen:
                self._look(node, partition, found[1], seen)

    def check_disk(self, node: Node) -> None:
        """Raise what was found wrong on the disks of *node*."""
        if node.wrong is not None:
            raise Broken(f"{node.wrong}, on {node.number}")
        if node.disk.written_after_a_failure:
            path = node.disk.written_after_a_failure[0]
            raise Broken(f"Fenced: {path} on {node.number} is written to after a failure")

    def _copy(self, node: Node, partition: Partition) -> Copy:
        assert partition.role.topic_id is not None
        where = (node.number, partition.role.topic_id, partition.key[1])
        return self.copies.setdefault(where, Copy())

    def _look(self, node: Node, partition: Partition, copy: Copy, seen: tuple[Any, ...]) -> None:
        log, end, truncations, mark, leader_state, epoch, start, _, recovery_point = seen
        before, copy.seen = copy.seen, seen
        had = len(copy.records)
        self._check_files(node, copy, log, recovery_point)
        copy.look(log, truncations)
        topic_id = partition.role.topic_id
        assert topic_id is not None
        topic, number = partition.key
        self._take_markers(topic, number, copy, had)
        where = (topic_id, number)
        ledger = self.ledgers.setdefault(where, [])
        name = f"{partition} on {node.number}"
        if before and before[0] is log and epoch < before[5]:
            raise Broken(f"LeaderEpoch: {name} goes from epoch {before[5]} back to {epoch}")
        if before[1:7] != seen[1:7]:
            role_text = "leads" if leader_state is not None else f"follows {partition.role.leader}"
            begins = f"begins at {start}, " if start else ""
            self._trace(
                f"{name} {role_text} in epoch {epoch}: {begins}ends at {end}, watermark {mark}"
            )
        if mark > end:
            raise Broken(f"ValidHighWatermark: {name} ends at {end}, its watermark is {mark}")
        if log.topic_id is None and partition.role.leader < 0:
            return  # of another partition, maybe: it serves nothing, and is set aside with a leader
        loss_epoch = self._loss_epochs.get(where, -1)
        if epoch < loss_epoch:
            # This broker does not know of the loss yet. The records that it still serves were committed.
            self._lost[where].update((n, copy.records[n][1]) for n in range(start, mark))
            return
        if leader_state is not None:
            self._check_rules(node, copy, before, seen, had, name)
            self._leads(node, partition, copy, ledger, name, seen)
            loss_epoch = self._loss_epochs.get(where, -1)
        elif copy.reconciled < loss_epoch and copy.compare(ledger) < mark:
            return  # its registration is not known yet
        elif mark > len(ledger):
            raise Broken(f"ValidHighWatermark: {name}: {mark}, {len(ledger)} are committed")
        copy.reconciled = loss_epoch
        copy.leader_state, copy.high_watermark = leader_state, mark
        if start > len(ledger) or (start and not self.deletes):
            raise Broken(f"Agreement: {name} begins at {start}, {len(ledger)} are committed")
        agreed = copy.compare(ledger)
        if agreed < mark:
            raise Broken(f"Agreement: {name} below {mark}: {difference(copy, ledger)}")
        if agreed < len(ledger):
            self._check_isr(topic, number, only=node.number)
        else:
            self.losses.complete(node.number, partition.key)

    def _take_markers(self, topic: str, partition: int, copy: Copy, had: int) -> None:
        """Give the rules of transactions what *copy* did not have before, or all after it was truncated."""
        if topic == TRANSACTIONAL_TOPIC and (len(copy.records) > had or not copy.agreed):
            for offset, content in copy.transactional.items():
                self.transactions.appended(partition, offset, copy.records[offset], content)

    def _check_files(self, node: Node, copy: Copy, log: UnifiedLog, recovery_point: int) -> None:
        is_new, disk = copy.log is not log, node.disk
        wrong = disk_checks.wrong_tail(disk, log) if is_new else None
        if wrong is None and (is_new or recovery_point > copy.recovery_point):
            known = 0 if is_new else copy.recovery_point
            wrong = disk_checks.wrong_recovery_point(disk, log.directory, recovery_point, known)
        copy.recovery_point = recovery_point
        if wrong is not None:
            raise Broken(f"{wrong}, on {node.number}")

    def _leads(
        self,
        node: Node,
        partition: Partition,
        copy: Copy,
        ledger: list[Record],
        name: str,
        seen: tuple[Any, ...],
    ) -> None:
        mark, leader_state, epoch, start = seen[3:7]
        if mark < start:
            raise Broken(f"ValidHighWatermark: {name} begins at {start}, its watermark is {mark}")
        if copy.leader_state is leader_state and mark < copy.high_watermark:
            raise Broken(f"ValidHighWatermark: {name}: {copy.high_watermark} -> {mark}")
        if copy.leader_state is not leader_state:
            copy.compare(ledger)
            self._begins_to_lead(node, partition, epoch, copy, ledger, name)
        if mark > len(ledger):
            assert partition.topic_id is not None
            where = (partition.topic_id, partition.key[1])
            begin = len(ledger)
            self._extend_ledger(partition.key[0], where, copy, ledger, mark)
            if copy.leader_state is leader_state or where not in self._loss_epochs:
                self.min_isr.check_visible(where, ledger, begin, name)
        if partition.key[0] == TRANSACTIONAL_TOPIC:
            self.transactions.stable(
                node.number, partition.key[1], leader_state, seen[0].last_stable_offset(mark)
            )

    def _check_rules(
        self,
        node: Node,
        copy: Copy,
        before: tuple[Any, ...],
        seen: tuple[Any, ...],
        had: int,
        name: str,
    ) -> None:
        """Check what a leader has just appended, from offset *had* on, and the ISR that it proposes."""
        leader_state: LeaderState = seen[4]
        if copy.leader_state is leader_state:
            self.min_isr.check_refused(leader_state, copy, had, name)
        write = leader_state._pending_write
        if write is None or (before and before[7] is seen[7]):
            return
        assert node.parts is not None
        for member, epoch in write.epochs:
            known = node.parts.metadata.brokers.get(member)
            if member not in leader_state.isr and known is not None and epoch < known.epoch:
                raise Broken(
                    f"StaleBrokerEpoch: {name} proposes {member} by its broker epoch {epoch}, and knows"
                    f" that it is {known.epoch} now"
                )

    def _begins_to_lead(
        self,
        node: Node,
        partition: Partition,
        epoch: int,
        copy: Copy,
        ledger: list[Record],
        name: str,
    ) -> None:
        key, topic_id = partition.key, partition.role.topic_id
        assert topic_id is not None
        where = (topic_id, key[1])
        run = (node.number, node.starts)
        self.expired_leaders.leads(where, epoch, node.number)
        first = self._leaders.setdefault((*where, epoch), run)
        if first != run:
            raise Broken(
                f"OneLeader: {name} in epoch {epoch} is run {node.starts};"
                f" broker {first[0]} led in it, run {first[1]}"
            )
        state = self.states.get(key) if self.topics.get(key[0]) == topic_id else None
        if state is None or state.leader_epoch > epoch:
            return  # a late request: the next one makes it follow
        is_accepted_loss = key in self.losses.pending
        self.losses.pending.discard(key)
        if is_accepted_loss:
            # Even where nothing is lost yet: a deposed leader may still acknowledge something.
            left = copy.agreed
            if key[0] in self.losses.flushed:
                # A record that was not synced is not a copy of this replica: the leader commits it again after a sync.
                synced = synced_end(node.disk, copy, ledger)
                left = min(left, max(synced, partition.high_watermark))
            self._cut(where, left, epoch)
        elif copy.agreed < len(ledger):
            raise Broken(
                f"LeaderCompleteness: {name} begins to lead in epoch {epoch}:"
                f" {difference(copy, ledger)}"
            )

    def _cut(self, where: Where, end: int, epoch: int) -> None:
        """Remove from the ledger what the election of *epoch* lost."""
        ledger = self.ledgers[where]
        self._trace(f"{self.names[where[0]]}-{where[1]}: of {len(ledger)} records {end} are left")
        lost = self._lost.setdefault(where, set())
        lost.update((offset, ledger[offset][1]) for offset in range(end, len(ledger)))
        del ledger[end:]
        self._loss_epochs[where] = epoch
        for (_, topic_id, partition), copy in self.copies.items():
            if (topic_id, partition) == where:
                copy.agreed = min(copy.agreed, end)
        self._sequences.cut(where, end)

    def has_lost(self, topic: str, partition: int) -> bool:
        """Return whether a leader may lack the state of producers: a loss was accepted, or records are deleted."""
        return self.deletes or (topic, partition) in self.losses.accepted_losses

    def _extend_ledger(
        self, topic: str, where: Where, copy: Copy, ledger: list[Record], mark: int
    ) -> None:
        for offset in range(len(ledger), mark):
            numbers = copy.numbers.get(offset)
            if numbers is not None:
                self._sequences.committed(
                    f"{topic}-{where[1]}", where, numbers[:3], range(offset, offset + numbers[3]),
                    start=copy.start, known=not self.has_lost(topic, where[1]),
                )  # fmt: skip
            content = copy.transactional.get(offset)
            if content is not None:
                self.transactions.exposed(where[1], offset, copy.records[offset], content)
        ledger += copy.records[len(ledger) : mark]
        self.ledger_updates += 1
        self._check_isr(topic, where[1])

    def _check_isr(self, topic: str, partition: int, only: int | None = None) -> None:
        key = (topic, partition)
        state = self.states.get(key)
        topic_id = self.topics.get(topic)
        if state is None or topic_id is None or key in self.losses.pending:
            return
        ledger = self.ledgers.get((topic_id, partition), [])
        for member in state.isr if only is None else (only,):
            if member not in state.isr:
                continue
            copy = self.copies.get((member, topic_id, partition))
            if self.losses.may_lack_records(member, key, state.member_epochs[member]):
                continue
            if (copy.compare(ledger) if copy is not None else 0) != len(ledger):
                raise Broken(
                    f"StrongIsr: {topic}-{partition}: {member} is in the ISR {state.isr} of epoch"
                    f" {state.leader_epoch}: {difference(copy, ledger)}"
                )
            if copy is not None and topic in self.losses.flushed:
                self._check_synced(member, f"{topic}-{partition}", copy, ledger)

    def _check_synced(self, member: int, name: str, copy: Copy, ledger: list[Record]) -> None:
        end = synced_end(self._nodes[member].disk, copy, ledger)
        if end < len(ledger):
            raise Broken(
                f"Flushed: {name} is synced below {end} on {member}, which is in the ISR;"
                f" {len(ledger)} are committed"
            )

    # -- clients

    def acknowledged(self, topic: str, partition: int, offset: int, crc: int) -> None:
        """Take an answer to acks=all."""
        for topic_id in [t for t, name in self.names.items() if name == topic]:
            ledger = self.ledgers.get((topic_id, partition), [])
            if offset < len(ledger) and ledger[offset][1] == crc:
                return
            if (offset, crc) in self._lost.get((topic_id, partition), ()):
                return
        raise Broken(f"Acknowledged: {topic}-{partition} at {offset}, CRC {crc:#x}: not committed")

    def consumed(self, topic_id: UUID, partition: int, data: memoryview) -> int:
        """Take what a consumer was given; return the next offset."""
        ledger = self.ledgers.get((topic_id, partition), [])
        lost = self._lost.get((topic_id, partition), ())
        following = -1
        for info in iterate(data):
            for offset in range(info.base_offset, info.next_offset):
                record = (info.leader_epoch, info.crc)
                if (offset, info.crc) in lost:
                    continue
                if offset >= len(ledger) or ledger[offset] != record:
                    there = ledger[offset] if offset < len(ledger) else "nothing"
                    raise Broken(
                        f"Acknowledged: a consumer of {self.names.get(topic_id)}-{partition} was"
                        f" given {record} at {offset}, where {there} is committed"
                    )
            following = info.next_offset
        return following

    # -- losses

    def lost_power(self, node: int, zxid: int) -> None:
        """Record that *node* may have lost records, and with them what it reconciled after an accepted loss."""
        self.losses.power_lost(node, zxid)
        for (number, _, _), copy in self.copies.items():
            if number == node:
                copy.reconciled = -1

    @property
    def has_members_with_lost_data(self) -> bool:
        """Whether a member of an ISR or ELR has lost data since."""
        return any(
            self.losses.has_lost_data(node, key, epoch)
            for key, state in self.states.items()
            for node, epoch in state.member_epochs.items()
        )

    def leaderless(self) -> list[tuple[str, int]]:
        """Return the partitions without a leader that need none: the operator has to decide.

        Raise Broken for one that a replica should lead.
        """
        found = []
        for key, state in self.states.items():
            if state.leader >= 0 or key[0] not in self.topics:
                continue
            if not self.losses.may_be_leaderless(key, state):
                raise Broken(
                    f"Available: {key} has no leader, its members are {state.member_epochs}"
                )
            found.append(key)
        return found

    def not_led(self) -> str | None:
        """Return a partition that is led from a failed disk although another replica could lead it, else None."""
        for key, state in self.states.items():
            if state.leader < 0 or key[0] not in self.topics or self._serves(state.leader, key):
                continue
            others = [
                number
                for number, epoch in state.member_epochs.items()
                if self._serves(number, key) and self.losses.must_be_complete(number, key, epoch)
            ]
            if self._nodes[state.leader].has_failed_disk and others:
                return f"{key} is led by {state.leader} from a failed disk; {others} could lead"
        return None

    def _serves(self, number: int, key: tuple[str, int]) -> bool:
        """Return whether a broker runs and has its replica of a partition on a disk that works."""
        node = self._nodes[number]
        if not node.running or node.broker is None:
            return False
        partition = node.partitions.get(key)
        return partition is not None and partition.offline is None

    # -- the end

    def not_whole(self, tree: dict[str, Znode], expected: Iterable[str]) -> str | None:
        """Return what is still missing, None once the cluster is whole."""
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
        seat = tree.get(znodes.CONTROLLER)
        if seat is None:
            return "there is no controller"
        return self._leftovers(znodes.decode_controller(seat.data).broker_id)

    def _not_whole(self, topic: str, partition: int, replicas: tuple[int, ...]) -> str | None:
        state = self.states.get((topic, partition))
        if state is None:
            return "no state"
        if sorted(state.isr) != sorted(replicas) or state.leader < 0:
            return f"{state}, replicas {replicas}"
        topic_id = self.topics[topic]
        ledger = self.ledgers.get((topic_id, partition), [])
        for number in replicas:
            held = self._nodes[number].partitions.get((topic, partition))
            if held is None or held.log is None or held.topic_id != topic_id:
                return f"broker {number} has no replica"
            if held.role.leader != state.leader or held.role.leader_epoch != state.leader_epoch:
                return f"broker {number} has leader {held.role.leader} in epoch {held.role.leader_epoch}"
            copy = self.copies.get((number, topic_id, partition))
            if copy is None or copy.compare(ledger) < max(len(copy.records), len(ledger)):
                return f"broker {number}: {difference(copy, ledger)}"
            if held.leader_state is None and held.high_watermark != len(ledger):
                return f"broker {number} knows {held.high_watermark} of {len(ledger)}"
        for number, node in self._nodes.items():
            assert node.parts is not None
            published = node.parts.metadata.partition(topic, partition)
            if (
                published is None
                or published.leader != state.leader
                or sorted(published.isr) != sorted(state.isr)
            ):
                return f"broker {number} has {published} in its metadata, not {state}"
        return None

    def _leftovers(self, controller: int) -> str | None:
        for number, node in self._nodes.items():
            assert node.broker is not None
            assert node.parts is not None
            metadata = node.parts.metadata
            if (
                metadata.controller_id != controller
                or metadata.brokers.keys() != self._nodes.keys()
            ):
                return (
                    f"broker {number} has controller {metadata.controller_id} in its metadata, not"
                    f" {controller}, and the brokers {sorted(metadata.brokers)}"
                )
            for partition in node.partitions.values():
                if self.topics.get(partition.key[0]) != partition.topic_id:
                    return f"broker {number} still has {partition} of {partition.topic_id}"
                if number not in self.replicas.get(partition.key, ()):
                    return f"broker {number} still has {partition}, which was moved"
            for name in metadata.topics:
                if name not in self.topics:
                    return f"broker {number} still has {name} in its metadata"
        return None
