"""Scenarios: the numbers of tests/SCENARIOS.md, each a script of faults that is played until the time is up.

``faults`` scripts are rounds: a fault, a while (longer than a session where that is the point), its repair, a quiet
while. The others are functions that play one round each; the long ones have a file of their own.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress

from confluent_kafka import KafkaException

from tests.chaos import faults
from tests.chaos.busy_core import one_core
from tests.chaos.client import split_key
from tests.chaos.cluster import PATIENCE, REPLICAS, ChaosCluster
from tests.chaos.dropped_packets import dropped_packets
from tests.chaos.faults import LONGER_THAN_A_SESSION, Fault
from tests.chaos.full_disk import full_disk
from tests.chaos.routed_brokers import SESSION_TIMEOUT
from tests.chaos.scenario import Scenario, play_fault, progress, rounds


def chase(cluster: ChaosCluster, chance: random.Random) -> None:
    """S1: the leader five times, the controller, both; sometimes back within the session, sometimes not."""
    script = [faults.kill_leader] * 5 + [faults.kill_controller, faults.kill_leader_and_controller]
    for fault in script:
        lasting = chance.choice((0.2, LONGER_THAN_A_SESSION))
        play_fault(cluster, chance, fault, lasting, 0)
        cluster.wait_in_sync()
        time.sleep(2)


def zombie_controller(cluster: ChaosCluster, chance: random.Random) -> None:
    """S3: the old controller wakes up while the new one works."""
    old = cluster.controller(chance)
    cluster.pause(old)
    progress(cluster, f"broker {old}, the controller, is paused")
    time.sleep(LONGER_THAN_A_SESSION)
    name = f"made-meanwhile-{chance.randrange(10**6)}"
    with suppress(KafkaException):
        cluster.create_topic(name, 4)
    cluster.resume(old)
    with suppress(KafkaException):
        cluster.delete_topic(name)
    time.sleep(3)


def follower_then_leader(cluster: ChaosCluster, chance: random.Random) -> None:
    """S6: a follower dies, comes back, and the leader dies at once."""
    leader = cluster.any_leader(chance)
    follower = chance.choice([n for n in cluster.alive if n != leader])
    cluster.kill(follower)
    cluster.start(follower)
    cluster.kill(leader)
    progress(cluster, f"broker {follower} came back, then the leader, {leader}, died")
    time.sleep(chance.choice((0.5, LONGER_THAN_A_SESSION)))
    cluster.start(leader)
    cluster.wait_in_sync()


def double_failover(cluster: ChaosCluster, chance: random.Random) -> None:
    """S7: elections faster than followers fetch."""
    key = chance.choice(cluster.keys)
    first = cluster.leader(key)
    if first < 0:
        time.sleep(1)
        return
    cluster.end_session(first)
    cluster.kill(first)
    deadline = time.monotonic() + LONGER_THAN_A_SESSION
    while cluster.leader(key) in (first, -1) and time.monotonic() < deadline:
        time.sleep(0.01)
    second = cluster.leader(key)
    cluster.start(first, wait=False)
    if second in cluster.alive and second != first:
        cluster.end_session(second)
        cluster.kill(second)
        progress(cluster, f"{key}: leader {first} died, then {second}")
    cluster.wait_ready(first)
    time.sleep(chance.uniform(0, 2))
    cluster.start(second)
    cluster.wait_in_sync()
    time.sleep(1)


def last_one_standing(cluster: ChaosCluster, chance: random.Random) -> None:
    """S8: the ISR is one broker; it dies, and comes back without its disk. Only what it held alone may be lost."""
    last = cluster.any_leader(chance)
    others = [n for n in cluster.alive if n != last]
    for n in others:
        cluster.stop(n)
        time.sleep(1)
    cluster.kill(last)
    cluster.wipe(last)
    progress(cluster, f"broker {last} was the last one standing, and comes back empty")
    cluster.start(*others, wait=False)
    cluster.wait_ready(*others)
    cluster.start(last)
    time.sleep(SESSION_TIMEOUT)
    if cluster.not_in_sync():
        # The replica with all records is not in the ISR, the one in the ISR has none: the operator decides.
        for topic in {key.rpartition("-")[0] for key in cluster.keys}:
            cluster.configure_topic(topic, unclean_leader_election_enable="true")
    cluster.wait_in_sync()
    time.sleep(3)


def session_storm(cluster: ChaosCluster, chance: random.Random) -> None:
    """S10: sessions end, twice within 100 ms, again and again."""
    n = chance.choice(cluster.alive)
    cluster.end_session(n)
    if chance.random() < 0.3:
        time.sleep(0.1)
        cluster.end_session(n)
    progress(cluster, f"broker {n} has lost its session")
    time.sleep(chance.uniform(0.2, 3))


def bit_rot(cluster: ChaosCluster, chance: random.Random) -> None:
    """S14: a bit of a dead broker's log flips; the broker reports it, the partition is set aside and fetched again."""
    n = chance.choice(cluster.alive)
    cluster.kill(n)
    time.sleep(LONGER_THAN_A_SESSION)
    key = chance.choice(cluster.keys)
    segment = cluster.segments(n, key)[0]
    content = bytearray(segment.read_bytes())
    if len(content) > 1000:
        content[chance.randrange(len(content) // 2)] ^= 1 << chance.randrange(8)
        segment.write_bytes(content)
        cluster.recorder.nemesis(bit_rot=f"broker-{n}/{key}")
    progress(cluster, f"a bit of broker {n}'s {key} flipped")
    cluster.start(n)
    time.sleep(5)
    cluster.kill(n)
    for path in (cluster.brokers[n].data / key).glob("*"):
        path.unlink()  # the operator's part: a damaged replica is fetched again
    time.sleep(LONGER_THAN_A_SESSION)
    cluster.start(n)
    cluster.wait_in_sync()


def file_size_limit(cluster: ChaosCluster, chance: random.Random) -> None:
    """S15: from now on every write of a broker fails (EFBIG), until it is restarted."""
    import resource

    n = cluster.any_leader(chance)
    process = cluster.brokers[n].process
    assert process is not None
    cluster.recorder.nemesis(fail_writes=n)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (4096, 4096))
    progress(cluster, f"broker {n} cannot write any more")
    time.sleep(LONGER_THAN_A_SESSION)
    cluster.kill(n)
    cluster.start(n)
    cluster.wait_in_sync()
    time.sleep(2)


def unclean_election(cluster: ChaosCluster, chance: random.Random) -> None:
    """S18, off: the whole ISR is down and a stale replica up: no replica leads until the ISR is back."""
    leader = cluster.any_leader(chance)
    stale, other = chance.sample([n for n in cluster.ids if n != leader], 2)
    cluster.kill(stale)
    time.sleep(LONGER_THAN_A_SESSION + 2)
    cluster.kill(leader, other)
    cluster.start(stale)
    time.sleep(LONGER_THAN_A_SESSION)
    led = [key for key in cluster.keys if cluster.leader(key) == stale]
    progress(cluster, f"only broker {stale}, a stale one, is up; it leads {led}")
    cluster.start(leader, other)
    cluster.wait_in_sync()


def controller_dies_at_work(cluster: ChaosCluster, chance: random.Random) -> None:
    """S19: the controller dies somewhere within the making or ending of a topic."""
    import threading

    name = f"half-made-{chance.randrange(10**6)}"

    def work() -> None:
        with suppress(KafkaException):
            cluster.create_topic(name, 8)
            cluster.delete_topic(name)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    time.sleep(chance.uniform(0.02, 0.6))
    n = cluster.controller(chance)
    cluster.kill(n)
    progress(cluster, f"the controller, {n}, died while {name} was made or deleted")
    thread.join(60)
    time.sleep(chance.choice((0.0, LONGER_THAN_A_SESSION)))
    cluster.start(n)
    with suppress(KafkaException):
        cluster.delete_topic(name)
    cluster.wait_in_sync()


def recreate_topic(cluster: ChaosCluster, chance: random.Random) -> None:
    """S27: a topic is deleted and made again while a broker that has it is down."""
    name = "again-" + "x" * 200
    n = chance.choice(cluster.alive)
    with suppress(KafkaException):
        cluster.create_topic(name, 3)
    cluster.kill(n)
    time.sleep(LONGER_THAN_A_SESSION)
    with suppress(KafkaException):
        cluster.delete_topic(name)
        cluster.create_topic(name, 3)
    progress(cluster, f"a topic was created again while broker {n} was down")
    cluster.start(n)
    time.sleep(2)
    with suppress(KafkaException):
        cluster.delete_topic(name)
    cluster.wait_in_sync()


def rolling_restart(cluster: ChaosCluster, chance: random.Random) -> None:
    """S28: SIGTERM, one after another, each waiting for the one before to be in sync."""
    for n in cluster.ids:
        play_fault(cluster, chance, faults.restart_cleanly, 0.5, 0)
        progress(cluster, f"{n} of {len(cluster.ids)} restarted")
        cluster.wait_in_sync()
        time.sleep(1)


def preferred_leaders(cluster: ChaosCluster, chance: random.Random) -> None:
    """S29: leaders go back to the preferred ones, of which one lags."""
    from confluent_kafka import ElectionType, TopicPartition

    n = chance.choice(cluster.ids)
    cluster.kill(n)
    time.sleep(LONGER_THAN_A_SESSION)
    cluster.start(n)
    with suppress(KafkaException):
        wanted = [TopicPartition(*split_key(key)) for key in cluster.keys]
        cluster.admin().elect_leaders(ElectionType.PREFERRED, wanted).result(20)
    progress(cluster, f"the preferred leaders were asked for while broker {n} caught up")
    cluster.wait_in_sync()
    time.sleep(2)


def reassignment(cluster: ChaosCluster, chance: random.Random) -> None:
    """S26: every partition moves, while brokers and the controller die."""
    plan = {key: chance.sample(cluster.ids, REPLICAS) for key in cluster.keys}
    cluster.reassign(plan)
    progress(cluster, f"partitions move to {list(plan.values())}")
    time.sleep(chance.uniform(0, 0.5))
    fault = chance.choice((faults.kill_controller, faults.kill_leader, faults.bounce))
    play_fault(cluster, chance, fault, chance.choice((0.2, LONGER_THAN_A_SESSION)), 1)
    deadline = time.monotonic() + PATIENCE
    while cluster.reassigning() and time.monotonic() < deadline:
        time.sleep(0.1)
    cluster.wait_in_sync()


MIXED: tuple[Fault, ...] = (
    faults.kill_leader,
    faults.kill_controller,
    faults.kill_leader_and_controller,
    faults.bounce,
    faults.pause_leader,
    faults.pause_controller,
    faults.pause_follower,
    faults.end_session,
    faults.kill_zookeeper,
    faults.cut_from_zookeeper,
    faults.cut_from_brokers,
    faults.leader_alone_with_clients,
    faults.one_way,
    faults.lose_answers_to_clients,
    faults.lose_answers_of_zookeeper,
    faults.lose_words_of_controller,
    faults.slow_link,
    faults.kill_all,
    faults.come_back_empty,
    faults.restart_cleanly,
    faults.topics_come_and_go,
    faults.stutter,
    faults.tear_tail,
)

GENTLE: tuple[Fault, ...] = (
    faults.end_session,
    faults.slow_link,
    faults.lose_answers_to_clients,
    faults.pause_follower,
    faults.cut_from_zookeeper,
    faults.topics_come_and_go,
)
"""No process ends by them."""


def gentle(cluster: ChaosCluster, chance: random.Random) -> None:
    """S46: one of them a minute."""
    until = time.monotonic() + 60
    play_fault(cluster, chance, chance.choice(GENTLE), chance.uniform(0.5, 2.5), 0)
    time.sleep(max(0.0, until - time.monotonic()))


LONG = (SESSION_TIMEOUT + 1, 3 * SESSION_TIMEOUT)

SCENARIOS: dict[str, Scenario] = {
    "mixed": Scenario("faults of all kinds", rounds(*MIXED)),
    "S1": Scenario("kill -9 chases leader and controller", chase),
    "S2": Scenario("zombie leader", rounds(faults.pause_leader, lasting=LONG)),
    "S3": Scenario("zombie controller", zombie_controller),
    "S4": Scenario(
        "broker and ZooKeeper are cut", rounds(faults.cut_from_zookeeper, lasting=(5.5, 7))
    ),
    "S5": Scenario(
        "outcome of ISR writes unknown", rounds(faults.lose_answers_of_zookeeper, lasting=(0, 4))
    ),
    "S6": Scenario("a follower returns, the leader dies", follower_then_leader),
    "S7": Scenario("double failover", double_failover),
    "S8": Scenario("last replica standing comes back empty", last_one_standing, unclean_election=True),
    "S9": Scenario(
        "bounced within a session",
        rounds(faults.bounce, faults.come_back_empty, lasting=(0, 1), quiet=(0, 3)),
    ),
    "S10": Scenario("session storm", session_storm),
    "S11": Scenario(
        "leader alone with clients",
        rounds(
            faults.leader_alone_with_clients, faults.cut_from_brokers, faults.one_way, lasting=LONG
        ),
    ),
    "S12": Scenario(
        "retries", rounds(faults.lose_answers_to_clients, lasting=(0, 1), quiet=(0.2, 2))
    ),
    "S13": Scenario("torn tails", rounds(faults.tear_tail, lasting=(6, 8))),
    "S14": Scenario("bit rot", bit_rot),
    "S15": Scenario("writes fail", file_size_limit),
    "S16": Scenario("disks that are full for real", full_disk, small_disks=True),
    "S17": Scenario("all at once", rounds(faults.kill_all, lasting=(0, 6), quiet=(4, 8))),
    "S18": Scenario("unclean election is off", unclean_election),
    "S19": Scenario("the controller dies at work", controller_dies_at_work),
    "S20": Scenario("the controller's words are lost", rounds(faults.lose_words_of_controller)),
    "S22": Scenario(
        "ZooKeeper's servers fail",
        rounds(faults.kill_zookeeper, faults.kill_most_of_zookeeper, faults.pause_zookeeper, lasting=LONG),
        zookeepers=3,
    ),
    "S26": Scenario("partitions move under fire", reassignment, brokers=4),
    "S27": Scenario("a topic is made again", recreate_topic),
    "S28": Scenario("rolling restarts", rolling_restart),
    "S29": Scenario("preferred leaders", preferred_leaders),
    "S32": Scenario(
        "slow followers", rounds(faults.stutter, faults.slow_link, faults.pause_follower)
    ),
    "S37": Scenario("one core for all, and a busy neighbour", one_core),
    "packets": Scenario(
        "packets between hosts are dropped (iptables), kills, pauses, full disks",
        dropped_packets,
        zookeepers=3,
        small_disks=True,
        namespaces=True,
    ),
    "S46": Scenario("soak: a gentle fault a minute, and nothing grows", gentle, soak=True),
}  # fmt: skip
