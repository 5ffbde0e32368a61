"""Offset commits, which kbroker stores in ZooKeeper: one broker, one ZooKeeper node with its default fsync."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks import commits
from benchmarks.contenders import create_topic, print_progress, zookeeper_classpath
from benchmarks.processes import cpu_seconds, our_broker, zookeeper
from benchmarks.results import Figure

SHAPES = ((10, 100), (200, 1))
"""(groups, partitions of each): few groups with many offsets, and many groups with few."""


def groups_suite(directory: Path, rounds: int, divide: int) -> tuple[list[Figure], list[str]]:
    """Commit 60,000 and 12,000 offsets per round, after a first round that creates the znodes."""
    rates, latencies, costs = [], [], []
    for groups, partitions in SHAPES:
        name = f"{groups} groups x {partitions} partition{'s' * (partitions > 1)}"
        goal = (">= 20,000", 20_000.0) if partitions > 1 else ("", None)
        rates.append(
            Figure(f"offset commits, {name}", "offsets/s", goal=goal[0], goal_value=goal[1])
        )
        latencies.append(Figure(f"commit latency p99, {name}", "ms", False))
        costs.append(Figure(f"broker CPU per 1 M offsets, {name}", "s", False))
    many = 60 // divide
    with (
        zookeeper(directory / "zookeeper", zookeeper_classpath()) as port,
        our_broker(directory / "broker", port) as broker,
    ):
        broker_port = int(broker.bootstrap.rpartition(":")[2])
        create_topic(broker.bootstrap, "t", 100)
        for number in range(200):
            commits.wait_for_coordinator(broker_port, f"few-{number}")
            commits.wait_for_coordinator(broker_port, f"many-{number}")
        time.sleep(1)
        for turn in range(rounds + 1):
            for kind, (groups, partitions) in enumerate(SHAPES):
                print_progress(f"round {turn}: {groups} groups of {partitions}")
                prefix = ("few", "many")[kind]
                before = cpu_seconds(broker.process.pid)
                rate, p99 = commits.commit(
                    broker_port, "t", prefix, groups, partitions, many if turn else 2
                )
                cost = (cpu_seconds(broker.process.pid) - before) / (groups * partitions * many)
                if turn:
                    rates[kind].add("ours", rate)
                    latencies[kind].add("ours", p99)
                    costs[kind].add("ours", cost * 1e6)
    return [*rates, *latencies, *costs], [
        "one commit of each group in flight; every offset is its own znode, written before the "
        "answer to one ZooKeeper node with its default fsync"
    ]
