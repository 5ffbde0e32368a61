"""Two clusters under test, east and west, and the kmirror processes between them."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import NewPartitions

from tests.audits.health import audit_log_lines
from tests.audits.problem import Problem
from tests.chaos import faults
from tests.chaos.client import split_key
from tests.chaos.cluster import ZOOKEEPER_ERRORS, ChaosCluster
from tests.chaos.faults import Fault
from tests.chaos.mirror_writers import Place
from tests.chaos.recorder import Recorder
from tests.kit.mirrors import Mirror

EAST, WEST = "east", "west"
TOPICS = "mirrored-"
"""What the names of the topics begin with."""
MOST_TOPICS = 6
MOST_PARTITIONS = 6

SETTINGS = {
    "west->east.enabled": "true",
    "replication.factor": "3",
    "refresh.topics.interval.seconds": "2",
    "sync.topic.configs.interval.seconds": "3",
    "request.timeout.ms": "10000",
}


class MirroredClusters:
    """Two clusters of three brokers, each with a ZooKeeper server of its own, and their mirrors.

    With *workers* so many kmirror processes share the partitions; else one copies all, and a second one is a fault.
    """

    def __init__(self, directory: Path, workers: int = 0) -> None:
        self.recorders = {}
        self.clusters: dict[str, ChaosCluster] = {}
        for name in (EAST, WEST):
            home = directory / name
            home.mkdir(parents=True)
            self.recorders[name] = Recorder(home / "history.jsonl")
            self.clusters[name] = ChaosCluster(home, self.recorders[name])
        settings = dict(SETTINGS)
        for name, cluster in self.clusters.items() if workers else ():
            settings |= {
                f"{name}.zookeeper.connect": f"{cluster.ensemble.connect}{cluster.chroot}",
                f"{name}.zookeeper.session.timeout.ms": "4000",
            }
        self.mirrors = [
            Mirror(
                directory / f"kmirror-{number}", self.clusters[EAST], self.clusters[WEST], settings
            )
            for number in range(workers or 2)
        ]
        self.faults = WORKER_FAULTS if workers else MIRROR_FAULTS
        self._lasting = range(workers or 1)
        """The mirrors that run while nothing is hurt."""
        self.active = EAST
        """The cluster that producers write to."""
        self.places: list[Place] = []
        self.problems: list[Problem] = []

    @property
    def passive(self) -> str:
        """The cluster that has the mirror topics."""
        return WEST if self.active == EAST else EAST

    @property
    def bootstraps(self) -> dict[str, str]:
        """bootstrap.servers of each cluster."""
        return {name: cluster.bootstrap for name, cluster in self.clusters.items()}

    def begin(self) -> None:
        """Start both clusters."""
        for cluster in self.clusters.values():
            cluster.begin()

    def end(self) -> None:
        """End everything, however it stands."""
        for mirror in self.mirrors:
            mirror.kill()
        for name, cluster in self.clusters.items():
            self.recorders[name].close()
            cluster.end()

    def heal(self) -> None:
        """Undo every fault; one mirror process runs, or all workers."""
        for cluster in self.clusters.values():
            cluster.heal()
        for number in range(len(self.mirrors)):
            if number not in self._lasting:
                self.kill_mirror(number)
        self.start_mirrors()

    # -- mirrors

    def start_mirrors(self) -> None:
        """Start or resume the mirrors that run while nothing is hurt."""
        for number in self._lasting:
            self.resume_mirror(number)
            self.start_mirror(number)

    def start_mirror(self, number: int) -> None:
        """Start it, unless it runs; a mirror that ended by itself is a problem."""
        mirror = self.mirrors[number]
        if mirror.process is not None and (code := mirror.process.poll()) is not None:
            text = f"ended by itself with {code}: {mirror.output[-1000:]}"
            self.problems.append(Problem("mirror-ended", f"kmirror-{number}", text))
            mirror.kill()
        if mirror.process is None:
            mirror.start()

    def kill_mirror(self, number: int) -> None:
        """kill -9."""
        self.mirrors[number].kill()

    def pause_mirror(self, number: int) -> None:
        """SIGSTOP."""
        self._signal(number, signal.SIGSTOP)

    def resume_mirror(self, number: int) -> None:
        """SIGCONT."""
        self._signal(number, signal.SIGCONT)

    def _signal(self, number: int, what: signal.Signals) -> None:
        process = self.mirrors[number].process
        if process is not None:
            process.send_signal(what)

    # -- topics

    def create_topic(self, partitions: int) -> None:
        """Create the next topic at the active cluster; whether that succeeds now is not the point."""
        cluster = self.clusters[self.active]
        known = {topic for topic, _ in self.places}
        with suppress(KafkaException):
            cluster.create_topic(f"{TOPICS}{len(known) + 1}", partitions)
        self.note_topics()

    def grow(self, chance: random.Random) -> None:
        """Create a topic, or add a partition to one."""
        known = sorted({topic for topic, _ in self.places})
        if len(known) < MOST_TOPICS and chance.random() < 0.6:
            self.create_topic(chance.randint(1, 3))
            return
        topic = chance.choice(known)
        count = sum(one == topic for one, _ in self.places)
        if count < MOST_PARTITIONS:
            admin = self.clusters[self.active].admin()
            with suppress(KafkaException):
                new = NewPartitions(topic, count + 1)
                admin.create_partitions([new], operation_timeout=10)[topic].result(20)
        self.note_topics()

    def note_topics(self) -> None:
        """Read from both ZooKeepers which topics and replicas there are."""
        for name, cluster in self.clusters.items():
            with suppress(*ZOOKEEPER_ERRORS), cluster.observer() as zookeeper:
                path = f"{cluster.chroot}/brokers/topics"
                found: dict[str, list[int]] = {}
                for topic in zookeeper.get_children(path):
                    if topic.startswith(TOPICS):
                        value = json.loads(zookeeper.get(f"{path}/{topic}")[0])
                        for partition, replicas in value["partitions"].items():
                            found[f"{topic}-{partition}"] = replicas
                cluster.replicas.update(found)
                cluster.keys = sorted(found)
                if name == self.active:
                    self.places = [split_key(key) for key in cluster.keys]

    # -- judgement

    def judge_logs(self) -> list[Problem]:
        """Return lines that no broker and no mirror should have written."""
        found = list(self.problems)
        for name, cluster in self.clusters.items():
            for n in cluster.ids:
                found += [
                    one._replace(where=f"{name} {one.where}")
                    for one in audit_log_lines(cluster.brokers[n].home / "broker.log")
                ]
        for mirror in self.mirrors:
            found += audit_log_lines(mirror.log_file)
        return found


MirrorFault = Callable[[MirroredClusters, random.Random], Iterator[str]]


def kill_mirror(clusters: MirroredClusters, _: random.Random) -> Iterator[str]:
    """kill -9 of the mirror."""
    clusters.kill_mirror(0)
    yield "kill -9 of kmirror"
    clusters.start_mirror(0)


def bounce_mirror(clusters: MirroredClusters, _: random.Random) -> Iterator[str]:
    """kill -9, and back at once."""
    clusters.kill_mirror(0)
    clusters.start_mirror(0)
    yield "kmirror bounced"


def pause_mirror(clusters: MirroredClusters, _: random.Random) -> Iterator[str]:
    """SIGSTOP."""
    clusters.pause_mirror(0)
    yield "kmirror is paused"
    clusters.resume_mirror(0)


def second_mirror(clusters: MirroredClusters, _: random.Random) -> Iterator[str]:
    """SIGSTOP, another process takes its place, and the first one comes back; the second is killed."""
    clusters.pause_mirror(0)
    clusters.start_mirror(1)
    yield "kmirror is paused, another one runs; then both"
    clusters.resume_mirror(0)
    clusters.kill_mirror(1)


def two_mirrors(clusters: MirroredClusters, _: random.Random) -> Iterator[str]:
    """Two processes copy the same partitions; one is killed."""
    clusters.start_mirror(1)
    yield "two kmirror processes run"
    clusters.kill_mirror(0)
    clusters.kill_mirror(1)
    clusters.start_mirror(0)


MIRROR_FAULTS: tuple[MirrorFault, ...] = (
    kill_mirror,
    kill_mirror,
    bounce_mirror,
    pause_mirror,
    second_mirror,
    two_mirrors,
)


def kill_worker(clusters: MirroredClusters, chance: random.Random) -> Iterator[str]:
    """kill -9 of one worker."""
    number = chance.randrange(len(clusters.mirrors))
    clusters.kill_mirror(number)
    yield f"kill -9 of kmirror {number}"
    clusters.start_mirror(number)


def pause_worker(clusters: MirroredClusters, chance: random.Random) -> Iterator[str]:
    """SIGSTOP of one worker; the others take its partitions, if it lasts."""
    number = chance.randrange(len(clusters.mirrors))
    clusters.pause_mirror(number)
    yield f"kmirror {number} is paused"
    clusters.resume_mirror(number)


def kill_and_pause_workers(clusters: MirroredClusters, chance: random.Random) -> Iterator[str]:
    """kill -9 of one worker and SIGSTOP of another one."""
    killed, paused = chance.sample(range(len(clusters.mirrors)), 2)
    clusters.kill_mirror(killed)
    clusters.pause_mirror(paused)
    yield f"kill -9 of kmirror {killed}, kmirror {paused} is paused"
    clusters.start_mirror(killed)
    clusters.resume_mirror(paused)


WORKER_FAULTS: tuple[MirrorFault, ...] = (
    kill_worker,
    kill_worker,
    pause_worker,
    pause_worker,
    kill_and_pause_workers,
)

CLUSTER_FAULTS: tuple[Fault, ...] = (
    faults.kill_leader,
    faults.kill_leader,
    faults.kill_leader,
    faults.kill_controller,
    faults.kill_leader_and_controller,
    faults.bounce,
    faults.kill_all,
    faults.pause_leader,
    faults.pause_follower,
    faults.end_session,
    faults.kill_zookeeper,
    faults.pause_zookeeper,
    faults.cut_from_zookeeper,
    faults.leader_alone_with_clients,
    faults.lose_answers_to_clients,
    faults.lose_answers_of_zookeeper,
    faults.restart_cleanly,
)
