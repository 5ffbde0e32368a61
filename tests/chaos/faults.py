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
from tests.chaos.cluster import ChaosCluster
from tests.chaos.routed_brokers import SESSION_TIMEOUT

Fault = Callable[[ChaosCluster, random.Random], Iterator[str]]
LONGER_THAN_A_SESSION = SESSION_TIMEOUT + 2


def kill_leader(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """kill -9 a leader."""
    n = cluster.any_leader(chance)
    cluster.kill(n)
    yield f"kill -9 of broker {n}, a leader"
    cluster.start(n)


def kill_controller(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """kill -9 the controller."""
    n = cluster.controller(chance)
    cluster.kill(n)
    yield f"kill -9 of broker {n}, the controller"
    cluster.start(n)


def kill_leader_and_controller(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """kill -9 both at once."""
    controller = cluster.controller(chance)
    others = {cluster.leader(key) for key in cluster.keys} & set(cluster.alive) - {controller}
    both = [controller, *([chance.choice(sorted(others))] if others else [])]
    cluster.kill(*both)
    yield f"kill -9 of brokers {both}, controller and leader"
    cluster.start(*both, wait=False)
    cluster.wait_ready(*both)


def kill_all(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """kill -9 every broker."""
    cluster.kill(*cluster.ids)
    yield "kill -9 of all brokers"
    order = chance.sample(cluster.ids, len(cluster.ids))
    cluster.start(*order, wait=False)
    cluster.wait_ready(*order)


def bounce(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """kill -9 and back at once, within its session."""
    n = chance.choice(cluster.alive)
    cluster.kill(n)
    cluster.start(n)
    yield f"broker {n} bounced"


def pause_leader(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """SIGSTOP a leader."""
    yield from _pause(cluster, cluster.any_leader(chance), "a leader")


def pause_controller(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """SIGSTOP the controller."""
    yield from _pause(cluster, cluster.controller(chance), "the controller")


def pause_follower(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """SIGSTOP any broker."""
    yield from _pause(cluster, chance.choice(cluster.alive), "any")


def _pause(cluster: ChaosCluster, n: int, what: str) -> Iterator[str]:
    cluster.pause(n)
    yield f"broker {n}, {what}, is paused"
    cluster.resume(n)


def end_session(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """End a broker's ZooKeeper session behind its back."""
    n = chance.choice(cluster.alive)
    cluster.end_session(n)
    yield f"broker {n} has lost its session"


def cut_from_zookeeper(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """Cut a broker from ZooKeeper alone."""
    n = cluster.any_leader(chance)
    cluster.recorder.nemesis(cut=[f"broker-{n}", "zk"])
    cluster.board.cut(f"broker-{n}", "zk")
    yield f"broker {n} is cut from ZooKeeper"
    cluster.board.heal()
    cluster.recorder.nemesis(heal="network")


def cut_from_brokers(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """Cut a broker from the others; clients and ZooKeeper reach it."""
    n = cluster.any_leader(chance)
    others = [f"broker-{other}" for other in cluster.ids if other != n]
    cluster.recorder.nemesis(cut=[f"broker-{n}", *others])
    cluster.board.cut(f"broker-{n}", *others)
    yield f"broker {n} is cut from the others"
    cluster.board.heal()
    cluster.recorder.nemesis(heal="network")


def leader_alone_with_clients(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """Cut a leader from brokers and ZooKeeper, not from clients (S11)."""
    n = cluster.any_leader(chance)
    others = [f"broker-{other}" for other in cluster.ids if other != n]
    cluster.recorder.nemesis(cut=[f"broker-{n}", "zk", *others])
    cluster.board.cut(f"broker-{n}", "zk", *others)
    yield f"broker {n} is alone with the clients"
    cluster.board.heal()
    cluster.recorder.nemesis(heal="network")


def one_way(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """Hold one direction between a broker and the others."""
    n = cluster.any_leader(chance)
    others = [f"broker-{other}" for other in cluster.ids if other != n]
    outwards = chance.random() < 0.5
    pairs = [(f"broker-{n}", o) if outwards else (o, f"broker-{n}") for o in others]
    cluster.recorder.nemesis(hold=pairs)
    cluster.board.hold(*pairs)
    yield f"nothing comes {'out of' if outwards else 'in to'} broker {n} from its peers"
    cluster.board.heal()
    cluster.recorder.nemesis(heal="network")


def lose_answers_of_zookeeper(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """A broker's writes are applied, and the answers are lost (S5); its followers come and go meanwhile."""
    n = cluster.any_leader(chance)
    follower = chance.choice([other for other in cluster.alive if other != n])
    cluster.pause(follower)
    time.sleep(2.5)  # replica.lag.time.max.ms is 3 s: the ISR write comes while answers are held
    cluster.recorder.nemesis(hold=[["zk", f"broker-{n}"]])
    cluster.board.hold(("zk", f"broker-{n}"))
    time.sleep(chance.uniform(0.5, 2.0))
    cluster.switchboard.reset(f"broker-{n}", "zk")
    cluster.board.heal()
    yield f"broker {n} lost ZooKeeper's answers to its requests"
    cluster.resume(follower)


def lose_answers_to_clients(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """Requests arrive, answers are lost with their connections (S12)."""
    n = cluster.any_leader(chance)
    cluster.recorder.nemesis(hold=[[f"broker-{n}", "client"]])
    cluster.board.hold((f"broker-{n}", "client"))
    time.sleep(chance.uniform(0.1, 1.0))
    cluster.switchboard.reset(f"broker-{n}", "client")
    cluster.board.heal()
    yield f"answers of broker {n} to clients were lost"


def lose_words_of_controller(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """The controller's requests to a broker are held, then lost, then sent again (S20)."""
    controller = cluster.controller(chance)
    n = chance.choice([other for other in cluster.alive if other != controller] or cluster.alive)
    cluster.recorder.nemesis(hold=[[f"broker-{controller}", f"broker-{n}"]])
    cluster.board.hold((f"broker-{controller}", f"broker-{n}"), (f"broker-{n}", f"broker-{controller}"))  # fmt: skip
    cluster.end_session(chance.choice(cluster.alive))  # something to send
    yield f"the controller, {controller}, does not reach broker {n}"
    cluster.switchboard.reset(f"broker-{controller}", f"broker-{n}")
    cluster.board.heal()


def slow_link(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """A follower fetches over 64 KiB/s."""
    n = chance.choice(cluster.alive)
    for other in cluster.ids:
        cluster.switchboard.throttle(f"broker-{other}", f"broker-{n}", 65536)
    cluster.recorder.nemesis(throttle=n)
    yield f"broker {n} has a slow link"
    cluster.board.heal()


def stutter(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """SIGSTOP for two of every five seconds (S32)."""
    n = chance.choice(cluster.alive)
    for _ in range(3):
        cluster.pause(n)
        time.sleep(2)
        cluster.resume(n)
        time.sleep(3)
    yield f"broker {n} stuttered"


def restart_cleanly(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """SIGTERM, controlled shutdown, start."""
    n = chance.choice(cluster.alive)
    cluster.stop(n)
    yield f"broker {n} was shut down"
    cluster.start(n)


def kill_zookeeper(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """kill -9 ZooKeeper: a server of three, or the one there is."""
    n = cluster.ensemble.leader()
    cluster.kill_zookeeper(n)
    yield f"ZooKeeper server {n} is killed"
    cluster.start_zookeeper(n)


def kill_most_of_zookeeper(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """kill -9 all servers but one, or the only one."""
    numbers = [server.number for server in cluster.ensemble.servers]
    chosen = numbers[1:] or numbers
    cluster.kill_zookeeper(*chosen)
    yield f"ZooKeeper servers {chosen} are killed"
    cluster.start_zookeeper(*chosen)


def pause_zookeeper(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """SIGSTOP ZooKeeper's leader."""
    n = cluster.ensemble.leader()
    cluster.pause_zookeeper(n)
    yield f"ZooKeeper server {n} is paused"
    cluster.resume_zookeeper(n)


def tear_tail(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """Damage the ends of a dead broker's logs, as a power loss does (S13). It has left every ISR by then.

    What was synced stays: damage below the recovery point is bit rot (S14), and takes the partition offline.
    """
    n = chance.choice(cluster.alive)
    cluster.kill(n)
    yield f"kill -9 of broker {n}, its last batches will be damaged"
    if any(
        n in cluster.state(key)["isr"] and len(cluster.state(key)["isr"]) < 2
        for key in cluster.keys
    ):
        cluster.start(n)  # it may be the only one that has them all: that is S8's matter
        return
    checkpoint = (cluster.brokers[n].data / RECOVERY_POINTS).read_bytes()
    synced = {f"{topic}-{number}": at for (topic, number), at in decode(checkpoint).items()}
    for key in cluster.keys:
        segments = [path for path in cluster.segments(n, key) if path.stat().st_size > 400]
        if segments:
            _damage_end(segments[-1], synced.get(key, 0), chance, cluster, key)
    cluster.start(n)


def _damage_end(
    path: Path, recovery_point: int, chance: random.Random, cluster: ChaosCluster, key: str
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
    cluster.recorder.nemesis(damage=f"{path.parent.parent.parent.name}/{key}", kind=kind, bytes=cut)


def come_back_empty(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """kill -9, the log directory is gone, and back at once or later; the others are in sync, so nothing may be lost."""
    n = chance.choice(cluster.alive)
    if cluster.wait_in_sync():
        yield f"nothing is done to broker {n}: not every replica is in sync"
        return
    cluster.kill(n)
    cluster.wipe(n)
    if chance.random() < 0.5:
        cluster.start(n)
    yield f"broker {n} comes back empty"
    cluster.start(n)
    cluster.wait_in_sync()


def topics_come_and_go(cluster: ChaosCluster, chance: random.Random) -> Iterator[str]:
    """Create and delete a topic; whether that succeeds now is not the point."""
    name = f"passing-{chance.randrange(10**6)}"
    try:
        cluster.create_topic(name, 6)
        yield f"topic {name} was created"
        cluster.delete_topic(name)
    except KafkaException as error:
        yield f"topic {name}: {error}"
