"""Cuts between hosts by dropped packets, of one direction or of both, beside kills, pauses and full disks.

Every round draws one fault. Most cuts last longer than a session; some heal within it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.chaos import faults
from tests.chaos.faults import Fault
from tests.chaos.full_disk import full_disk
from tests.chaos.routed_brokers import SESSION_TIMEOUT
from tests.chaos.scenario import play_fault
from tests.chaos.world import World

FULL_DISK = 0.08
"""The share of rounds that fill disks."""
LASTING = (1.0, SESSION_TIMEOUT + 4.0)
QUIET = (3.0, 6.0)


def isolate(world: World, chance: random.Random) -> Iterator[str]:
    """Cut a leader from every other host, clients too."""
    n = world.any_leader(chance)
    others = [f"broker-{other}" for other in world.ids if other != n]
    yield from _cut(world, f"broker-{n}", [*others, "zk", "client"])


def split(world: World, chance: random.Random) -> Iterator[str]:
    """Split the network: one broker and one ZooKeeper server on one side, all others on the other."""
    n = world.any_leader(chance)
    server = chance.choice([one.number for one in world.ensemble.servers])
    here = [f"broker-{n}", f"zk-{server}"]
    there = [f"broker-{other}" for other in world.ids if other != n]
    there += [f"zk-{one.number}" for one in world.ensemble.servers if one.number != server]
    world.recorder.nemesis(cut=[here[0], "zk", *there], also=here[1])
    for one in here:
        world.board.cut(one, *there)
    yield f"{here} are split from {there}"
    _heal(world)


def zookeeper_leader_alone(world: World, chance: random.Random) -> Iterator[str]:
    """Cut ZooKeeper's leader from the other servers; brokers reach all of them."""
    n = world.ensemble.leader()
    others = [f"zk-{one.number}" for one in world.ensemble.servers if one.number != n]
    world.recorder.nemesis(cut_zookeeper=n)
    world.board.cut(f"zk-{n}", *others)
    yield f"ZooKeeper server {n}, the leader, is cut from {others}"
    _heal(world)


def one_way_to_zookeeper(world: World, chance: random.Random) -> Iterator[str]:
    """Drop the packets of one direction between a leader and ZooKeeper."""
    n = world.any_leader(chance)
    pair = [f"broker-{n}", "zk"] if chance.random() < 0.5 else ["zk", f"broker-{n}"]
    world.recorder.nemesis(hold=[pair], cut=[f"broker-{n}", "zk"])
    world.board.hold((pair[0], pair[1]))
    yield f"no packet of {pair[0]} reaches {pair[1]}"
    _heal(world)


def one_way_between_zookeepers(world: World, chance: random.Random) -> Iterator[str]:
    """Drop the packets of one direction between ZooKeeper's leader and one other server."""
    n = world.ensemble.leader()
    other = chance.choice([one.number for one in world.ensemble.servers if one.number != n])
    source, target = chance.sample([f"zk-{n}", f"zk-{other}"], 2)
    world.recorder.nemesis(hold=[[source, target]])
    world.board.hold((source, target))
    yield f"no packet of {source} reaches {target}"
    _heal(world)


def _cut(world: World, one: str, others: list[str]) -> Iterator[str]:
    world.recorder.nemesis(cut=[one, *others])
    world.board.cut(one, *others)
    yield f"{one} is cut from {others}"
    _heal(world)


def _heal(world: World) -> None:
    world.board.heal()
    world.recorder.nemesis(heal="network")


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


def dropped_packets(world: World, chance: random.Random) -> None:
    """Play one round."""
    if chance.random() < FULL_DISK:
        full_disk(world, chance)
        return
    fault = chance.choice(FAULTS)
    play_fault(world, chance, fault, chance.uniform(*LASTING), chance.uniform(*QUIET))
