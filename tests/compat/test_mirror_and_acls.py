"""kmirror beside Apache Kafka's AclAuthorizer: what it may not do is named, and what it does not copy, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
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


TRUSTED = {"super.users": "User:ANONYMOUS"}
"""For the target: kmirror writes there, whatever the ACLs of its topics are."""


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
    assert "ACLs: the target has no authorizer; the source has 4 about 2 of 3 mirrored" in output
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


def of_topics(client: AdminClient) -> set[tuple[str, str, str, str]]:
    """Return topic, principal, operation and permission of every ACL about topics."""
    every = AclBindingFilter(
        ResourceType.TOPIC,
        None,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    found = client.describe_acls(every).result(20)
    assert all(each.resource_pattern_type is ResourcePatternType.LITERAL for each in found)
    return {
        (each.name, each.principal, each.operation.name, each.permission_type.name)
        for each in found
    }


def test_acls_about_reading_are_copied_to_a_target_with_an_authorizer(
    apache: ApacheKafka, tmp_path: Path, zookeeper_connect: str
) -> None:
    source = AdminClient({"bootstrap.servers": apache.bootstrap, "log_level": 0})
    for future in source.create_topics([NewTopic(n, 1, 1) for n in ("a1", "a2", "b")]).values():
        future.result(20)
    write(apache.bootstrap, "a1", "a2", "b")
    mine = [
        allowed("*", AclOperation.READ),
        allowed("*", AclOperation.DESCRIBE_CONFIGS),
        allowed("a1", AclOperation.ALL, "User:alice"),
        allowed("a1", AclOperation.WRITE, "User:writer"),
        AclBinding(
            ResourceType.TOPIC,
            "a",
            ResourcePatternType.PREFIXED,
            "User:eve",
            "*",
            AclOperation.READ,
            AclPermissionType.DENY,
        ),
        allowed("elsewhere", AclOperation.READ, "User:bob"),
    ]
    for done in source.create_acls(mine).values():
        done.result(20)
    settings = {
        "target.offsets": "renumber",
        "topics": "a1|a2",
        "sync.topic.acls.enabled": "true",
    }
    chroot = f"{zookeeper_connect}/target"
    with running_kafka(tmp_path / "target", chroot, AUTHORIZED | TRUSTED) as there:
        one = Mirror(tmp_path / "one", apache, there, settings)
        assert one.run_once(90) == 0, one.output
        assert "ACLs: 7 were added at the target: " in one.output
        target = AdminClient({"bootstrap.servers": there.bootstrap, "log_level": 0})
        expected = {("a1", "User:alice", "READ", "ALLOW")}
        for topic in ("a1", "a2"):
            expected |= {
                (topic, "User:ANONYMOUS", "READ", "ALLOW"),
                (topic, "User:ANONYMOUS", "DESCRIBE_CONFIGS", "ALLOW"),
                (topic, "User:eve", "READ", "DENY"),
            }
        assert of_topics(target) == expected

        for done in target.create_acls([allowed("a2", AclOperation.READ, "User:carol")]).values():
            done.result(20)
        again = Mirror(tmp_path / "again", apache, there, settings)
        assert again.run_once(90) == 0, again.output
        assert "were added" not in again.output
        assert (
            "1 of the target are not those of the source, and stay: a2: allow READ" in again.output
        )
