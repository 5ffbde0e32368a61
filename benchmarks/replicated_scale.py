"""What happens to a cluster of three: thousands of partitions, a broker killed, all restarted in turn."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.asking import Asking, until_all_say
from benchmarks.clusters import BROKERS, SESSION_S, Trio
from benchmarks.contenders import create_replicated, load, say
from benchmarks.results import Figure
from benchmarks.watching import Watch

WATCHED = "watched"
SAMPLED = "sampled"
"""Led and followed like the topic of thousands of partitions, and asked for in its place until it has come to rest."""
SAMPLED_PARTITIONS = 30
ROLLED_PARTITIONS = 30
GROWTH = (1, 10, 100, 1000, 5000)
_IDLE_S = 5.0
_SETTLE_S = 3.0


def rotated(partitions: int) -> list[list[int]]:
    """Assign three replicas to each, every broker leading a third."""
    turns = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
    return [turns[index % 3] for index in range(partitions)]


def _partitions(number: int) -> str:
    return f"{number:,} partition{'s' * (number > 1)}"


class ScaleFigures:
    """Figures of one cluster; `take` fills them, and leaves the cluster with a broker killed and started again."""

    def __init__(self, divide: int) -> None:
        self._many = 3000 if divide == 1 else 600
        many = _partitions(self._many)
        self.creation = Figure(f"create {many}, RF=3: led, ISR full", "s", False, "<= 0.7 x", 0.7)
        self.failover = Figure(
            f"kill -9 of a leader of {self._many // 3:,}: all led again", "s", False,
            f"<= session ({SESSION_S:.0f} s) + 1 s", goal_value=SESSION_S + 1,
        )  # fmt: skip
        self.headless = Figure(
            "kill -9 of the controller, which leads half of them: all led again", "s", False,
            f"<= session ({SESSION_S:.0f} s) + 1 s", goal_value=SESSION_S + 1,
        )  # fmt: skip
        self.rejoin = Figure("it is back: all in sync again", "s", False)
        self.deaf = {
            what: Figure(f"small requests during {what}: p99", "ms", False)
            for what in ("nothing", "creation", "failover", "return")
        }
        self.deaf_max = {
            what: Figure(f"small requests during {what}: longest", "ms", False)
            for what in ("nothing", "creation", "failover", "return")
        }
        self.failed = Figure("rolling restart: failed sends", "", False, "0", goal_value=0)
        self.leaderless = Figure(
            "rolling restart: longest without a leader", "ms", False, "<= 250 ms", goal_value=250
        )
        self.slowest = Figure("rolling restart: slowest acks=all send", "ms", False)
        self.stopping = Figure("rolling restart: SIGTERM to gone", "s", False)

    def all(self) -> list[Figure]:
        """Return them in the order of the table."""
        return [
            *(self.creation, self.failover, self.rejoin, self.headless),
            *self.deaf.values(),
            *self.deaf_max.values(),
            *(self.failed, self.leaderless, self.slowest, self.stopping),
        ]

    def take(self, make: str, trio: Trio) -> None:
        """Measure one cluster: killed is a broker that is not the controller."""
        create_replicated(trio.bootstrap, WATCHED, [[1], [2], [3]])
        create_replicated(trio.bootstrap, SAMPLED, rotated(SAMPLED_PARTITIONS))
        watch = self._watch(trio)
        time.sleep(2)
        self._deaf(make, "nothing", watch)

        watch = self._watch(trio)
        took = create_replicated(trio.bootstrap, "many", rotated(self._many))
        self.creation.add(make, took)
        time.sleep(1)
        self._deaf(make, "creation", watch)

        watch = self._watch(trio)
        with Asking(trio[1].port) as broker:
            number = 3 if broker.metadata([]).controller_id != 3 else 2
        victim = trio[number]
        victim.kill()
        took = self._until(trio, "many", number, lambda leader, _isr: leader != number)
        self.failover.add(make, took)
        time.sleep(1)
        self._deaf(make, "failover", watch)

        watch = self._watch(trio)
        victim.start()
        self.rejoin.add(make, self._until(trio, "many", number, lambda _leader, isr: len(isr) == 3))
        self._deaf(make, "return", watch)

        with Asking(victim.port) as broker:
            controller = broker.metadata([]).controller_id
        trio[controller].kill()
        took = self._until(trio, "many", controller, lambda leader, _isr: leader != controller)
        self.headless.add(make, took)
        trio[controller].start()
        self._until(trio, "many", controller, lambda _leader, isr: len(isr) == 3)
        self.roll(make, trio)

    def _watch(self, trio: Trio) -> Watch:
        return Watch("stall", WATCHED, *(trio[broker_id].port for broker_id in BROKERS))

    def _deaf(self, make: str, what: str, watch: Watch) -> None:
        seen = watch.end()
        self.deaf[what].add(make, seen["p99_ms"])
        self.deaf_max[what].add(make, seen["max_ms"])

    def _until(
        self, trio: Trio, topic: str, but: int, holds: Callable[[int, list[int]], bool]
    ) -> float:
        """Ask all brokers except *but* until *holds* of every partition's leader and ISR; return the seconds."""
        ports = [trio[broker_id].port for broker_id in BROKERS if broker_id != but]
        return until_all_say(ports, topic, holds, sample=SAMPLED if topic == "many" else None)

    def roll(self, make: str, trio: Trio) -> None:
        """Restart one broker after the other under load."""
        create_replicated(trio.bootstrap, "rolled", rotated(ROLLED_PARTITIONS))
        ports = [trio[broker_id].port for broker_id in BROKERS]
        leaders = Watch("leaders", "rolled", ROLLED_PARTITIONS, *ports)
        steady = Watch("steady", "rolled", ROLLED_PARTITIONS, trio.bootstrap)
        time.sleep(2)
        for broker_id in BROKERS:
            member = trio[broker_id]
            self.stopping.add(make, member.terminate())
            time.sleep(1)
            member.start()
            member.wait_until_up()
            for topic in ("rolled", "many"):
                self._until(trio, topic, -1, lambda _leader, isr: len(isr) == 3)
        time.sleep(1)
        sent, led = steady.end(), leaders.end()
        say(f"{make}: {sent['sent']:.0f} sent, {led['count']:.0f} times without a leader")
        self.failed.add(make, sent["failed"])
        self.slowest.add(make, sent["max_ms"])
        self.leaderless.add(make, led["max_ms"])


class GrowthFigures:
    """Idle cost and loaded throughput of three brokers by the number of partitions; each on top of the ones before."""

    def __init__(self, divide: int) -> None:
        self._numbers = GROWTH if divide == 1 else GROWTH[:-1]
        self._count = 2_000_000 // divide
        self.idle = {
            n: Figure(f"idle CPU of three brokers, {_partitions(n)} RF=3", "% of a core", False)
            for n in self._numbers
        }
        self.rate = {
            n: Figure(f"acks=all 100 B to {_partitions(n)}", "msg/s") for n in self._numbers
        }
        self.cost = {
            n: Figure(f"CPU of three brokers per 1 M messages, {_partitions(n)}", "s", False)
            for n in self._numbers
        }

    def all(self) -> list[Figure]:
        """Return them in the order of the table."""
        return [*self.idle.values(), *self.rate.values(), *self.cost.values()]

    def take(self, make: str, trio: Trio) -> None:
        """Measure one cluster."""
        for number in self._numbers:
            topic = f"grown-{number}"
            create_replicated(trio.bootstrap, topic, rotated(number))
            time.sleep(_SETTLE_S)
            before = trio.cpu()
            time.sleep(_IDLE_S)
            self.idle[number].add(make, (trio.cpu() - before) / _IDLE_S * 100)
            before = trio.cpu()
            got = load("rdkafka-produce-all", trio.bootstrap, topic, self._count, 100, number)
            self.rate[number].add(make, got["messages"] / got["seconds"])
            self.cost[number].add(make, (trio.cpu() - before) / self._count * 1e6)
