"""Members of a group, by kclient, that come and go every few seconds and record what they own in which generation.

A fact is a partition's owner in a generation, as its member knows it: after every poll, and within the listener, which
sees generations that end before the poll does. The topic is idle and has many partitions: it is the rebalances that
count. Generation and assignment are read one after the other, so the generation is read twice.
"""

from __future__ import annotations

import time
from typing import Any

from kclient import Consumer, KafkaError, RebalanceListener, TopicPartition
from tests.chaos.client_thread import ClientThread
from tests.chaos.recorder import Recorder

GROUP = "chaos-owners"
TOPIC = "chaos-owned"
PARTITIONS = 16
SHORTEST, MEAN_LIFETIME = 1.0, 4.0
PAUSE = 0.5


class OwnerWorker(ClientThread):
    """One member after another, each a process of the history. *strategy* is the whole group's."""

    def __init__(
        self, name: str, bootstrap: str, recorder: Recorder, *, seed: int, strategy: str
    ) -> None:
        super().__init__(name, recorder, seed=seed)
        self._servers = bootstrap
        self._strategy = strategy

    def run_client(self) -> None:
        """Be a member, leave, and pause a little."""
        self._be_a_member()
        self._ending.wait(self._chance.uniform(0, PAUSE))

    def _be_a_member(self) -> None:
        p = self._recorder.new_process()
        consumer = Consumer(
            config={
                "bootstrap.servers": self._servers,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": self._strategy,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 1000,
                "request.timeout.ms": 5000,
            }
        )
        facts = Facts(consumer, self._recorder, p)
        until = time.monotonic() + SHORTEST + self._chance.expovariate(1 / MEAN_LIFETIME)
        try:
            with consumer:
                consumer.subscribe([TOPIC], listener=facts)
                while not self._ending.is_set() and time.monotonic() < until:
                    consumer.poll(timeout=0.1)
                    facts.look()
        except KafkaError as error:
            self._recorder.event(p, "info", "crash", err=str(error))
            return
        self._recorder.event(p, "info", "crash")


class Facts(RebalanceListener):
    """Writes down what one member (a consumer of kclient, of whatever face) owns, whenever that has changed."""

    def __init__(self, consumer: Any, recorder: Recorder, p: int) -> None:
        self._consumer = consumer
        self._recorder = recorder
        self._p = p
        self._last: tuple[int, list[str]] = (-1, [])

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> Any:
        """Look at once: the next rebalance may come before the poll ends."""
        self.look()

    def look(self) -> None:
        """Note what is owned now, if it has changed."""
        before = self._consumer.group_metadata()
        keys = sorted(f"{tp.topic}-{tp.partition}" for tp in self._consumer.assignment())
        generation, member = self._consumer.group_metadata()[1:3]
        if generation < 0 or before.generation_id != generation or self._last == (generation, keys):
            return
        self._last = (generation, keys)
        what = {"group": GROUP, "generation": generation, "member": member, "keys": keys}
        self._recorder.event(self._p, "ok", "assigned", what)
