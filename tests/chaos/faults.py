"""Faults: each injects a failure into the cluster, and repairs it.

A fault is a generator: it hurts, yields what it did, and, when it is gone on with after a while, repairs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from confluent_kafka import KafkaException

from kbroker.log.offset_checkpoint_file import RECOVERY_POINTS, decode
from kclient.wire.batches import iterate
from tests.chaos.routed_brokers import SESSION_TIMEOUT
from tests.chaos.world import World

Fault = Callable[[World, random.Random], Iterator[str]]
LONGER_THAN_A_SESSION = SESSION_TIMEOUT + 2


def kill_leader(world: World, chance: random.Random) -> Iterator[str]:
    """kill -9 a leader."""
    n = world.any_leader(chance)
    world.kill(n)
    yield f"kill -9 of broker {n}, a leader"
    world.start(n)


def kill_controller(world: World, chance: random.Random) -> Iterator[str]:
    """kill -9 the controller."""
    n = world.controller(chance)
    world.kill(n)
    yield f"kill -9 of broker {n}, the controller"
    world.start(n)


def kill_leader_and_controller(world: World, chance: random.Random) -> Iterator[str]:
    """kill -9 both at once."""
    controller = world.controller(chance)
    others = {world.leader(key) for key in world.keys} & set(world.alive) - {controller}
    both = [controller, *([chance.choice(sorted(others))] if others else [])]
    world.kill(*both)
    yield f"kill -9 of brokers {both}, controller and leader"
    world.start(*both, wait=False)
    world.wait_ready(*both)


def kill_all(world: World, chance: random.Random) -> Iterator[str]:
    """kill -9 every broker."""
    world.kill(*world.ids)
    yield "kill -9 of all brokers"
    order = chance.sample(world.ids, len(world.ids))
    world.start(*order, wait=False)
    world.wait_ready(*order)


def bounce(world: World, chance: random.Random) -> Iterator[str]:
    """kill -9 and back at once, within its session."""
    n = chance.choice(world.alive)
    world.kill(n)
    world.start(n)
    yield f"broker {n} bounced"


def pause_leader(world: World, chance: random.Random) -> Iterator[str]:
    """SIGSTOP a leader."""
    yield from _pause(world, world.any_leader(chance), "a leader")


def pause_controller(world: World, chance: random.Random) -> Iterator[str]:
    """SIGSTOP the controller."""
    yield from _pause(world, world.controller(chance), "the controller")


def pause_follower(world: World, chance: random.Random) -> Iterator[str]:
    """SIGSTOP any broker."""
    yield from _pause(world, chance.choice(world.alive), "any")


def _pause(world: World, n: int, what: str) -> Iterator[str]:
    world.pause(n)
    yield f"broker {n}, {what}, is paused"
    world.resume(n)


def end_session(world: World, chance: random.Random) -> Iterator[str]:
    """End a broker's ZooKeeper session behind its back."""
    n = chance.choice(world.alive)
    world.end_session(n)
    yield f"broker {n} has lost its session"


def cut_from_zookeeper(world: World, chance: random.Random) -> Iterator[str]:
    """Cut a broker from ZooKeeper alone."""
    n = world.any_leader(chance)
    world.recorder.nemesis(cut=[f"broker-{n}", "zk"])
    world.board.cut(f"broker-{n}", "zk")
    yield f"broker {n} is cut from ZooKeeper"
    world.board.heal()
    world.recorder.nemesis(heal="network")


def cut_from_brokers(world: World, chance: random.Random) -> Iterator[str]:
    """Cut a broker from the others; clients and ZooKeeper reach it."""
    n = world.any_leader(chance)
    others = [f"broker-{other}" for other in world.ids if other != n]
    world.recorder.nemesis(cut=[f"broker-{n}", *others])
    world.board.cut(f"broker-{n}", *others)
    yield f"broker {n} is cut from the others"
    world.board.heal()
    world.recorder.nemesis(heal="network")


def leader_alone_with_clients(world: World, chance: random.Random) -> Iterator[str]:
    """Cut a leader from brokers and ZooKeeper, not from clients (S11)."""
    n = world.any_leader(chance)
    others = [f"broker-{other}" for other in world.ids if other != n]
    world.recorder.nemesis(cut=[f"broker-{n}", "zk", *others])
    world.board.cut(f"broker-{n}", "zk", *others)
    yield f"broker {n} is alone with the clients"
    world.board.heal()
    world.recorder.nemesis(heal="network")


def one_way(world: World, chance: random.Random) -> Iterator[str]:
    """Hold one direction between a broker and the others."""
    n = world.any_leader(chance)
    others = [f"broker-{other}" for other in world.ids if other != n]
    outwards = chance.random() < 0.5
    pairs = [(f"broker-{n}", o) if outwards else (o, f"broker-{n}") for o in others]
    world.recorder.nemesis(hold=pairs)
    world.board.hold(*pairs)
    yield f"nothing comes {'out of' if outwards else 'in to'} broker {n} from its peers"
    world.board.heal()
    world.recorder.nemesis(heal="network")


def lose_answers_of_zookeeper(world: World, chance: random.Random) -> Iterator[str]:
    """A broker's writes are applied, and the answers are lost (S5); its followers come and go meanwhile."""
    n = world.any_leader(chance)
    follower = chance.choice([other for other in world.alive if other != n])
    world.pause(follower)
    time.sleep(2.5)  # replica.lag.time.max.ms is 3 s: the ISR write comes while answers are held
    world.recorder.nemesis(hold=[["zk", f"broker-{n}"]])
    world.board.hold(("zk", f"broker-{n}"))
    time.sleep(chance.uniform(0.5, 2.0))
    world.switchboard.reset(f"broker-{n}", "zk")
    world.board.heal()
    yield f"broker {n} lost ZooKeeper's answers to its requests"
    world.resume(follower)


def lose_answers_to_clients(world: World, chance: random.Random) -> Iterator[str]:
    """Requests arrive, answers are lost with their connections (S12)."""
    n = world.any_leader(chance)
    world.recorder.nemesis(hold=[[f"broker-{n}", "client"]])
    world.board.hold((f"broker-{n}", "client"))
    time.sleep(chance.uniform(0.1, 1.0))
    world.switchboard.reset(f"broker-{n}", "client")
    world.board.heal()
    yield f"answers of broker {n} to clients were lost"


def lose_words_of_controller(world: World, chance: random.Random) -> Iterator[str]:
    """The controller's requests to a broker are held, then lost, then sent again (S20)."""
    controller = world.controller(chance)
    n = chance.choice([other for other in world.alive if other != controller] or world.alive)
    world.recorder.nemesis(hold=[[f"broker-{controller}", f"broker-{n}"]])
    world.board.hold((f"broker-{controller}", f"broker-{n}"), (f"broker-{n}", f"broker-{controller}"))  # fmt: skip
    world.end_session(chance.choice(world.alive))  # something to send
    yield f"the controller, {controller}, does not reach broker {n}"
    world.switchboard.reset(f"broker-{controller}", f"broker-{n}")
    world.board.heal()


def slow_link(world: World, chance: random.Random) -> Iterator[str]:
    """A follower fetches over 64 KiB/s."""
    n = chance.choice(world.alive)
    for other in world.ids:
        world.switchboard.throttle(f"broker-{other}", f"broker-{n}", 65536)
    world.recorder.nemesis(throttle=n)
    yield f"broker {n} has a slow link"
    world.board.heal()


def stutter(world: World, chance: random.Random) -> Iterator[str]:
    """SIGSTOP for two of every five seconds (S32)."""
    n = chance.choice(world.alive)
    for _ in range(3):
        world.pause(n)
        time.sleep(2)
        world.resume(n)
        time.sleep(3)
    yield f"broker {n} stuttered"


def restart_cleanly(world: World, chance: random.Random) -> Iterator[str]:
    """SIGTERM, controlled shutdown, start."""
    n = chance.choice(world.alive)
    world.stop(n)
    yield f"broker {n} was shut down"
    world.start(n)


def kill_zookeeper(world: World, chance: random.Random) -> Iterator[str]:
    """kill -9 ZooKeeper: a server of three, or the one there is."""
    n = world.ensemble.leader()
    world.kill_zookeeper(n)
    yield f"ZooKeeper server {n} is killed"
    world.start_zookeeper(n)


def kill_most_of_zookeeper(world: World, chance: random.Random) -> Iterator[str]:
    """kill -9 all servers but one, or the only one."""
    numbers = [server.number for server in world.ensemble.servers]
    chosen = numbers[1:] or numbers
    world.kill_zookeeper(*chosen)
    yield f"ZooKeeper servers {chosen} are killed"
    world.start_zookeeper(*chosen)


def pause_zookeeper(world: World, chance: random.Random) -> Iterator[str]:
    """SIGSTOP ZooKeeper's leader."""
    n = world.ensemble.leader()
    world.pause_zookeeper(n)
    yield f"ZooKeeper server {n} is paused"
    world.resume_zookeeper(n)


def tear_tail(world: World, chance: random.Random) -> Iterator[str]:
    """Damage the ends of a dead broker's logs, as a power loss does (S13). It has left every ISR by then.

    What was synced stays: damage below the recovery point is bit rot (S14), and takes the partition offline.
    """
    n = chance.choice(world.alive)
    world.kill(n)
    yield f"kill -9 of broker {n}, its last batches will be damaged"
    if any(n in world.state(key)["isr"] and len(world.state(key)["isr"]) < 2 for key in world.keys):
        world.start(n)  # it may be the only one that has them all: that is S8's matter
        return
    checkpoint = (world.brokers[n].data / RECOVERY_POINTS).read_bytes()
    synced = {f"{topic}-{number}": at for (topic, number), at in decode(checkpoint).items()}
    for key in world.keys:
        segments = [path for path in world.segments(n, key) if path.stat().st_size > 400]
        if segments:
            _damage_end(segments[-1], synced.get(key, 0), chance, world, key)
    world.start(n)


def _damage_end(
    path: Path, recovery_point: int, chance: random.Random, world: World, key: str
) -> None:
    """Damage bytes of the last segment that are above *recovery_point*, or append some."""
    content = path.read_bytes()
    found = (info.position for info in iterate(content) if info.next_offset > recovery_point)
    most = min(300, len(content) - next(found, len(content)))
    cut = chance.randint(1, most or 300)
    kind = chance.choice(("cut", "zeros", "noise", "half a batch")) if most else "half a batch"
    if kind == "cut":
        content = content[:-cut]
    elif kind == "zeros":
        content = content[:-cut] + bytes(cut)
    elif kind == "noise":
        content = content[:-cut] + chance.randbytes(cut)
    else:
        content += content[:cut]
    path.write_bytes(content)
    world.recorder.nemesis(damage=f"{path.parent.parent.parent.name}/{key}", kind=kind, bytes=cut)


def come_back_empty(world: World, chance: random.Random) -> Iterator[str]:
    """kill -9, the log directory is gone, and back at once or later; the others are in sync, so nothing may be lost."""
    n = chance.choice(world.alive)
    if world.wait_in_sync():
        yield f"nothing is done to broker {n}: not every replica is in sync"
        return
    world.kill(n)
    world.wipe(n)
    if chance.random() < 0.5:
        world.start(n)
    yield f"broker {n} comes back empty"
    world.start(n)
    world.wait_in_sync()


def topics_come_and_go(world: World, chance: random.Random) -> Iterator[str]:
    """Create and delete a topic; whether that succeeds now is not the point."""
    name = f"passing-{chance.randrange(10**6)}"
    try:
        world.create_topic(name, 6)
        yield f"topic {name} was created"
        world.delete_topic(name)
    except KafkaException as error:
        yield f"topic {name}: {error}"
