"""kill -9 of a broker during produce: after the restart every acknowledged record is there, in order.

One scene for all tests of this file: three brokers, topics of one replica on the first of them, a writer for each
client and kind of acknowledgement, and three kills in mid-stream. Then the log is read back by another client.
A client that retries may leave copies without an acknowledgement, unless it is idempotent: then the broker detects
duplicates, also after the kill. librdkafka that is not idempotent may also change the order (`LibrdkafkaWriter`). The
writer that never retries shows that the broker itself makes no copies.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kit.brokers import Cluster
from tests.kit.replicated import read_all
from tests.kit.writers import KclientWriter, LibrdkafkaWriter, RawWriter, Writer
from tests.kit.zookeeper import Ensemble

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

KILLS = 3
PARTITIONS = 2
VICTIM = 1
BETWEEN_KILLS = 100
"""Numbers that every writer has to have acknowledged before the next kill."""

WRITERS = [
    *(f"raw-acks-{acks}" for acks in ("1", "all")),
    *(
        f"{client}-acks-{acks}"
        for client in ("kclient", "librdkafka")
        for acks in ("1", "all", "all-idempotent")
    ),
]


def writer(name: str, cluster: Cluster) -> Writer:
    """Make the writer of that name; it is also the name of its topic."""
    client, _, acks, *idempotent = name.split("-")
    if client == "raw":
        return RawWriter(name, PARTITIONS, acks, cluster[VICTIM].address)
    made = KclientWriter if client == "kclient" else LibrdkafkaWriter
    return made(name, PARTITIONS, acks, cluster.bootstrap, idempotence=bool(idempotent))


@dataclass
class Outcome:
    """What one writer sent, and what its partitions hold: numbers by offset."""

    writer: Writer
    logs: dict[int, dict[int, int]]


def until_all_progress(writers: list[Writer], numbers: int) -> None:
    """Wait until every writer has that many more acknowledgements."""
    goals = {writer: writer.count + numbers for writer in writers}
    deadline = time.monotonic() + 40
    while behind := [writer for writer, goal in goals.items() if writer.count < goal]:
        for one in behind:
            assert one.is_alive(), f"{one.topic} ended: {one.problem!r}"
        assert time.monotonic() < deadline, f"no progress: {[w.topic for w in behind]}"
        time.sleep(0.01)


def read_back(bootstrap: str, topic: str) -> dict[int, dict[int, int]]:
    """Return what each partition holds, up to its high watermark."""
    logs = read_all(bootstrap, topic, PARTITIONS)
    return {index: {at: int(value) for at, value in log.items()} for index, log in logs.items()}


@pytest.fixture(scope="module")
def outcomes(
    zookeeper_server: Ensemble, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Outcome]]:
    """Play the scene: write, kill three times, finish, read back."""
    directory: Path = tmp_path_factory.mktemp("survival")
    cluster = Cluster(directory, f"{zookeeper_server.connect}/{directory.name}", 3)
    try:
        cluster.start()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        assignment = [[VICTIM]] * PARTITIONS
        placed = [NewTopic(n, PARTITIONS, replica_assignment=assignment) for n in WRITERS]
        for future in admin.create_topics(placed).values():
            future.result(20)
        writers = [writer(name, cluster) for name in WRITERS]
        for one in writers:
            one.start()
        for _ in range(KILLS):
            until_all_progress(writers, BETWEEN_KILLS)
            cluster.restart(VICTIM)
        until_all_progress(writers, BETWEEN_KILLS)
        for one in writers:
            one.finish()
        yield {one.topic: Outcome(one, read_back(cluster.bootstrap, one.topic)) for one in writers}
    finally:
        cluster.stop_all()
    assert not cluster.complaints()


@pytest.mark.parametrize("name", WRITERS)
def test_every_acknowledged_record_is_there_once_per_acknowledgement_and_in_order(
    outcomes: dict[str, Outcome], name: str
) -> None:
    outcome = outcomes[name]
    for index, log in outcome.logs.items():
        acknowledged = outcome.writer.acknowledged[index]
        assert len(acknowledged) > KILLS * BETWEEN_KILLS // PARTITIONS // 2
        wrong = [a for a in acknowledged if log.get(a.offset) != a.number]
        assert not wrong, f"acknowledged, but not at their offsets in {name}-{index}: {wrong[:5]}"
        assert len({a.offset for a in acknowledged}) == len(acknowledged), (
            "one offset acknowledged twice"
        )
        assert len({a.number for a in acknowledged}) == len(acknowledged), (
            "one number acknowledged twice"
        )
        in_log_order = [a.number for a in sorted(acknowledged, key=lambda a: a.offset)]
        places = {a.number: a.offset for a in acknowledged}
        assert not outcome.writer.keeps_order or in_log_order == sorted(in_log_order), (
            f"{name}-{index} is out of order: "
            f"{[(a, b, places[a], places[b]) for a, b in pairwise(in_log_order) if a > b][:5]} "
            f"in {sorted(log.items())[:60]}"
        )


@pytest.mark.parametrize("name", WRITERS)
def test_a_log_has_no_hole_and_nothing_that_was_not_written(
    outcomes: dict[str, Outcome], name: str
) -> None:
    outcome = outcomes[name]
    for index, log in outcome.logs.items():
        assert sorted(log) == list(range(len(log)))
        written = range(index, outcome.writer.sent, PARTITIONS)
        assert all(number in written for number in log.values())


@pytest.mark.parametrize(
    "name", [name for name in WRITERS if name.startswith("raw") or name.endswith("idempotent")]
)
def test_what_is_never_repeated_or_recognised_is_stored_once(
    outcomes: dict[str, Outcome], name: str
) -> None:
    for log in outcomes[name].logs.values():
        copies = Counter(log.values())
        assert max(copies.values()) == 1
