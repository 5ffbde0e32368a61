"""Bank transfers in transactions under kill -9 (S38, S12): `tests.chaos.bank` has the rules that are judged.

1. A producer writes orders. Clients (kclient and librdkafka, each a process) apply them in transactions with the
   offsets of the orders. Readers read all postings with read_committed again and again; each view is judged.
2. Meanwhile clients are killed, paused and doubled (two live processes with one transactional.id); transaction
   coordinators, group coordinators, leaders and the controller are killed, paused beyond their session, and shut down.
3. All is healed; the clients have to apply every order.
4. All clients are killed. After the transaction timeout the last stable offset of each partition is its high watermark,
   and ZooKeeper has no pending offsets. The final postings are read by both libraries.
5. What clients and readers did is a history (`tests.chaos.bank_history`, transactions.jsonl), which the checker judges.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import Producer as LibrdkafkaProducer
from confluent_kafka import TopicPartition as Place

import kclient
from kbroker.local import processes
from kbroker.zk import znodes
from tests.audits.health import audit_log_lines
from tests.audits.logs import audit_logs
from tests.audits.problem import Problem
from tests.chaos import faults
from tests.chaos.bank import (
    ACCOUNTS,
    ORDER_PARTITIONS,
    ORDERS,
    POSTING_PARTITIONS,
    POSTINGS,
    Order,
    View,
    judge,
)
from tests.chaos.bank_history import HISTORY, history
from tests.chaos.bank_reader import READERS
from tests.chaos.cluster import PATIENCE, ChaosCluster
from tests.chaos.mirror_run import MirrorResult
from tests.chaos.recorder import Recorder
from tests.chaos.scenario import play_fault, progress
from tests.checker.verdict import Judgement, check

ABOUT = "bank transfers in transactions: each order once, both postings or none, nothing hangs"
CLIENTS = (("kclient", 8000), ("librdkafka", 8000), ("kclient", 2000), ("librdkafka", 3000))
"""Library and transaction timeout (ms) of each client."""
RATE = 25.0
"""Orders a second."""
APPLIED_WITHIN = 180.0
"""Seconds after healing until each order is applied."""
COORDINATORS = ("__transaction_state", "__consumer_offsets", POSTINGS, ORDERS)


class BankFaults:
    """Faults of brokers by their role, and of clients."""

    def __init__(self, run: BankRun) -> None:
        self._run = run

    @property
    def every(self) -> tuple[faults.Fault, ...]:
        """All, the more important ones more often."""
        return (
            self.kill_a_leader, self.kill_a_leader, self.pause_a_leader, self.kill_client, self.kill_client,
            self.pause_client, self.double_client, faults.kill_controller, faults.bounce, faults.end_session,
            faults.restart_cleanly, faults.lose_answers_to_clients, faults.cut_from_zookeeper,
            faults.cut_from_brokers, self.lose_answers_between_brokers, faults.kill_all,
            faults.lose_answers_of_zookeeper, faults.kill_zookeeper, faults.pause_zookeeper, faults.tear_tail,
            faults.leader_alone_with_clients, faults.one_way, faults.lose_words_of_controller, faults.come_back_empty,
        )  # fmt: skip

    def kill_a_leader(self, cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
        """kill -9 the leader of a partition of one role."""
        key, n = self._leader(cluster, chance)
        cluster.kill(n)
        yield f"kill -9 of broker {n}, leader of {key}"
        cluster.start(n)

    def pause_a_leader(self, cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
        """SIGSTOP the leader of a partition of one role beyond its session."""
        key, n = self._leader(cluster, chance)
        cluster.pause(n)
        time.sleep(faults.LONGER_THAN_A_SESSION)
        yield f"broker {n}, leader of {key}, is paused beyond its session"
        cluster.resume(n)

    def lose_answers_between_brokers(
        self, cluster: ChaosCluster, chance: random.Random
    ) -> Iterator[str]:
        """Requests of one broker reach the others, answers are lost: markers and verifications are sent again."""
        n = cluster.any_leader(chance)
        others = [f"broker-{other}" for other in cluster.ids if other != n]
        cluster.board.hold(*((other, f"broker-{n}") for other in others))
        time.sleep(chance.uniform(0.1, 1.0))
        for other in others:
            cluster.switchboard.reset(f"broker-{n}", other)
        cluster.board.heal()
        yield f"answers to broker {n} from its peers were lost"

    def kill_client(self, cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
        """kill -9 a client; another one begins at once, or later, with its transactional.id, or a new one."""
        number = chance.randrange(len(self._run.clients))
        self._run.kill_client(number)
        if chance.random() < 0.5:
            self._run.start_client(number)
        yield f"kill -9 of client {number}"
        if self._run.clients[number] is None:
            self._run.start_client(number, fresh=chance.random() < 0.5)

    def pause_client(self, cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
        """SIGSTOP a client beyond its session and its transaction timeout."""
        number = chance.randrange(len(self._run.clients))
        with self._run.paused(number):
            time.sleep(faults.LONGER_THAN_A_SESSION + chance.uniform(0, 4))
            yield f"client {number} is paused"

    def double_client(self, cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
        """Start a second process with the transactional.id of a live one."""
        number = chance.randrange(len(self._run.clients))
        double = self._run.launch(number)
        yield f"client {number} is there twice"
        double.kill()
        double.wait()

    @staticmethod
    def _leader(cluster: ChaosCluster, chance: random.Random) -> tuple[str, int]:
        topic = chance.choice(COORDINATORS)
        count = {POSTINGS: POSTING_PARTITIONS, ORDERS: ORDER_PARTITIONS}.get(topic, 5)
        key = f"{topic}-{chance.randrange(count)}"
        n = cluster.leader(key)
        return key, n if n in cluster.alive else chance.choice(cluster.alive)


@dataclass
class OrderProducer:
    """A producer of orders, in the thread of the run."""

    bootstrap: str
    chance: random.Random
    sent: int = 0
    failed: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._producer: Any = LibrdkafkaProducer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "socket.timeout.ms": 5000,
                "message.timeout.ms": 120_000,
                "log_level": 0,
            }
        )

    def send(self) -> None:
        """Send an order between accounts of two partitions."""
        debtor = self.chance.randrange(ACCOUNTS)
        creditor = self.chance.choice(
            [a for a in range(ACCOUNTS) if (a - debtor) % POSTING_PARTITIONS]
        )
        order = Order(debtor, creditor, self.chance.randint(1, 100))
        self._producer.produce(
            ORDERS, order.encode(), partition=self.sent % ORDER_PARTITIONS, on_delivery=self._ended
        )
        self.sent += 1
        self._producer.poll(0)

    def finish(self) -> None:
        """Wait until all are acknowledged."""
        left = self._producer.flush(130)
        if left:
            self.failed["not flushed"] += left

    def _ended(self, error: Any, _message: Any) -> None:
        if error is not None:
            self.failed[error.name()] += 1


class BankRun:
    """One run; everything it makes is under *out*."""

    def __init__(
        self,
        seed: int,
        seconds: float,
        out: Path,
        clients: Sequence[tuple[str, int]] = CLIENTS,
        readers: Sequence[str] = tuple(READERS),
    ) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out = out
        self.seconds = seconds
        self.chance = random.Random(seed)
        self.recorder = Recorder(out / "history.jsonl")
        self.cluster = ChaosCluster(out, self.recorder)
        self.result = MirrorResult()
        self._kinds = clients
        self._libraries = readers
        self.clients: list[subprocess.Popen[bytes] | None] = [None] * len(clients)
        self._generations = [0] * len(clients)
        self._others: list[subprocess.Popen[bytes]] = []
        self._readers: list[Path] = []

    def play(self, script: tuple[faults.Fault, ...] = ()) -> MirrorResult:
        """Do it all, with the faults of *script*, one after the other, or with random ones."""
        cluster = self.cluster
        try:
            cluster.begin()
            cluster.keys += cluster.create_topic(ORDERS, ORDER_PARTITIONS)
            cluster.keys += cluster.create_topic(POSTINGS, POSTING_PARTITIONS)
            for number in range(len(self.clients)):
                self.start_client(number)
            for library in self._libraries:
                self._start_reader(library)
            orders = self._hurt(script)
            progress(cluster, "healing")
            cluster.heal()
            for key in cluster.wait_in_sync():
                self._problem("isr-not-full", key, f"after healing: {cluster.state(key)}")
            self._judge(orders)
        finally:
            self._end_processes()
            self.recorder.close()
            cluster.end()
            (self.out / "verdict.txt").write_text(self.result.to_text() + "\n")
        return self.result

    # -- clients and readers

    def start_client(self, number: int, *, fresh: bool = False) -> None:
        """Start a client; *fresh*: with another transactional.id than its predecessor."""
        self._generations[number] += fresh
        self.clients[number] = self.launch(number)

    def launch(self, number: int) -> subprocess.Popen[bytes]:
        """Start a process of a client."""
        library, timeout_ms = self._kinds[number]
        name = f"bank-{number}-{self._generations[number]}"
        seed = self.chance.randrange(10**6)
        arguments = [library, self.cluster.bootstrap, name, str(seed), str(timeout_ms)]
        process = self._process("tests.chaos.bank_client", arguments, f"client-{number}")
        self._others.append(process)
        return process

    def kill_client(self, number: int) -> None:
        """kill -9."""
        client = self.clients[number]
        if client is not None:
            client.kill()
            client.wait()
            self.clients[number] = None

    def paused(self, number: int) -> _Paused:
        """SIGSTOP, and SIGCONT at the end of the block."""
        return _Paused(self.clients[number])

    def _start_reader(self, library: str) -> None:
        self._readers.append(self.out / f"reader-{library}.out")
        arguments = [library, self.cluster.bootstrap]
        process = self._process("tests.chaos.bank_reader", arguments, f"reader-{library}")
        self._others.append(process)

    def _process(self, module: str, arguments: list[str], name: str) -> subprocess.Popen[bytes]:
        with (
            (self.out / f"{name}.err").open("ab") as errors,
            (self.out / f"{name}.out").open("ab") as output,
        ):
            return processes.start_bound_to_us(
                [sys.executable, "-m", module, *arguments], output=errors, stdout=output
            )

    def _end_processes(self) -> None:
        for process in self._others:
            process.kill()
            process.wait()
        self._others.clear()

    # -- faults

    def _hurt(self, script: tuple[faults.Fault, ...]) -> OrderProducer:
        orders = OrderProducer(self.cluster.bootstrap, random.Random(self.chance.random()))
        self._order(orders, lambda: self._applied() > 0, PATIENCE)
        until = time.monotonic() + self.seconds
        every = BankFaults(self).every
        plan = iter(script)
        while (fault := next(plan, None)) or (not script and time.monotonic() < until):
            chosen = fault or self.chance.choice(every)
            deadline = time.monotonic() + self.chance.uniform(1, 3)
            self._order(orders, lambda at=deadline: time.monotonic() > at, 10)  # type: ignore[misc]
            for _ in range(int(RATE * 4)):  # they arrive during the fault
                orders.send()
            play_fault(self.cluster, self.chance, chosen, self.chance.uniform(0.5, 6), 0.5)
        return orders

    def _order(self, orders: OrderProducer, enough: Callable[[], bool], patience: float) -> None:
        deadline = time.monotonic() + patience
        while not enough() and time.monotonic() < deadline:
            orders.send()
            time.sleep(1 / RATE)

    def _applied(self) -> int:
        """Return the number of transactions that clients committed."""
        return self._notes()["committed"]

    def _notes(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for path in self.out.glob("client-*.out"):
            for line in path.read_text(errors="replace").splitlines():
                found[line.split(" ", 2)[1] if " " in line else line] += 1
        del found[HISTORY]
        return found

    # -- judgement

    def _judge(self, sent: OrderProducer) -> None:
        cluster = self.cluster
        sent.finish()
        if sent.failed:
            self._note(f"orders without an acknowledgement: {dict(sent.failed)}")
        orders = self._read_orders()
        if not sent.failed and len(orders) != sent.sent:
            self._problem("orders", ORDERS, f"{len(orders)} in the log, {sent.sent} acknowledged")
        self._wait_applied(len(orders))
        self._end_processes()
        self._wait_ended()
        finals = {library: read(cluster.bootstrap) for library, read in READERS.items()}
        final = finals["librdkafka"]
        seen = list(self._views())
        views = [*seen, *finals.values()]
        self.result.problems += judge(orders, views, final)
        everything = READERS["librdkafka"](cluster.bootstrap, "read_uncommitted")
        self._note(
            f"{len(orders)} orders, {final.count} postings in {len(final.transactions())} transactions, "
            f"{everything.count - final.count} postings were aborted; {len(views)} views, "
            f"{sum(view.count for view in views)} postings in them; {dict(self._notes())}"
        )
        self._check(seen, list(finals.values()), everything)
        cluster.stop(*cluster.alive)
        logs = audit_logs(
            {n: cluster.brokers[n].data for n in cluster.ids},
            clean=cluster.ids,
            high_watermarks={f"{POSTINGS}-{p}": end for p, end in final.positions.items()},
            topics={ORDERS, POSTINGS},
        )
        self.result.problems += logs.problems
        for n in cluster.ids:
            self.result.problems += audit_log_lines(
                cluster.brokers[n].home / "broker.log", cluster.allowed_log_lines
            )

    def _check(self, views: list[View], finals: list[View], everything: View) -> None:
        """Let the checker judge what clients and readers did."""
        events = history(self._lines(HISTORY), views, finals, everything)
        with (self.out / "transactions.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(event.to_json() + "\n" for event in events)
        verdict = check(events)
        (self.out / "checker.txt").write_text(verdict.to_text() + "\n")
        for one in verdict.anomalies:
            if one.bad:
                self._problem(one.name, one.key or POSTINGS, one.text)
        if verdict.judgement is Judgement.UNKNOWN:
            self._problem("unjudged", POSTINGS, "the checker had too little to judge")
        figures = ", ".join(f"{count} {name}" for name, count in verdict.figures.items())
        self._note(f"checker: {verdict.judgement.value}; {figures}")

    def _lines(self, word: str) -> Iterator[str]:
        """Yield the lines of clients with a word."""
        for path in self.out.glob("client-*.out"):
            for line in path.read_text(errors="replace").splitlines():
                if f" {word} " in line:
                    yield line

    def _views(self) -> Iterator[View]:
        for path in self._readers:
            lines = path.read_text().split("\n")
            for line in lines[:-1]:  # a killed reader leaves half a line
                yield View.from_json(line)

    def _read_orders(self) -> dict[str, Order]:
        consumer: Any = LibrdkafkaConsumer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "group.id": "orders-reader",
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        consumer.assign([Place(ORDERS, p, 0) for p in range(ORDER_PARTITIONS)])
        found: dict[str, Order] = {}
        left = set(range(ORDER_PARTITIONS))
        deadline = time.monotonic() + PATIENCE
        while left and time.monotonic() < deadline:
            for message in consumer.consume(500, 0.5):
                if message.error() is None:
                    place = f"{message.partition()}@{message.offset()}"
                    found[place] = Order.decode(message.value())
                elif message.error().name() == "_PARTITION_EOF":
                    left.discard(message.partition())
        consumer.close()
        if left:
            self._problem("not-readable", ORDERS, f"partitions {left}")
        return found

    def _wait_applied(self, orders: int) -> None:
        deadline = time.monotonic() + APPLIED_WITHIN
        count = 0
        while time.monotonic() < deadline:
            for number, client in enumerate(self.clients):
                if client is None or client.poll() is not None:
                    self.start_client(number)
            with suppress(TimeoutError, kclient.KafkaError):
                count = READERS["kclient"](self.cluster.bootstrap).count
            if count >= 2 * orders:
                progress(self.cluster, f"all {orders} orders are applied")
                return
            time.sleep(0.5)
        text = f"{count} postings of {2 * orders}, {APPLIED_WITHIN:g} s after healing"
        self._problem("not-applied", POSTINGS, text)

    def _wait_ended(self) -> None:
        """Wait until no transaction is open and no offset is pending."""
        deadline = time.monotonic() + PATIENCE
        began = time.monotonic()
        while left := self._open():
            if time.monotonic() > deadline:
                for where, text in left.items():
                    self._problem("hanging", where, text)
                return
            time.sleep(0.2)
        self._note(f"no transaction was open {time.monotonic() - began:.1f} s after the last kill")

    def _open(self) -> dict[str, str]:
        """Return partitions with a last stable offset below the high watermark, and pending offsets."""
        places = [kclient.TopicPartition(POSTINGS, p) for p in range(POSTING_PARTITIONS)]
        ends: list[dict[kclient.TopicPartition, int]] = []
        for isolation in ("read_uncommitted", "read_committed"):
            config = {"bootstrap.servers": self.cluster.bootstrap, "isolation.level": isolation}
            with kclient.Consumer(config=config) as consumer:
                ends.append(consumer.end_offsets(places, 30))
        found = {
            str(tp): f"last stable offset {ends[1][tp]}, high watermark {ends[0][tp]}"
            for tp in places
            if ends[0][tp] != ends[1][tp]
        }
        with self.cluster.observer() as zookeeper:
            path = self.cluster.chroot + znodes.PENDING_OFFSETS
            for name in zookeeper.get_children(path):
                found[name] = "pending offsets"
        return found

    def _problem(self, rule: str, where: str, text: str) -> None:
        self.result.problems.append(Problem(rule, where, text))
        progress(self.cluster, f"BAD: {rule}: {where}: {text}")

    def _note(self, text: str) -> None:
        self.result.lines.append(text)
        progress(self.cluster, text)


class _Paused:
    """A process that is stopped for a block of ``with``."""

    def __init__(self, process: subprocess.Popen[bytes] | None) -> None:
        self._process = process

    def __enter__(self) -> None:
        self._send(signal.SIGSTOP)

    def __exit__(self, *exc: object) -> None:
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
