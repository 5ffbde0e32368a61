"""Three kbrokers beside three Apache Kafka brokers: acks=all, RF=3, librdkafka; then failover and scale."""

from __future__ import annotations

from pathlib import Path

from benchmarks.clusters import ThreeBrokers, start_three
from benchmarks.contenders import (
    available,
    create_replicated,
    delete_topic,
    in_turn,
    load,
    print_progress,
    zookeeper_classpath,
)
from benchmarks.processes import fresh, zookeeper
from benchmarks.replicated_scale import GrowthFigures, ScaleFigures, rotated
from benchmarks.results import Figure


class ReplicationFigures:
    """Throughput, latency and CPU of acks=all on three replicas."""

    def __init__(self, divide: int) -> None:
        self._small_count = 5_000_000 // divide
        self._large_count = 600_000 // divide
        self._latency_count = 5_000 // divide
        self.small = Figure("acks=all 100 B, one partition", "msg/s", goal=">= 1.0 x", goal_ratio=1)
        self.large = Figure(
            "acks=all 1 KB, six partitions", "MB/s", goal=">= 1.2 x", goal_ratio=1.2
        )
        self.p50 = Figure("acks=all latency p50 at 500 msg/s", "ms", False)
        self.p99 = Figure("acks=all latency p99 at 500 msg/s", "ms", False, "<= 0.8 x", 0.8)
        self.cpu_small = Figure("CPU of three brokers per 1 M messages of 100 B", "s", False)
        self.leader = Figure("leader's CPU per GB, 1 KB, one partition", "s", False)
        self.follower = Figure("a follower's CPU per GB, 1 KB, one partition", "s", False)
        self.memory = Figure("peak memory of a broker", "MiB", False)

    def all(self) -> list[Figure]:
        """Return them in the order of the table."""
        return [
            *(self.small, self.large, self.p50, self.p99),
            *(self.cpu_small, self.leader, self.follower, self.memory),
        ]

    def take(self, make: str, cluster: ThreeBrokers) -> None:
        """Measure one cluster, after a warm-up for JIT compilers of a fifth of the work."""
        bootstrap = cluster.bootstrap
        one = [[1, 2, 3]]
        create_replicated(bootstrap, "warm", rotated(6))
        create_replicated(bootstrap, "latency", one)
        load("rdkafka-produce-all", bootstrap, "warm", self._small_count // 5, 100, 6)
        load("rdkafka-produce-all", bootstrap, "warm", self._large_count // 5, 1000, 6)
        got = load("rdkafka-latency-all", bootstrap, "latency", self._latency_count, 100)
        self.p50.add(make, got["p50_ms"])
        self.p99.add(make, got["p99_ms"])

        create_replicated(bootstrap, "small", one)
        before = cluster.cpu()
        got = load("rdkafka-produce-all", bootstrap, "small", self._small_count, 100)
        self.small.add(make, got["messages"] / got["seconds"])
        self.cpu_small.add(make, (cluster.cpu() - before) / self._small_count * 1e6)
        delete_topic(bootstrap, "small")

        create_replicated(bootstrap, "large", rotated(6))
        got = load("rdkafka-produce-all", bootstrap, "large", self._large_count, 1000, 6)
        self.large.add(make, got["bytes"] / got["seconds"] / 1e6)
        delete_topic(bootstrap, "large")

        create_replicated(bootstrap, "followed", one)
        begun = {broker_id: member.cpu() for broker_id, member in cluster.members.items()}
        load("rdkafka-produce-all", bootstrap, "followed", self._large_count // 2, 1000)
        used = {broker_id: cluster[broker_id].cpu() - cpu for broker_id, cpu in begun.items()}
        gigabytes = self._large_count // 2 * 1000 / 1e9
        self.leader.add(make, used[1] / gigabytes)
        self.follower.add(make, (used[2] + used[3]) / 2 / gigabytes)
        delete_topic(bootstrap, "followed")
        self.memory.add(make, cluster.peak_memory())


def replication_suite(directory: Path, rounds: int, divide: int) -> tuple[list[Figure], list[str]]:
    """Measure both in alternating order; growth and scale in the first round only."""
    notes = [
        "three brokers, one ZooKeeper and the client share the machine; librdkafka as in the broker suite,"
        " acks=all, RF=3, linger 5 ms",
        "small requests: produce and fetch of 100 B, every 10 ms, to a partition of each broker that nothing"
        " happens to; 'nothing' is an idle cluster",
        "without a leader: no broker answers ListOffsets for the partition, asked every 10 ms",
    ]
    makes, jars = available(notes)
    figures, scale = ReplicationFigures(divide), ScaleFigures(divide)
    growth = GrowthFigures(divide)
    parts: list[tuple[str, ReplicationFigures | ScaleFigures | GrowthFigures]]
    parts = [("throughput", figures), ("scale", scale), ("growth", growth)]
    with zookeeper(directory / "zookeeper", zookeeper_classpath()) as port:
        for turn, make in in_turn(makes, rounds):
            for name, part in parts if not turn else parts[:1]:
                print_progress(f"round {turn + 1}: {make}, {name}")
                place = directory / f"{make.split()[0].lower()}-{turn}-{name}"
                try:
                    with start_three(make, place, port, jars) as cluster:
                        part.take(make, cluster)
                except (OSError, RuntimeError) as error:  # keep the other figures
                    notes.append(f"{make}, {name}, failed: {error}")
                fresh(place)
    return [*figures.all(), *scale.all(), *growth.all()], notes
