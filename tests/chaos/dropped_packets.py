"""Cuts between hosts by dropped packets, of one direction or of both, beside kills, pauses and full disks.

Every round draws one fault. Most cuts last longer than a session; some heal within it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.chaos import faults
from tests.chaos.cluster import ChaosCluster
from tests.chaos.faults import Fault
from tests.chaos.full_disk import full_disk
from tests.chaos.routed_brokers import SESSION_TIMEOUT
from tests.chaos.scenario import play_fault

FULL_DISK = 0.08
"""The share of rounds that fill disks."""
LASTING = (1.0, SESSION_TIMEOUT + 4.0)
QUIET = (3.0, 6.0)


def isolate(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """Cut a leader from every other host, clients too."""
    n = cluster.any_leader(chance)
    others = [f"broker-{other}" for other in cluster.ids if other != n]
    yield from _cut(cluster, f"broker-{n}", [*others, "zk", "client"])


def split(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """Split the network: one broker and one ZooKeeper server on one side, all others on the other."""
    n = cluster.any_leader(chance)
    server = chance.choice([one.number for one in cluster.ensemble.servers])
    here = [f"broker-{n}", f"zk-{server}"]
    there = [f"broker-{other}" for other in cluster.ids if other != n]
    there += [f"zk-{one.number}" for one in cluster.ensemble.servers if one.number != server]
    cluster.recorder.nemesis(cut=[here[0], "zk", *there], also=here[1])
    for one in here:
        cluster.board.cut(one, *there)
    yield f"{here} are split from {there}"
    _heal(cluster)


def zookeeper_leader_alone(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """Cut ZooKeeper's leader from the other servers; brokers reach all of them."""
    n = cluster.ensemble.leader()
    others = [f"zk-{one.number}" for one in cluster.ensemble.servers if one.number != n]
    cluster.recorder.nemesis(cut_zookeeper=n)
    cluster.board.cut(f"zk-{n}", *others)
    yield f"ZooKeeper server {n}, the leader, is cut from {others}"
    _heal(cluster)


def one_way_to_zookeeper(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """Drop the packets of one direction between a leader and ZooKeeper."""
    n = cluster.any_leader(chance)
    pair = [f"broker-{n}", "zk"] if chance.random() < 0.5 else ["zk", f"broker-{n}"]
    cluster.recorder.nemesis(hold=[pair], cut=[f"broker-{n}", "zk"])
    cluster.board.hold((pair[0], pair[1]))
    yield f"no packet of {pair[0]} reaches {pair[1]}"
    _heal(cluster)


def one_way_between_zookeepers(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """Drop the packets of one direction between ZooKeeper's leader and one other server."""
    n = cluster.ensemble.leader()
    other = chance.choice([one.number for one in cluster.ensemble.servers if one.number != n])
    source, target = chance.sample([f"zk-{n}", f"zk-{other}"], 2)
    cluster.recorder.nemesis(hold=[[source, target]])
    cluster.board.hold((source, target))
    yield f"no packet of {source} reaches {target}"
    _heal(cluster)


def _cut(cluster: ChaosCluster, one: str, others: list[str]) -> Iterator[str]:
    cluster.recorder.nemesis(cut=[one, *others])
    cluster.board.cut(one, *others)
    yield f"{one} is cut from {others}"
    _heal(cluster)


def _heal(cluster: ChaosCluster) -> None:
    cluster.board.heal()
    cluster.recorder.nemesis(heal="network")


FAULTS: tuple[Fault, ...] = (
    isolate,
    split,
    zookeeper_leader_alone,
    one_way_to_zookeeper,
    one_way_between_zookeepers,
    faults.one_way,
    faults.cut_from_zookeeper,
    faults.cut_from_brokers,
    faults.leader_alone_with_clients,
    faults.kill_leader,
    faults.kill_controller,
    faults.kill_leader_and_controller,
    faults.kill_all,
    faults.pause_leader,
    faults.pause_controller,
    faults.pause_zookeeper,
    faults.kill_zookeeper,
)


def dropped_packets(cluster: ChaosCluster, chance: random.Random) -> None:
    """Play one round."""
    if chance.random() < FULL_DISK:
        full_disk(cluster, chance)
        return
    fault = chance.choice(FAULTS)
    play_fault(cluster, chance, fault, chance.uniform(*LASTING), chance.uniform(*QUIET))
