"""kmirror beside Apache Kafka's AclAuthorizer: what it may not do is named, and what it does not copy, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tests.kit.apache_kafka import ApacheKafka, running_kafka, with_kafka
from tests.kit.brokers import MakeCluster
from tests.kit.mirrors import Mirror, stored

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    pytest.mark.timeout(240),  # a JVM of a whole Kafka has to start
    with_kafka,
]

AUTHORIZED = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
"""A topic with an ACL is open to no one that the ACL does not name."""


@pytest.fixture
def apache(tmp_path: Path, zookeeper_connect: str) -> Iterator[ApacheKafka]:
    with running_kafka(tmp_path / "apache", f"{zookeeper_connect}/apache", AUTHORIZED) as kafka:
        yield kafka


def allowed(topic: str, operation: AclOperation, to: str = "User:ANONYMOUS") -> AclBinding:
    allow = AclPermissionType.ALLOW
    literal = ResourcePatternType.LITERAL
    return AclBinding(ResourceType.TOPIC, topic, literal, to, "*", operation, allow)


def write(bootstrap: str, *topics: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for topic in topics:
        producer.produce(topic, b"1")
    assert producer.flush(20) == 0


def test_what_the_source_does_not_allow_and_what_is_not_copied_is_named(
    apache: ApacheKafka, broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    west = broker_clusters(1)
    client = AdminClient({"bootstrap.servers": apache.bootstrap, "log_level": 0})
    names = ("open", "orders", "unreadable", "noconfigs", "hidden")
    for future in client.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        future.result(20)
    write(apache.bootstrap, *names)
    first = Mirror(tmp_path / "first", apache, west, {"topics": "open"})
    assert first.run_once(90) == 0, first.output
    assert "ACLs" not in first.output, "the source has none yet"

    read, describe = AclOperation.READ, AclOperation.DESCRIBE
    configs = AclOperation.DESCRIBE_CONFIGS
    bindings = [
        *(allowed("orders", operation) for operation in (read, configs)),
        *(allowed("unreadable", operation) for operation in (describe, configs)),
        allowed("noconfigs", read),
        allowed("hidden", read, "User:bob"),
    ]
    for done in client.create_acls(bindings).values():
        done.result(20)
    settings = {"topics": "|".join(names), "sync.topic.acls.enabled": "true"}
    second = Mirror(tmp_path / "second", apache, west, settings)
    assert second.run_once(90) == 5, second.output
    output = second.output
    assert "sync.topic.acls.enabled: kmirror copies no ACLs" in output
    assert "and kmirror copies none: " in output
    assert "orders: allow READ to User:ANONYMOUS from *" in output
    assert "1 topics have ACLs and are not listed by the source: hidden" in output
    assert "topic noconfigs: its configs cannot be read at the source" in output
    assert "unreadable-0: " in output
    for topic in ("open", "orders"):
        assert len(stored(west, topic)) == 1
    for topic in ("unreadable", "noconfigs", "hidden"):
        assert stored(west, topic) == []

    third = Mirror(
        tmp_path / "third", apache, west, settings | {"sync.topic.acls.enabled": "false"}
    )
    assert third.run_once(90) == 5, third.output
    assert "ACLs" not in third.output
