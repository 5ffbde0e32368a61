"""A worker in a consumer group: polls what it is given, commits what it polled, asks what is committed when given more.

What librdkafka reports as an error may have happened all the same (it retries by itself), so no commit certainly fails.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.chaos.client import split_key
from tests.chaos.client_thread import ClientThread
from tests.chaos.group_metadata import generation_and_member
from tests.chaos.recorder import Recorder
from tests.chaos.worker import LIFETIME

GROUP = "chaos-group"
SESSION_TIMEOUT_MS = 6000


class GroupWorker(ClientThread):
    """One member after another, each a process of the history."""

    def __init__(
        self, name: str, bootstrap: str, keys: Sequence[str], recorder: Recorder, *, seed: int
    ) -> None:
        super().__init__(name, recorder, seed=seed)
        self._servers = bootstrap
        self._topics = sorted({split_key(key)[0] for key in keys})

    def run_client(self) -> None:
        """Be a member, then crash or leave."""
        member = _Member(self._recorder, self._recorder.new_process())
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "check.crcs": True,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": 1000,
                "socket.timeout.ms": 5000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._recorder.event(member.p, "ok", "subscribe", self._topics)
        consumer.subscribe(self._topics, on_assign=member.assigned)
        until = time.monotonic() + 5 + self._chance.expovariate(3 / LIFETIME)
        try:
            while not self._ending.is_set() and time.monotonic() < until:
                member.poll(consumer)
                if self._chance.random() < 0.3:
                    member.commit(consumer)
        finally:
            consumer.close()
            self._recorder.event(member.p, "info", "crash")


class _Member:
    """What one process does, written down."""

    def __init__(self, recorder: Recorder, p: int) -> None:
        self.p = p
        self._recorder = recorder
        self._moved: set[str] = set()
        self._polled: dict[str, int] = {}

    def assigned(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        """Handle being given partitions: ask where the group is, once that can be known."""
        keys = {f"{one.topic}-{one.partition}" for one in partitions}
        self._moved |= keys
        self._polled.clear()
        if not partitions:
            return
        generation, member = generation_and_member(consumer.consumer_group_metadata())
        if generation >= 0 and member:  # neither was lost since
            # The protocol is an eager one: these are all that it owns.
            what = {
                "group": GROUP,
                "generation": generation,
                "member": member,
                "keys": sorted(keys),
            }
            self._recorder.event(self.p, "ok", "assigned", what)
        request = {"group": GROUP, "offsets": dict.fromkeys(sorted(keys), 0)}
        begun = self._recorder.event(self.p, "invoke", "committed", request)
        try:
            found = consumer.committed(partitions, timeout=5)
        except KafkaException as error:
            self._recorder.event(self.p, "fail", "committed", None, err=str(error), op=begun.i)
            return
        offsets = {f"{one.topic}-{one.partition}": max(0, one.offset) for one in found}
        answer = {"group": GROUP, "offsets": offsets}
        kind = "fail" if any(one.error for one in found) else "ok"
        self._recorder.event(self.p, kind, "committed", answer, op=begun.i)

    def poll(self, consumer: Consumer) -> None:
        """Take what there is."""
        found: dict[str, list[tuple[int, int]]] = {}
        for message in consumer.consume(200, 0.2):
            if message.error() is None:
                key = f"{message.topic()}-{message.partition()}"
                offset = message.offset()
                assert offset is not None
                found.setdefault(key, []).append((offset, int(message.value() or b"-1")))
        if found:
            self._recorder.event(
                self.p, "ok", "poll", [["poll", found]],
                rebalanced=sorted(self._moved), catching_up=True,
            )  # fmt: skip
            self._polled.update({key: records[-1][0] + 1 for key, records in found.items()})
            self._moved -= found.keys()

    def commit(self, consumer: Consumer) -> None:
        """Commit what was polled, and wait for the answer."""
        if not self._polled:
            return
        offsets = dict(self._polled)
        what = {"group": GROUP, "offsets": offsets}
        begun = self._recorder.event(self.p, "invoke", "commit", what)
        wanted = [TopicPartition(*split_key(key), offset) for key, offset in offsets.items()]
        err = None
        try:
            answers = consumer.commit(offsets=wanted, asynchronous=False) or []
            err = next((str(one.error) for one in answers if one.error), None)
        except KafkaException as error:
            err = str(error)
        self._recorder.event(
            self.p, "ok" if err is None else "info", "commit", what, err=err, op=begun.i
        )
