"""A cluster of three brokers with thousands of partitions: creation, a killed broker, a rolling restart."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.clusters import BROKERS, SESSION_S, ThreeBrokers
from benchmarks.contenders import create_replicated, load, print_progress
from benchmarks.monitors import Monitor
from benchmarks.plain_client import PlainClient, until_all_report
from benchmarks.results import Figure

WATCHED = "watched"
SAMPLED = "sampled"
"""A small topic with the same leaders and followers as the large one; polled in its place until it is in sync."""
SAMPLED_PARTITIONS = 30
ROLLED_PARTITIONS = 30
GROWTH = (1, 10, 100, 1000, 5000)
_IDLE_S = 5.0
_SETTLE_S = 3.0


def rotated(partitions: int) -> list[list[int]]:
    """Assign three replicas to each partition; every broker leads a third."""
    turns = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
    return [turns[index % 3] for index in range(partitions)]


def _partitions(number: int) -> str:
    return f"{number:,} partition{'s' * (number > 1)}"


class ScaleFigures:
    """Figures of one cluster; `take` measures them and leaves all brokers running."""

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
        self.small_requests = {
            what: Figure(f"small requests during {what}: p99", "ms", False)
            for what in ("nothing", "creation", "failover", "return")
        }
        self.longest_small_request = {
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
            *self.small_requests.values(),
            *self.longest_small_request.values(),
            *(self.failed, self.leaderless, self.slowest, self.stopping),
        ]

    def take(self, make: str, cluster: ThreeBrokers) -> None:
        """Measure one cluster; the killed broker is not the controller."""
        create_replicated(cluster.bootstrap, WATCHED, [[1], [2], [3]])
        create_replicated(cluster.bootstrap, SAMPLED, rotated(SAMPLED_PARTITIONS))
        watch = self._watch(cluster)
        time.sleep(2)
        self._small_requests(make, "nothing", watch)

        watch = self._watch(cluster)
        took = create_replicated(cluster.bootstrap, "many", rotated(self._many))
        self.creation.add(make, took)
        time.sleep(1)
        self._small_requests(make, "creation", watch)

        watch = self._watch(cluster)
        with PlainClient(cluster[1].port) as broker:
            number = 3 if broker.metadata([]).controller_id != 3 else 2
        victim = cluster[number]
        victim.kill()
        took = self._until(cluster, "many", number, lambda leader, _isr: leader != number)
        self.failover.add(make, took)
        time.sleep(1)
        self._small_requests(make, "failover", watch)

        watch = self._watch(cluster)
        victim.start()
        self.rejoin.add(
            make, self._until(cluster, "many", number, lambda _leader, isr: len(isr) == 3)
        )
        self._small_requests(make, "return", watch)

        with PlainClient(victim.port) as broker:
            controller = broker.metadata([]).controller_id
        cluster[controller].kill()
        took = self._until(cluster, "many", controller, lambda leader, _isr: leader != controller)
        self.headless.add(make, took)
        cluster[controller].start()
        self._until(cluster, "many", controller, lambda _leader, isr: len(isr) == 3)
        self.roll(make, cluster)

    def _watch(self, cluster: ThreeBrokers) -> Monitor:
        return Monitor("stall", WATCHED, *(cluster[broker_id].port for broker_id in BROKERS))

    def _small_requests(self, make: str, what: str, watch: Monitor) -> None:
        seen = watch.end()
        self.small_requests[what].add(make, seen["p99_ms"])
        self.longest_small_request[what].add(make, seen["max_ms"])

    def _until(
        self, cluster: ThreeBrokers, topic: str, but: int, holds: Callable[[int, list[int]], bool]
    ) -> float:
        """Poll all brokers except *but* until *holds* for every partition's leader and ISR; return the seconds."""
        ports = [cluster[broker_id].port for broker_id in BROKERS if broker_id != but]
        return until_all_report(ports, topic, holds, sample=SAMPLED if topic == "many" else None)

    def roll(self, make: str, cluster: ThreeBrokers) -> None:
        """Restart one broker after the other under load."""
        create_replicated(cluster.bootstrap, "rolled", rotated(ROLLED_PARTITIONS))
        ports = [cluster[broker_id].port for broker_id in BROKERS]
        leaders = Monitor("leaders", "rolled", ROLLED_PARTITIONS, *ports)
        steady = Monitor("steady", "rolled", ROLLED_PARTITIONS, cluster.bootstrap)
        time.sleep(2)
        for broker_id in BROKERS:
            member = cluster[broker_id]
            self.stopping.add(make, member.terminate())
            time.sleep(1)
            member.start()
            member.wait_until_up()
            for topic in ("rolled", "many"):
                self._until(cluster, topic, -1, lambda _leader, isr: len(isr) == 3)
        time.sleep(1)
        sent, led = steady.end(), leaders.end()
        print_progress(
            f"{make}: {sent['sent']:.0f} sent, {led['count']:.0f} times without a leader"
        )
        self.failed.add(make, sent["failed"])
        self.slowest.add(make, sent["max_ms"])
        self.leaderless.add(make, led["max_ms"])


class GrowthFigures:
    """Idle cost and loaded throughput of three brokers by partition count; each step adds to the earlier ones."""

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

    def take(self, make: str, cluster: ThreeBrokers) -> None:
        """Measure one cluster."""
        for number in self._numbers:
            topic = f"grown-{number}"
            create_replicated(cluster.bootstrap, topic, rotated(number))
            time.sleep(_SETTLE_S)
            before = cluster.cpu()
            time.sleep(_IDLE_S)
            self.idle[number].add(make, (cluster.cpu() - before) / _IDLE_S * 100)
            before = cluster.cpu()
            got = load("rdkafka-produce-all", cluster.bootstrap, topic, self._count, 100, number)
            self.rate[number].add(make, got["messages"] / got["seconds"])
            self.cost[number].add(make, (cluster.cpu() - before) / self._count * 1e6)
