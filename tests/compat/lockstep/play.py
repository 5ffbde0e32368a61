"""Two clusters with the same topics, records and transactional ids, and the same random requests to both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Any

from kclient import Producer
from kclient.wire.schema.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kclient.wire.schema.find_coordinator import FindCoordinatorRequest
from kclient.wire.schema.init_producer_id import InitProducerIdRequest
from kclient.wire.schema.metadata import MetadataRequest
from kclient.wire.versions import ApiKey
from tests.compat.lockstep.drawing import TOPICS_TIMEOUT_MS, Recipe, clients_apis, draw
from tests.compat.lockstep.known import KNOWN, Difference, differences
from tests.compat.lockstep.side import Side
from tests.kit.waiting import eventually

BROKER_SETTINGS = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.retention.ms": "-1",
    "log.cleaner.enable": "false",
    "log.segment.delete.delay.ms": "60000",
}
"""Of both brokers: nothing happens by the clock, and defaults that differ are set."""

PARTITIONS = {"a": 1, "b": 3, "c": 2, "d": 1, "e": 2}
RECORDS = {"a": 0, "b": 1, "c": 0}
"""The partition of a topic that has records: 12, with timestamps from 1000 on."""


@dataclass
class Outcome:
    """What a play has found."""

    compared: Counter[ApiKey] = field(default_factory=Counter)
    """Answers compared, of each API."""
    known: Counter[str] = field(default_factory=Counter)
    """Differences that are meant, by their reasons."""
    unknown: list[str] = field(default_factory=list)
    """All others, with their requests."""

    def take(self, place: str, api: ApiKey, recipe: Recipe, ours: Any, theirs: Any) -> None:
        """Compare two answers to *recipe*; *place* is its number and version."""
        self.compared[api] += 1
        for found in differences(api.name, ours, theirs):
            why = reason(found)
            if why is not None:
                self.known[why] += 1
                continue
            values = f"{found.path}: {found.ours!r:.300}, Kafka {found.theirs!r:.300}"
            self.unknown.append(f"{values}\n    {place}: {recipe!s:.900}")


def prepared(bootstrap: str) -> Side:
    """Return the cluster at *bootstrap* with the topics, records and transactional ids that all plays begin with."""
    side = Side(bootstrap)
    topics = []
    for name, count in PARTITIONS.items():
        configs = [CreatableTopicConfig("cleanup.policy", "compact")] if name == "c" else []
        values = {"name": name, "num_partitions": count, "replication_factor": 1}
        topics.append(Recipe(CreatableTopic, {**values, "configs": configs}))
    create = Recipe(CreateTopicsRequest, {"topics": topics, "timeout_ms": TOPICS_TIMEOUT_MS})
    made = side.ask(ApiKey.CREATE_TOPICS, 7, create)
    assert {topic["error_code"] for topic in made["topics"]} == {"NONE"}, made
    everything = Recipe(MetadataRequest, {"topics": None})

    def led() -> bool:
        found = side.ask(ApiKey.METADATA, 12, everything)["topics"]
        leaders = [p["leader_id"] for topic in found for p in topic["partitions"]]
        return len(leaders) == sum(PARTITIONS.values()) and set(leaders) == {1}

    eventually("leaders of all partitions", led, 60)
    with Producer({"bootstrap.servers": bootstrap, "enable.idempotence": False}) as producer:
        for topic, partition in RECORDS.items():
            for n in range(12):
                value, key = b"v%d" % n, b"k%d" % (n % 3)
                producer.send(topic, value, key=key, partition=partition, timestamp_ms=1000 + n)
            producer.flush()
    for kind, coordinated in enumerate(("g1", "t1")):  # makes the topics of the coordinators
        find = Recipe(FindCoordinatorRequest, {"key": coordinated, "key_type": kind})
        assert side.ask(ApiKey.FIND_COORDINATOR, 3, find)["error_code"] == "NONE"
    # Kafka's first producer id is 0, which is also that of no producer.
    for name in (None, "t1", "t2"):
        init = {"transactional_id": name, "transaction_timeout_ms": 60_000}
        recipe = Recipe(InitProducerIdRequest, init)

        def initialized(recipe: Recipe = recipe) -> bool:
            return bool(side.ask(ApiKey.INIT_PRODUCER_ID, 4, recipe)["error_code"] == "NONE")

        eventually("a transaction coordinator", initialized, 60)
    return side


def play(
    bootstraps: tuple[str, str], seed: int, requests: int, apis: Sequence[ApiKey] = ()
) -> Outcome:
    """Send *requests* random requests to both clusters, ours first, and compare the answers."""
    sides = [prepared(bootstrap) for bootstrap in bootstraps]
    rng, outcome = Random(seed), Outcome()
    chosen = apis or clients_apis()
    with ThreadPoolExecutor(len(sides)) as both:
        for number in range(requests):
            api = rng.choice(chosen)
            version, recipe = draw(rng, api)
            # At the same time: members wait for others in both.
            asked = [both.submit(side.ask, api, version, recipe) for side in sides]
            ours, theirs = (each.result() for each in asked)
            outcome.take(f"request {number}, v{version}", api, recipe, ours, theirs)
    for side in sides:
        side.close()
    return outcome


def reason(found: Difference) -> str | None:
    """Return why *found* is meant; None if it is not."""
    return next((known.why for known in KNOWN if known.explains(found)), None)
