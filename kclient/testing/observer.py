"""What a test sees of a cluster from outside: leaders, ISR, groups and records, and waits for them to change.

`Observer` is a client of its own (`kclient.blocking.AdminClient` and `Consumer`), so it sees what any client sees, and
works with any Kafka. Its calls block. A wait that ends without its condition raises AssertionError with what it saw
last.

The reactor of kclient's blocking clients is in a thread of its own: a test may run asyncio or Twisted beside it. They
are imported with the first call: that takes longer than this module, and a cluster starts meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kclient.errors import KafkaError
from kclient.net.metadata import NO_LEADER, PartitionMetadata
from kclient.testing.acknowledged import Acknowledged, assert_acked_equals_consumed
from kclient.testing.raw_connection import RawConnection
from kclient.types import AnyRecord, NewTopic, TopicPartition
from kclient.wire.schema.metadata import MetadataRequest, MetadataRequestTopic
from kclient.wire.versions import ApiKey

if TYPE_CHECKING:
    from kclient.admin.groups import GroupDescription
    from kclient.blocking import AdminClient, Consumer

T = TypeVar("T")

WAIT = 30.0
"""Seconds of a wait: the time of a failover on a busy machine, several times over."""

_PAUSE = 0.02
_METADATA_VERSION = 9
OBSERVER = "kclient-observer"
"""The client id of observers: faults that a test asks of its cluster are not for them."""

_SETTINGS: Mapping[str, Any] = {
    "client.id": OBSERVER,
    "request.timeout.ms": 3000,
    "default.api.timeout.ms": 5000,
    "reconnect.backoff.max.ms": 200,
}
"""Brokers of a test are killed and paused: the observer asks another one soon."""


class Observer:
    """A client of the cluster at *bootstrap*. Use as a context manager, or call `close`.

    with Observer("localhost:9092") as observer:
        topic = observer.create_topic("orders", partitions=3)
        observer.wait_isr(topic)
        print(observer.leader(topic), observer.isr(topic), len(observer.read_topic(topic)))
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin: AdminClient | None = None

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, as in bootstrap.servers."""
        return self._bootstrap

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the next call opens others."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    @property
    def admin(self) -> AdminClient:
        """The admin client of this observer, with short timeouts."""
        if self._admin is None:
            from kclient.blocking import AdminClient

            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, **_SETTINGS})
        return self._admin

    # --- topics ---

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
        *,
        assignment: Mapping[int, list[int]] | None = None,
    ) -> str:
        """Create a topic, wait until each partition has a leader and its whole ISR, and return its name.

        By default it has three replicas, or as many as there are brokers. *assignment* places them instead: the broker
        ids of each partition, preferred leader first.
        """
        settings: dict[str, str | None] = {k: str(v) for k, v in (config or {}).items()}
        if assignment is not None:
            new = NewTopic(name, configs=settings, replica_assignment=dict(assignment))
        else:
            replicas = replication_factor or min(3, len(self.admin.describe_cluster().brokers))
            new = NewTopic(name, partitions, replicas, settings)
        self.admin.create_topics([new], timeout=WAIT)
        self.wait_isr(name)
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        self.admin.delete_topics([name], timeout=WAIT)

    def partitions(self, topic: str) -> dict[int, PartitionMetadata]:
        """Return the leader, replicas and ISR of each partition, from fresh metadata."""
        found = self.admin.describe_topics([topic])[topic]
        if isinstance(found, KafkaError):
            raise found
        return dict(found.partitions)

    def leader(self, topic: str, partition: int = 0) -> int | None:
        """Return the leader's broker id, None if there is no leader."""
        found = self.partitions(topic)[partition].leader
        return None if found == NO_LEADER else found

    def isr(self, topic: str, partition: int = 0) -> set[int]:
        """Return the broker ids of the in-sync replicas."""
        return set(self.partitions(topic)[partition].isr)

    def controller(self) -> int:
        """Return the broker id of the controller, -1 if there is none."""
        return self.admin.describe_cluster().controller_id

    def live_brokers(self) -> set[int]:
        """Return the ids of the brokers that are alive, for the controller."""
        return set(self.admin.describe_cluster().brokers)

    # --- waits ---

    def wait_isr(
        self,
        topic: str,
        isr: Iterable[int] | None = None,
        *,
        partition: int | None = None,
        timeout: float = WAIT,
    ) -> None:
        """Wait until the ISR of each partition, or of *partition*, is exactly *isr*, by default all replicas."""
        wanted = None if isr is None else set(isr)

        def reached(found: dict[int, PartitionMetadata]) -> bool:
            chosen = [p for n, p in found.items() if partition in (None, n)]
            return bool(chosen) and all(
                p.leader != NO_LEADER
                and set(p.isr) == (set(p.replicas) if wanted is None else wanted)
                for p in chosen
            )

        whole = "all replicas" if wanted is None else str(sorted(wanted))
        where = topic if partition is None else f"{topic}-{partition}"
        self._wait(
            f"the ISR of {where} to be {whole}", lambda: self.partitions(topic), reached, timeout
        )

    def wait_leader(
        self,
        topic: str,
        partition: int = 0,
        *,
        not_on: int | Iterable[int] = (),
        timeout: float = WAIT,
    ) -> int:
        """Wait until the partition has a leader, on none of the brokers *not_on*; return its broker id."""
        refused = {not_on} if isinstance(not_on, int) else set(not_on)

        def reached(found: dict[int, PartitionMetadata]) -> bool:
            dead = {NO_LEADER, *refused, *self._known_dead()}
            return partition in found and found[partition].leader not in dead

        but = f" that is not on {sorted(refused)}" if refused else ""
        what = f"a leader of {topic}-{partition}{but}"
        return self._wait(what, lambda: self.partitions(topic), reached, timeout)[partition].leader

    def wait_controller(self, *, not_on: int | Iterable[int] = (), timeout: float = WAIT) -> int:
        """Wait until the cluster has a controller, on none of the brokers *not_on*; return its broker id."""
        refused = {-1, not_on} if isinstance(not_on, int) else {-1, *not_on}

        def reached(found: int) -> bool:
            return found not in refused | self._known_dead()

        return self._wait("a controller", self.controller, reached, timeout)

    def _known_dead(self) -> set[int]:
        """Return the brokers that cannot lead now, whatever metadata has: nothing is known about them here."""
        return set()

    def wait_live(self, broker_ids: Iterable[int], *, timeout: float = WAIT) -> None:
        """Wait until exactly these brokers are alive: a killed one is until its ZooKeeper session expires."""
        wanted = set(broker_ids)
        what = f"the live brokers to be {sorted(wanted)}"
        self._wait(what, self.live_brokers, lambda found: found == wanted, timeout)

    def wait_group(
        self,
        group: str,
        members: int,
        *,
        meanwhile: Callable[[], object] = lambda: None,
        timeout: float = WAIT,
    ) -> GroupDescription:
        """Wait until the group is stable with so many members (0: empty); return its description.

        Members rejoin when they poll. Those of this thread poll in *meanwhile*, which is called between the looks.
        """

        def reached(found: GroupDescription) -> bool:
            states = ("Stable",) if members else ("Empty", "Dead")
            return len(found.members) == members and found.state in states

        def describe() -> GroupDescription:
            meanwhile()
            found = self.admin.describe_groups([group])[group]
            if isinstance(found, KafkaError):
                raise found
            return found

        return self._wait(f"group {group} to have {members} members", describe, reached, timeout)

    def _wait(
        self, what: str, ask: Callable[[], T], reached: Callable[[T], bool], timeout: float
    ) -> T:
        deadline = time.monotonic() + timeout
        last: Any = "no answer"
        while True:
            try:
                found = ask()
                if reached(found):
                    return found
                last = found
            except KafkaError as problem:
                last = problem
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {timeout:g} s for {what}; last seen: {_shown(last)}")
            time.sleep(_PAUSE)

    # --- records ---

    def read_topic(
        self, topic: str, *, read_committed: bool = False, timeout: float = WAIT
    ) -> list[AnyRecord]:
        """Return all records that the topic has now, by partition and offset.

        With *read_committed* none of aborted or open transactions.
        """
        from kclient.blocking import Consumer

        settings = {
            "bootstrap.servers": self.bootstrap,
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if read_committed else "read_uncommitted",
            **_SETTINGS,
        }
        deadline = time.monotonic() + timeout
        with Consumer(settings) as consumer:
            tps = [TopicPartition(topic, n) for n in sorted(self.partitions(topic))]
            ends = consumer.end_offsets(tps, timeout=timeout)
            consumer.assign(tps)
            consumer.seek_to_beginning(*tps)
            found: list[AnyRecord] = []
            left = {tp for tp in tps if ends[tp] > 0}
            while left:
                if time.monotonic() > deadline:
                    at = {str(tp): f"{_position(consumer, tp)} of {ends[tp]}" for tp in left}
                    raise AssertionError(f"{topic} was not read within {timeout:g} s: {at}")
                for records in consumer.poll(timeout=0.2).values():
                    found += records
                left = {tp for tp in left if _position(consumer, tp) < ends[tp]}
        return sorted(
            (record for record in found if record.offset < ends[record.topic_partition]),
            key=lambda record: (record.partition, record.offset),
        )

    def assert_acked_equals_consumed(
        self, acked: Acknowledged, *, at_least_once: bool = False, timeout: float = WAIT
    ) -> None:
        """Read the topics of *acked* to their ends: they have each acknowledged record, and none that was not sent."""
        consumed = [
            record for topic in acked.topics for record in self.read_topic(topic, timeout=timeout)
        ]
        assert_acked_equals_consumed(acked, consumed, at_least_once=at_least_once)


def wait_for_leaders(host: str, port: int, topic: str, *, timeout: float = WAIT) -> None:
    """Wait until the broker at *host* and *port* answers that each partition of *topic* has a leader."""
    request = MetadataRequest([MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    deadline = time.monotonic() + timeout
    with RawConnection(host, port, timeout=timeout, client_id=OBSERVER) as connection:
        while True:
            (found,) = connection.ask(ApiKey.METADATA, _METADATA_VERSION, request).topics
            if found.error_code == 0 and not any(p.error_code for p in found.partitions):
                return
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"waited {timeout:g} s for {host}:{port} to know the leaders of {topic}"
                )
            time.sleep(_PAUSE)


def _position(consumer: Consumer, tp: TopicPartition) -> int:
    with suppress(KafkaError):
        return consumer.position(tp, timeout=0.5)
    return 0


def _shown(seen: Any) -> str:
    """Return partitions on a line, and anything else as it is."""
    if isinstance(seen, dict):
        return ", ".join(
            f"partition {n}: leader {p.leader}, ISR {sorted(p.isr)} of {sorted(p.replicas)}"
            for n, p in sorted(seen.items())
        )
    return str(seen)
