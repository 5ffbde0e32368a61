"""Elections with real processes: no replica that may lack acknowledged records leads (S8, S9, S14, S17)."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import dataclass

import pytest
from confluent_kafka import KafkaError, Producer

from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.replicated import Observer, read_all, until_replicas_agree
from tests.kit.waiting import eventually
from tests.kit.zookeeper import zookeeper_at

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SETTINGS = {
    "zookeeper.session.timeout.ms": "3000",
    "replica.lag.time.max.ms": "2000",
    "replica.fetch.backoff.ms": "200",
    "replica.high.watermark.checkpoint.interval.ms": "200",
    # A consumer that is closed waits for its coordinator, even if it is in no group.
    "offsets.topic.replication.factor": "3",
}
SAFE = {"min.insync.replicas": "2"}
PATIENCE = 40.0
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster(module_clusters: MakeCluster) -> Cluster:
    """Three brokers for all tests of this file; every test leaves them running."""
    return module_clusters(3, SETTINGS)


@dataclass
class Scene:
    """A topic on *leader* and *follower*; the controller is the third broker."""

    cluster: Cluster
    observer: Observer
    topic: str
    leader: int
    follower: int
    controller: int

    def send(self, count: int, *, acks: str = "all") -> list[bytes]:
        """Produce so many values to partition 0, every one acknowledged; return them."""
        values = [f"{acks} {number}".encode() for number in range(count)]
        reports: list[KafkaError | None] = []
        producer = Producer(
            {"bootstrap.servers": self.cluster.bootstrap, "acks": acks, "log_level": 0}
        )
        for value in values:
            producer.produce(
                self.topic, value, partition=0, on_delivery=lambda error, _m: reports.append(error)
            )
        assert producer.flush(PATIENCE) == 0
        assert reports == [None] * count
        return values

    def read(self) -> list[bytes]:
        """Return what readers see."""
        return list(read_all(self.cluster.bootstrap, self.topic, 1)[0].values())

    def leave_alone(self) -> None:
        """Have the leader be the last in-sync replica."""
        self.cluster.terminate(self.follower)
        self.observer.in_sync(self.topic, 0, [self.leader], PATIENCE)

    def until_led_by(self, broker_id: int) -> None:
        """Wait for *broker_id* to lead; -1: for no leader."""
        eventually(
            f"{self.topic} led by {broker_id}",
            lambda: self.observer.placement(self.topic).leader == broker_id,
            PATIENCE,
        )

    def until_logged(self, broker_id: int, *words: str) -> str:
        """Wait for a line of a broker's log with all *words*; return it."""

        def line() -> str | None:
            lines = self.cluster[broker_id].log.splitlines()
            return next((line for line in lines if all(word in line for word in words)), None)

        found = eventually(f"{words} in the log of broker {broker_id}", line, PATIENCE)
        assert found is not None
        return found

    def stays_leaderless(self) -> None:
        """Demand that the partition has no leader once the follower is back, which has fewer records."""
        self.cluster.start(self.follower)
        self.until_logged(self.controller, f"{self.topic}-0 is OFFLINE")
        assert self.observer.placement(self.topic).leader == -1

    def is_whole_again(self) -> None:
        """Wait for both replicas to be in sync and equal."""
        self.observer.in_sync(self.topic, 0, [self.leader, self.follower], PATIENCE)
        until_replicas_agree(self.cluster, self.topic, 0, [self.leader, self.follower], PATIENCE)


@pytest.fixture
def scene(cluster: Cluster, request: pytest.FixtureRequest) -> Scene:
    for broker_id, broker in cluster.brokers.items():
        if broker.process is None:
            cluster.start(broker_id)
    observer = Observer(cluster)
    controller = eventually("a controller", lambda: max(observer.controller(), 0), PATIENCE)
    leader, follower = (b for b in cluster.brokers if b != controller)
    topic = f"{request.function.__name__.removeprefix('test_')[:60]}-{next(_numbers)}"
    observer.create(topic, [[leader, follower]])
    return Scene(cluster, observer, topic, leader, follower, controller)


def lose_power(cluster: Cluster, broker_id: int) -> None:
    """Make a killed broker find that its machine was rebooted."""
    path = cluster[broker_id].data / "broker-incarnation"
    path.write_text(json.dumps({**json.loads(path.read_text()), "bootId": "another boot"}))


def until_committed(scene: Scene, broker_id: int, offset: int) -> None:
    """Wait until a broker's checkpoint has this high watermark; a new broker has no checkpoint for a moment."""
    checkpoint = scene.cluster[broker_id].data / "replication-offset-checkpoint"
    line = f"{scene.topic} 0 {offset}\n"
    eventually("a checkpoint", lambda: checkpoint.exists() and line in checkpoint.read_text())


def test_s08_the_last_replica_is_back_by_itself_after_a_kill(scene: Scene) -> None:
    scene.leave_alone()
    sent = scene.send(500)
    for _ in range(2):
        scene.cluster.restart(scene.leader)
        scene.until_led_by(scene.leader)
    assert scene.read() == sent
    scene.cluster.start(scene.follower)
    scene.is_whole_again()


def test_s08_the_last_replica_without_its_disk_does_not_lead_until_the_disk_is_back(
    scene: Scene,
) -> None:
    scene.leave_alone()
    sent = scene.send(500)
    scene.cluster.kill(scene.leader)
    disk = scene.cluster[scene.leader].data
    aside = disk.with_name(f"aside-{scene.topic}")
    disk.rename(aside)
    scene.cluster.start(scene.leader)
    scene.stays_leaderless()
    line = scene.until_logged(scene.controller, f"{scene.topic}-0 is OFFLINE")
    assert f"broker {scene.leader}: its log directories are new" in line
    assert "unclean.leader.election.enable=true" in line
    scene.cluster.terminate(scene.leader)
    shutil.rmtree(disk)
    aside.rename(disk)
    scene.cluster.start(scene.leader)
    scene.until_led_by(scene.leader)
    scene.is_whole_again()
    assert scene.read() == sent


def test_s08_the_last_replica_restored_from_a_backup_does_not_lead_until_its_own_disk_is_back(
    scene: Scene,
) -> None:
    sent = scene.send(100)
    scene.leave_alone()
    scene.cluster.terminate(scene.leader)
    disk = scene.cluster[scene.leader].data
    backup, own = (disk.with_name(f"{kept}-{scene.topic}") for kept in ("backup", "own"))
    shutil.copytree(disk, backup)
    scene.cluster.start(scene.leader)
    scene.until_led_by(scene.leader)
    sent += scene.send(500)
    scene.cluster.restart(scene.leader)
    scene.until_led_by(scene.leader)
    scene.cluster.kill(scene.leader)
    disk.rename(own)
    backup.rename(disk)  # with the marker of a clean shutdown, 500 records short
    scene.cluster.start(scene.leader)
    scene.stays_leaderless()
    # A clean restart makes the copy no better: the broker epochs that it missed stay uncovered.
    scene.cluster.terminate(scene.leader)
    scene.cluster.start(scene.leader)
    scene.observer.create(
        f"{scene.topic}-later", [[scene.leader]]
    )  # the controller knows of the restart
    assert scene.observer.placement(scene.topic).leader == -1
    scene.cluster.terminate(scene.leader)
    shutil.rmtree(disk)
    own.rename(disk)
    scene.cluster.start(scene.leader)
    scene.until_led_by(scene.leader)
    scene.is_whole_again()
    assert scene.read() == sent


def test_s08_the_last_replica_after_a_power_loss_waits_for_an_operator(scene: Scene) -> None:
    sent = scene.send(100)
    scene.leave_alone()
    sent += scene.send(500)
    scene.cluster.kill(scene.leader)
    lose_power(scene.cluster, scene.leader)
    scene.cluster.start(scene.leader)
    scene.stays_leaderless()
    line = scene.until_logged(scene.controller, f"{scene.topic}-0 is OFFLINE")
    assert "its machine went down" in line
    scene.observer.configure(scene.topic, {"unclean.leader.election.enable": "true"})
    scene.until_led_by(scene.leader)  # of the two it was in sync last
    scene.is_whole_again()
    assert scene.read() == sent


def test_s17_after_a_power_loss_of_all_machines_the_longest_log_leads(scene: Scene) -> None:
    sent = scene.send(100)
    scene.cluster.kill()
    for broker_id in scene.cluster.brokers:
        lose_power(scene.cluster, broker_id)
    # The first replica of the assignment lost its tail; its checkpoint still has the offset.
    (segment,) = (scene.cluster[scene.leader].data / f"{scene.topic}-0").glob("*.log")
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size // 2)
    scene.cluster.start()
    scene.until_led_by(scene.follower)
    line = scene.until_logged(scene.cluster.brokers[scene.observer.controller()].broker_id,
                            f"{scene.topic}-0 is led again", "its machine went down")  # fmt: skip
    assert "longest log" in line
    scene.is_whole_again()
    assert scene.read() == sent


def test_s08_the_last_replica_with_a_truncated_log_reports_it_and_does_not_lead(
    scene: Scene,
) -> None:
    scene.leave_alone()
    scene.send(500)
    data = scene.cluster[scene.leader].data
    until_committed(scene, scene.leader, 500)
    scene.cluster.kill(scene.leader)
    (segment,) = (data / f"{scene.topic}-0").glob("*.log")
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size // 2)
    scene.cluster.start(scene.leader)
    scene.stays_leaderless()
    scene.until_logged(scene.leader, f"{scene.topic}-0 is not led from here", "its log ends at")
    # Nothing but a decision helps: not even a restart, after which the log looks like any other.
    scene.cluster.restart(scene.leader)
    scene.until_logged(scene.controller, f"{scene.topic}-0 is OFFLINE", "its log of this partition")
    assert scene.observer.placement(scene.topic).leader == -1
    scene.observer.configure(scene.topic, {"unclean.leader.election.enable": "true"})
    eventually("a leader", lambda: scene.observer.placement(scene.topic).leader > 0, PATIENCE)
    scene.is_whole_again()


def lose_the_log(scene: Scene, broker_id: int) -> None:
    """Remove a partition's directory while its broker is down, and start the broker again."""
    scene.cluster.kill(broker_id)
    shutil.rmtree(scene.cluster[broker_id].data / f"{scene.topic}-0")
    scene.cluster.start(broker_id)


def in_zookeeper(scene: Scene) -> dict[str, object]:
    """Return a partition's state znode."""
    with zookeeper_at(scene.cluster.zookeeper_connect) as client:
        data, _ = client.get(f"/brokers/topics/{scene.topic}/partitions/0/state")
    found: dict[str, object] = json.loads(data)
    return found


@pytest.mark.parametrize("replicas", ["sole", "others are dead"])
def test_s08_a_loss_that_was_accepted_does_not_excuse_the_next_one(
    cluster: Cluster, scene: Scene, replicas: str
) -> None:
    leader = scene.leader
    if replicas == "sole":
        scene.topic += "-sole"
        scene.observer.create(scene.topic, [[leader]])
    else:
        scene.leave_alone()
    scene.send(100)
    until_committed(scene, leader, 100)
    lose_the_log(scene, leader)
    scene.until_logged(leader, f"{scene.topic}-0 is not led from here")
    scene.until_led_by(-1)
    scene.observer.configure(scene.topic, {"unclean.leader.election.enable": "true"})
    scene.until_led_by(leader)
    eventually(
        "the end of the recovery", lambda: "leader_recovery_state" not in in_zookeeper(scene)
    )
    scene.observer.configure(scene.topic, {"unclean.leader.election.enable": "false"})
    scene.send(50)
    until_committed(scene, leader, 50)
    before = scene.cluster[leader].log.count(f"{scene.topic}-0 is not led from here")
    lose_the_log(scene, leader)
    eventually(
        "the second loss in the log",
        lambda: scene.cluster[leader].log.count(f"{scene.topic}-0 is not led from here") > before,
        PATIENCE,
    )
    scene.until_led_by(-1)


@pytest.mark.parametrize("how", ["moved away", "cut", "moved away, restarted"])
def test_s08_a_restored_log_leads_after_its_loss_was_reported(scene: Scene, how: str) -> None:
    cluster, leader = scene.cluster, scene.leader
    scene.leave_alone()
    sent = scene.send(300)
    until_committed(scene, leader, 300)
    cluster.kill(leader)
    directory = cluster[leader].data / f"{scene.topic}-0"
    kept = cluster[leader].data.with_name(f"{scene.topic}-kept")
    shutil.copytree(directory, kept)
    if how == "cut":
        (segment,) = directory.glob("*.log")
        segment.write_bytes(segment.read_bytes()[:1000])
    else:
        shutil.rmtree(directory)
    cluster.start(leader)
    scene.until_logged(leader, f"{scene.topic}-0 is not led from here")
    scene.until_led_by(-1)
    assert "put it back while the broker is stopped" in scene.until_logged(
        scene.controller, f"{scene.topic}-0 is OFFLINE"
    )
    if how.endswith("restarted"):
        cluster.terminate(leader)
        cluster.start(leader)
        scene.until_logged(leader, f"{scene.topic}-0 waits for a leader")
        assert scene.observer.placement(scene.topic).leader == -1
    cluster.kill(leader)
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(kept, directory)
    cluster.start(leader)
    scene.until_led_by(leader)
    cluster.start(scene.follower)
    scene.is_whole_again()
    assert scene.read() == sent


def test_s08_an_eligible_replica_leads_instead_of_the_last_one(
    cluster: Cluster, scene: Scene
) -> None:
    observer = scene.observer
    topic = scene.topic + "-3"
    leader, other, third = scene.leader, scene.follower, scene.controller
    observer.create(topic, [[leader, other, third]], SAFE)
    whole = Scene(cluster, observer, topic, leader, other, third)
    sent = whole.send(300)
    cluster.terminate(third)
    observer.in_sync(topic, 0, [leader, other], PATIENCE)
    sent += whole.send(300)
    cluster.kill(other)
    observer.in_sync(
        topic, 0, [leader], PATIENCE
    )  # under min.insync.replicas: nothing is committed
    cluster.kill(leader)
    cluster.start(third, other)
    whole.until_led_by(other)  # the third left before the last records were committed
    observer.in_sync(topic, 0, [other, third], PATIENCE)
    assert whole.read() == sent
    cluster.start(leader)
    observer.in_sync(topic, 0, [leader, other, third], PATIENCE)
    until_replicas_agree(cluster, topic, 0, [leader, other, third], PATIENCE)


def test_s09_a_follower_back_without_its_disk_within_its_session_is_not_in_sync(
    scene: Scene,
) -> None:
    sent = scene.send(2000)
    session = scene.cluster[scene.follower].data / "zookeeper-session"
    credentials = session.read_bytes()
    scene.cluster.kill(scene.follower)
    shutil.rmtree(scene.cluster[scene.follower].data)
    scene.cluster[scene.follower].data.mkdir()
    session.write_bytes(
        credentials
    )  # so that its session is ended at once, as if it had the time to
    scene.cluster.start(scene.follower)
    scene.cluster.kill(scene.leader)
    # Either it had everything again before the leader died, or it waits for it.
    scene.cluster.start(scene.leader)
    scene.is_whole_again()
    assert scene.read() == sent


def until_all_sessions_are_over(cluster: Cluster) -> None:
    """Wait for as long as machines take to start: all sessions of dead brokers have expired."""
    with zookeeper_at(cluster.zookeeper_connect) as client:
        eventually("no broker", lambda: not client.get_children("/brokers/ids"), PATIENCE)


def test_s17_after_an_outage_of_all_machines_the_cluster_comes_back_by_itself(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(3, SETTINGS)
    observer = Observer(cluster)
    observer.create("t", [[1, 2, 3]])
    scene = Scene(cluster, observer, "t", 1, 2, 3)
    sent = scene.send(300)
    cluster.kill(*cluster.brokers)
    for broker_id in cluster.brokers:
        lose_power(cluster, broker_id)
    until_all_sessions_are_over(cluster)
    cluster.start(*cluster.brokers)
    observer.in_sync("t", 0, cluster.brokers, PATIENCE)
    until_replicas_agree(cluster, "t", 0, cluster.brokers, PATIENCE)
    assert scene.read() == sent
    logs = "".join(broker.log for broker in cluster.brokers.values())
    assert "t-0 is led again by broker" in logs


def rot(cluster: Cluster, broker_id: int, topic: str) -> None:
    """Flip a bit in the middle of a stopped broker's log."""
    (segment,) = (cluster[broker_id].data / f"{topic}-0").glob("*.log")
    with segment.open("r+b") as file:
        file.seek(segment.stat().st_size // 2)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 0x10]))


def test_s14_a_damaged_replica_is_repaired_from_another(scene: Scene) -> None:
    sent = [value for _ in range(5) for value in scene.send(100)]
    for victim in (scene.follower, scene.leader):
        until_committed(scene, victim, 500)
        scene.cluster.kill(victim)
        rot(scene.cluster, victim, scene.topic)
        scene.cluster.start(victim)
        scene.is_whole_again()
        assert scene.read() == sent


def test_s14_the_last_replica_does_not_lead_with_a_damaged_log(scene: Scene) -> None:
    scene.leave_alone()
    for _ in range(5):
        scene.send(100)
    until_committed(scene, scene.leader, 500)
    scene.cluster.kill(scene.leader)
    rot(scene.cluster, scene.leader, scene.topic)
    scene.cluster.start(scene.leader)
    scene.stays_leaderless()
    scene.until_logged(scene.leader, f"{scene.topic}-0 is not led from here")
    scene.observer.configure(scene.topic, {"unclean.leader.election.enable": "true"})
    eventually("a leader", lambda: scene.observer.placement(scene.topic).leader > 0, PATIENCE)
    scene.is_whole_again()
