"""The checks of `kclient doctor`: a finding for each fault, with its cause and next step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactorClock, StringTransport

from kclient.admin.health import Health
from kclient.admin.log_dirs import LogDir
from kclient.cli import doctor_checks as checks
from kclient.cli.doctor_checks import Finding, GroupLag, Skew, Status, Tried
from kclient.errors import Address, Cause, KafkaError
from kclient.net.metadata import PartitionMetadata, TopicMetadata
from kclient.net.port_kinds import PortKind, kind_of
from kclient.net.port_probe import probe_port
from kclient.types import TopicPartition

OK, WARNING, FAILED, SKIPPED = Status.OK, Status.WARNING, Status.FAILED, Status.SKIPPED
APIS = {0: (3, 11), 18: (0, 3)}
ORDERS = TopicPartition("orders", 0)


def broker(host: str = "kafka-1", port: int = 9092, **changes: Any) -> Tried:
    usable = Tried(Address(host, port), ("10.0.0.1",), True, apis=APIS, cluster_id="ours")
    return replace(usable, **changes)


def no_broker(host: str = "kafka-1", **changes: Any) -> Tried:
    return replace(Tried(Address(host, 9092), ("10.0.0.1",)), **changes)


# --- ports


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ([b"\x16\x03\x03\x00\x7a", b"\x15\x03\x01\x00\x02", b""], PortKind.TLS),
        ([b"HTTP/1.1 400 Bad Request", b"HTTP/1.0 200 OK", b""], PortKind.HTTP),
        ([b"", b"", b"Zookeeper version: 3.9.4"], PortKind.ZOOKEEPER),
        ([b"", b"", b"srvr is not executed because it is not in the whitelist."], PortKind.ZOOKEEPER),
        ([b"SSH-2.0-OpenSSH_9.2", b"SSH-2.0", b"SSH-2.0"], PortKind.SSH),
        ([b"-ERR unknown command", b"", b""], PortKind.OTHER),
        ([b"", b""], PortKind.SILENT),
    ],
)  # fmt: skip
def test_a_port_is_recognized_by_its_answers(answers: list[bytes], kind: PortKind) -> None:
    assert kind_of(answers) is kind


class Port:
    """A server in memory: what it received on each connection, in order, and their protocols."""

    def __init__(self) -> None:
        self.reactor = MemoryReactorClock()
        self.found: Deferred[PortKind | None] = Deferred.fromCoroutine(
            probe_port(self.reactor, "10.0.0.1", 9092, 2.0)
        )
        self.factories = [client[2] for client in self.reactor.tcpClients]

    def accept(self) -> list[tuple[Any, StringTransport]]:
        connections = []
        for factory in self.factories:
            protocol, transport = factory.buildProtocol(None), StringTransport()
            protocol.makeConnection(transport)
            connections.append((protocol, transport))
        return connections

    @property
    def kind(self) -> Any:
        return self.found.result


def test_a_port_is_asked_in_the_protocol_of_each_kind() -> None:
    port = Port()
    requests = [transport.value() for _, transport in port.accept()]
    assert [each[:4] for each in requests] == [
        b"\x16\x03\x01" + requests[0][3:4],
        b"GET ",
        b"srvr",
    ]


def test_an_answer_without_an_end_is_enough() -> None:
    port = Port()
    tls, http, zookeeper = port.accept()
    zookeeper[0].dataReceived(b"Zookeeper version: 3.9.4-" + b"x" * 60)
    assert zookeeper[1].disconnected
    for protocol, _ in (tls, http, zookeeper):
        protocol.connectionLost()
    assert port.kind is PortKind.ZOOKEEPER
    assert not port.reactor.getDelayedCalls()


def test_a_port_that_refuses_connections_has_no_kind() -> None:
    port = Port()
    for factory in port.factories:
        factory.clientConnectionFailed(None, None)
    assert port.kind is None


# --- the way to the cluster


@pytest.mark.parametrize(
    ("check", "tried", "status", "part"),
    [
        (checks.check_names, [broker()], OK, "kafka-1:9092 is 10.0.0.1"),
        (checks.check_names, [no_broker(ips=(), cause=Cause.DNS)], FAILED, "kafka-1:9092: name does not resolve"),
        (checks.check_names, [broker(), no_broker("b", ips=(), cause=Cause.DNS)], WARNING, "b:9092: name"),
        (checks.check_connections, [no_broker(cause=Cause.REFUSED)], FAILED, "Next: start the broker"),
        (checks.check_connections, [no_broker(cause=Cause.TIMEOUT)], FAILED, "firewalls"),
        (checks.check_connections, [broker(), no_broker(cause=Cause.REFUSED)], WARNING, "refused"),
        (checks.check_protocol, [broker()], OK, "with 2 APIs"),
        (checks.check_protocol, [no_broker(connected=True, cause=Cause.CLOSED, kind=PortKind.TLS)], FAILED,
         "kafka-1:9092: a TLS port. Next: give the port of a PLAINTEXT listener"),
        (checks.check_protocol, [no_broker(connected=True, kind=PortKind.HTTP)], FAILED, "web server"),
        (checks.check_protocol, [no_broker(connected=True, kind=PortKind.ZOOKEEPER)], FAILED, "ZooKeeper"),
        (checks.check_protocol, [no_broker(connected=True, cause=Cause.TIMEOUT, kind=PortKind.SILENT)], FAILED,
         "the broker hangs"),
        (checks.check_protocol, [no_broker(connected=True, cause=Cause.CLOSED, kind=PortKind.SILENT)], FAILED,
         "max.connections"),
        (checks.check_protocol, [broker(refused="closed")], FAILED, "SASL"),
    ],
)  # fmt: skip
def test_the_way_to_the_cluster(check: Any, tried: list[Tried], status: Status, part: str) -> None:
    found: Finding = check(tried)
    assert (found.status, part in found.line) == (status, True), found.line


@pytest.mark.parametrize(
    ("advertised", "bootstrap", "status", "part"),
    [
        ({1: broker(), 2: broker("kafka-2")}, "lb", OK, "2 brokers at kafka-1:9092, kafka-2:9092"),
        ({1: broker(), 2: no_broker("inside", ips=(), cause=Cause.DNS)}, "lb", FAILED,
         "broker 2 advertises inside:9092: name does not resolve. Next: set advertised.listeners to what"),
        ({1: no_broker("localhost", cause=Cause.REFUSED)}, "lb", FAILED, "localhost is the client's own"),
        ({1: no_broker("localhost", cause=Cause.REFUSED)}, "localhost", FAILED, "start the broker"),
        ({1: no_broker(connected=True, cause=Cause.TIMEOUT, kind=PortKind.SILENT)}, "lb", FAILED, "stopped"),
        ({1: broker(cluster_id="theirs")}, "lb", FAILED, "where a broker of cluster theirs answers"),
        ({1: broker(), 2: broker()}, "lb", FAILED, "brokers 1, 2 advertise the same kafka-1:9092"),
        ({1: broker("127.0.0.1")}, "lb", WARNING, "on no other machine"),
        ({1: broker("127.0.0.1")}, "localhost", OK, "1 broker at"),
    ],
)  # fmt: skip
def test_advertised_listeners(
    advertised: dict[int, Tried], bootstrap: str, status: Status, part: str
) -> None:
    found = checks.check_listeners(advertised, "ours", [Address(bootstrap, 9092)])
    assert (found.status, part in found.line) == (status, True), found.line


# --- the cluster

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("newest_ms", "skews", "status", "part"),
    [
        ({ORDERS: NOW_MS}, None, OK, "--write measures"),
        ({ORDERS: NOW_MS + 30_000}, None, OK, "no record"),
        ({ORDERS: NOW_MS + 7_200_000}, None, WARNING, "orders-0 has a record from 2.0 h ahead"),
        ({}, {1: Skew(0.003, 0.001)}, OK, "1 broker at most 3 ms off (±1 ms)"),
        ({}, {1: Skew(0.0, 0.001), 2: Skew(-90.0, 0.1)}, WARNING, "broker 2 is 90.0 s behind"),
        ({}, {1: Skew(4.0, 3.5)}, OK, "(±3500 ms)"),
    ],
)
def test_clocks(
    newest_ms: dict[TopicPartition, int], skews: dict[int, Skew] | None, status: Status, part: str
) -> None:
    found = checks.check_clocks(newest_ms, skews, NOW_MS)
    assert (found.status, part in found.line) == (status, True), found.line


HEALTHY = Health(controller=1, expected=(1, 2), down=())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [OK, OK, OK, OK]),
        ({"controller": -1}, [FAILED, OK, OK, OK]),
        ({"down": (2,)}, [OK, FAILED, OK, OK]),
        ({"silent": (2,)}, [OK, FAILED, OK, OK]),
        ({"leaderless": (ORDERS,), "leaderless_isr": {ORDERS: (2,)}}, [OK, OK, FAILED, OK]),
        ({"under_replicated": (ORDERS,)}, [OK, OK, WARNING, OK]),
        ({"unchecked": ("reassignments are unknown",)}, [OK, OK, WARNING, OK]),
        ({"under_min_isr": (ORDERS,)}, [OK, OK, OK, FAILED]),
    ],
)
def test_health(changes: dict[str, Any], expected: list[Status]) -> None:
    found = checks.check_health(replace(HEALTHY, **changes))
    assert [each.check for each in found] == ["controller", "brokers", "partitions", "min-isr"]
    assert [each.status for each in found] == expected
    assert all(each.next_step for each in found if each.status is FAILED)


def topic(name: str, replicas: int) -> TopicMetadata:
    partition = PartitionMetadata(name, 0, 1, 0, tuple(range(replicas)), tuple(range(replicas)))
    return TopicMetadata(name, UUID(int=1), True, {0: partition})


def test_internal_topics() -> None:
    def found(replicas: int, policy: str | None, brokers: int) -> Finding:
        topics = {checks.OFFSETS: topic(checks.OFFSETS, replicas), "orders": topic("orders", 1)}
        return checks.check_internal_topics(topics, {checks.OFFSETS: policy}, brokers)

    assert checks.check_internal_topics({}, {}, 3).status is OK
    assert found(3, "compact", 3).text == "__consumer_offsets with 1 partition"
    assert found(1, "compact", 1).status is OK
    assert "has 1 replica: the loss of one broker" in found(1, "compact", 3).text
    assert "cleanup.policy=delete" in found(3, "delete", 3).line


@pytest.mark.parametrize(
    ("group", "status", "part"),
    [
        (GroupLag("g", "Stable", 2, 500), OK, "1 group, 500 records behind"),
        (GroupLag("g", "Stable", 2, 1001), WARNING, "g has a lag of 1001 with 2 members"),
        (GroupLag("g", "Empty", 0, 0), OK, "1 group"),
        (GroupLag("g", "Empty", 0, 7), WARNING, "g has no members and a lag of 7"),
        (GroupLag("g", "Dead", 0, 0), WARNING, "g is dead"),
        (GroupLag("g", "Stable", 1, 7, (ORDERS,)), WARNING, "below the log start of orders-0"),
    ],
)
def test_groups(group: GroupLag, status: Status, part: str) -> None:
    found = checks.check_groups([group], [], max_lag=1000)
    assert (found.status, part in found.line) == (status, True), found.line


def test_a_group_that_cannot_be_described_is_a_failure() -> None:
    assert checks.check_groups([], ["g: NOT_COORDINATOR"], 0).status is FAILED


@pytest.mark.parametrize(
    ("usable", "status", "part"),
    [(50, OK, "at least 50% free"), (10, WARNING, "10% free"), (4, FAILED, "4% free"), (-1, OK, "KIP-827")],
)  # fmt: skip
def test_free_space(usable: int, status: Status, part: str) -> None:
    found = checks.check_disks({1: [LogDir("/d", {}, 100, usable)]}, [])
    assert (found.status, part in found.line) == (status, True), found.line


def test_a_failed_log_directory_comes_before_brokers_without_an_answer() -> None:
    offline = LogDir("/d", {}, error=KafkaError("KAFKA_STORAGE_ERROR"))
    found = checks.check_disks({1: [offline]}, ["broker 2 does not report"])
    assert (found.status, len(found.items)) == (FAILED, 2)
    assert found.text.startswith("/d of broker 1 failed")
    assert "listeners" in checks.check_disks({}, ["broker 2 does not report"]).next_step


def test_versions() -> None:
    assert checks.check_versions({1: APIS, 2: APIS}, {1: "3.9", 2: "3.9"}).status is OK
    assert checks.check_versions({1: APIS, 2: APIS}, {1: "3.9"}).status is OK, (
        "an unknown one is no other"
    )
    assert checks.check_versions({1: APIS, 2: APIS}, {1: "3.9", 2: "3.8"}).status is WARNING
    assert checks.check_versions({1: APIS, 2: {0: (3, 9)}}, {}).status is WARNING
    assert checks.check_versions({}, {}).status is SKIPPED


def test_a_line_has_three_problems_and_a_row_has_all() -> None:
    found = checks.problems("brokers", FAILED, range(5), "look")
    assert found.line == "failed   brokers     0; 1; 2; and 2 more. Next: look"
    assert found.row["items"] == ["0", "1", "2", "3", "4"]
