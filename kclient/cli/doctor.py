"""`kclient doctor`: looks for what is wrong with a cluster, or with the way to it, from the client's first step on."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any

import click

from kclient.cli import colour
from kclient.cli import doctor_checks as checks
from kclient.cli.commands import with_settings
from kclient.cli.doctor_checks import Finding, GroupLag, Skew, Status, Tried
from kclient.cli.exit_codes import UNHEALTHY, UNREACHABLE
from kclient.cli.help import Command
from kclient.cli.output import show
from kclient.cli.run import run
from kclient.cli.settings import Settings, milliseconds
from kclient.errors import Address, Cause, ConnectError, KafkaError
from kclient.types import TopicPartition

_COLOURS = {
    Status.OK: colour.good,
    Status.WARNING: colour.warning,
    Status.FAILED: colour.bad,
    Status.SKIPPED: colour.warning,
}
_ATTEMPT_S = 5.0
"""Seconds for each attempt at one address; less with a shorter -m."""
_PROBE_S = 2.0
_IBP = "inter.broker.protocol.version"
_COLUMNS = ("check", "status", "message", "next_step")
_WITH_METADATA = (
    *("clock", "controller", "brokers", "partitions", "min-isr", "internal"),
    *("groups", "disks", "versions"),
)
"""The checks that need brokers at their advertised addresses."""


@click.command(
    cls=Command,
    examples=(
        "kclient doctor",
        "kclient doctor -b kafka-1:9092 --write",
        "kclient doctor -J",
    ),
)
@click.option(
    "--write",
    is_flag=True,
    help="Create a topic, measure the clock of each broker with its records, delete it.",
)
@click.option(
    "--max-lag", type=click.IntRange(0), default=10_000, show_default=True, metavar="N",
    help="Warn about a group with members and a lag above N records.",
)  # fmt: skip
@with_settings
def doctor(settings: Settings, write: bool, max_lag: int) -> None:
    """Check the way to a cluster and its state; each problem has its cause and the next step.

    The checks, in this order: bootstrap servers resolve, accept connections, serve Kafka; advertised listeners are
    reachable from here; clocks; controller; brokers; partitions; min ISR; internal topics; groups; disks; versions.
    Exit code 3 if no broker can be used from here, 4 if a check failed, 0 otherwise, also with warnings.
    """

    async def main(reactor: Any) -> int:
        report = _Report(settings)
        code = await _Doctor(settings, reactor, report, max_lag=max_lag, write=write).run()
        report.end()
        return code or (UNHEALTHY if report.has_failed else 0)

    run(main)


class _Report:
    """Shows findings: lines as they come, rows at the end. With -q no lines of checks that passed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._findings: list[Finding] = []

    def add(self, *findings: Finding) -> None:
        """Take the next findings."""
        self._findings += findings
        for each in findings:
            is_shown = not self._settings.quiet or each.status is not Status.OK
            if self._settings.is_text and is_shown:
                word, space, rest = each.line.partition(" ")
                click.echo(f"{_COLOURS[each.status](word)}{space}{rest}")

    @property
    def has_failed(self) -> bool:
        """Whether a check failed."""
        return any(each.status is Status.FAILED for each in self._findings)

    def end(self) -> None:
        """Show the rows, or the number of problems."""
        if not self._settings.is_text:
            show([each.row for each in self._findings], _COLUMNS, self._settings.format)
            return
        counts = {
            status: sum(each.status is status for each in self._findings) for status in Status
        }
        self._settings.note(
            ", ".join(f"{count} {status.value}" for status, count in counts.items() if count)
        )


class _Doctor:
    """Collects what the checks need, in their order."""

    def __init__(
        self, settings: Settings, reactor: Any, report: _Report, *, max_lag: int, write: bool
    ) -> None:
        self._settings = settings
        self._reactor = reactor
        self._report = report
        self._max_lag = max_lag
        self._write = write
        self._attempt_s = min(_ATTEMPT_S, settings.timeout)

    async def run(self) -> int:
        """Make all checks; return UNREACHABLE if no broker can be used, else 0."""
        from kclient.admin.client import AdminClient
        from kclient.config import AdminConfig
        from kclient.net.waiting import all_of

        values = self._settings.client(AdminConfig)
        addresses = AdminConfig.load(values).addresses
        tried = await all_of(map(self._try, addresses))
        context = self._settings.context
        first = [checks.check_names(tried, None if context is None else context.name)]
        for name, check, wanted in (
            ("connection", checks.check_connections, [each for each in tried if each.ips]),
            ("protocol", checks.check_protocol, [each for each in tried if each.connected]),
        ):
            first += [check(wanted)] if wanted else checks.skipped([name], "no address is left")
        self._report.add(*first)
        if not any(each.is_usable for each in tried):
            why = "no bootstrap server can be used"
            self._report.add(*checks.skipped(["listeners", *_WITH_METADATA], why))
            return UNREACHABLE
        values["bootstrap.servers"] = ",".join(
            str(each.address) for each in tried if each.is_usable
        )
        async with AdminClient(values, reactor=self._reactor) as admin:
            return await self._cluster(admin, addresses)

    async def _cluster(self, admin: Any, bootstrap: list[Address]) -> int:
        from kclient.net.waiting import settled_by

        metadata = admin.cluster.metadata
        found: Any = await settled_by(
            sorted(metadata.brokers), lambda node: self._try(metadata.brokers[node].address)
        )
        self._report.add(checks.check_listeners(found, metadata.cluster_id, bootstrap))
        if not any(each.is_usable for each in found.values()):
            why = "no broker is reachable at its advertised listener"
            self._report.add(*checks.skipped(_WITH_METADATA, why))
            return UNREACHABLE
        try:
            health = checks.check_health(await admin.describe_health())
        except KafkaError as problem:
            names = ("controller", "brokers", "partitions", "min-isr")
            health = [_unchecked(name, problem) for name in names]
        await self._check("clock", self._clocks(admin))
        self._report.add(*health)
        await self._check("internal", self._internal_topics(admin))
        await self._check("groups", self._groups(admin))
        await self._check("disks", self._disks(admin))
        await self._check("versions", self._versions(admin, found))
        return 0

    async def _check(self, name: str, making: Awaitable[Finding]) -> None:
        try:
            self._report.add(await making)
        except KafkaError as problem:
            self._report.add(_unchecked(name, problem))

    # --- addresses

    async def _try(self, address: Address) -> Tried:
        """Resolve *address*, connect to it, and request what a client requests first."""
        from kclient.net.connection import connect
        from kclient.net.dial import resolve
        from kclient.net.waiting import within
        from kclient.wire.schema.metadata import MetadataRequest
        from kclient.wire.versions import ApiKey

        seconds = self._attempt_s
        late = ConnectError(address, Cause.DNS, f"no answer in {seconds:g} s")
        try:
            ips = await within(
                self._reactor, resolve(self._reactor, address), seconds, lambda: late
            )
        except ConnectError as problem:
            return Tried(address, cause=problem.cause, detail=problem.detail)
        try:
            connection = await connect(
                self._reactor,
                address,
                client_id="kclient-cli",
                connect_timeout=seconds,
                request_timeout=seconds,
            )
        except ConnectError as problem:
            return await self._not_a_broker(address, tuple(ips), problem)
        try:
            request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
            answer = await connection.request(ApiKey.METADATA, None, request)
            cluster_id, refused = answer.cluster_id, ""
        except KafkaError as problem:
            cluster_id, refused = None, f"answers ApiVersions, but not Metadata: {problem}"
        finally:
            connection.close()
        apis = {key: (least, most) for key, (least, most) in connection.api_versions.items()}
        return Tried(address, tuple(ips), True, apis=apis, cluster_id=cluster_id, refused=refused)

    async def _not_a_broker(
        self, address: Address, ips: tuple[str, ...], problem: ConnectError
    ) -> Tried:
        from kclient.net.port_probe import probe_port

        kind = None
        if problem.cause in (Cause.CLOSED, Cause.NOT_KAFKA, Cause.TIMEOUT):
            seconds = min(_PROBE_S, self._attempt_s)
            for ip in ips:
                kind = await probe_port(self._reactor, ip, address.port, seconds)
                if kind is not None:
                    break
        return Tried(
            address, ips, kind is not None, problem.cause, detail=problem.detail, kind=kind
        )

    # --- clocks

    async def _clocks(self, admin: Any) -> Finding:
        metadata = admin.cluster.metadata
        places = [
            TopicPartition(topic.name, number)
            for topic in metadata.topics.values()
            for number, partition in topic.partitions.items()
            if not topic.is_internal and partition.leader >= 0
        ]
        newest: dict[TopicPartition, int] = {}
        if places:
            answers = await admin.list_offsets(
                dict.fromkeys(places, "max_timestamp"), raise_errors=False
            )
            # Brokers before Kafka 3.0 do not have it (KIP-734); other errors appear in other checks.
            newest = {
                tp: at.timestamp for tp, at in answers.items() if not isinstance(at, KafkaError)
            }
        skews = await self._skews(admin) if self._write else None
        return checks.check_clocks(newest, skews, int(time.time() * 1000))

    async def _skews(self, admin: Any) -> Mapping[int, Skew]:
        """Compare the clock of each broker with this machine's, by records that the broker stamps."""
        from kclient.config import ProducerConfig
        from kclient.producer.producer import Producer
        from kclient.types import NewTopic

        nodes = sorted(admin.cluster.metadata.brokers)
        name = f"kclient-doctor-{secrets.token_hex(4)}"
        await admin.create_topics(
            NewTopic(
                name,
                replica_assignment={number: [node] for number, node in enumerate(nodes)},
                configs={
                    "message.timestamp.type": "LogAppendTime",
                    "min.insync.replicas": "1",
                    "retention.ms": "3600000",
                },
            )
        )
        skews = {}
        try:
            await admin.wait_for_topics([name])
            values = self._settings.client(ProducerConfig)
            values.update({"acks": "1", "linger.ms": 0})
            values["delivery.timeout.ms"] = milliseconds(self._settings.timeout)
            producer: Producer[Any, Any] = Producer(values, reactor=self._reactor)
            async with producer:
                for number, node in enumerate(nodes):
                    looks = []
                    for _ in range(5):
                        before = time.time()
                        sent = await producer.send(name, b"kclient doctor", partition=number)
                        after = time.time()
                        looks.append(_skew(before, sent.timestamp / 1000, after))
                    skews[node] = min(looks, key=lambda each: each.within)
        finally:
            await admin.delete_topics([name])
        return skews

    # --- topics, groups, disks, versions

    async def _internal_topics(self, admin: Any) -> Finding:
        from kclient.admin.configs import ConfigResource, ResourceType

        metadata = admin.cluster.metadata
        wanted = [n for n in (checks.OFFSETS, checks.TRANSACTIONS) if n in metadata.topics]
        answers = {}
        if wanted:
            answers = await admin.describe_configs(
                [ConfigResource(ResourceType.TOPIC, name) for name in wanted],
                names=["cleanup.policy"],
            )
        policies = {
            resource.name: found["cleanup.policy"].value if "cleanup.policy" in found else None
            for resource, found in answers.items()
        }
        return checks.check_internal_topics(metadata.topics, policies, len(metadata.brokers))

    async def _groups(self, admin: Any) -> Finding:
        from kclient.net.waiting import settled_by

        names = [each.group_id for each in await admin.list_groups()]
        described = await admin.describe_groups(names, raise_errors=False) if names else {}
        # Committed offsets first, log ends second: in the other order a lag could be negative.
        committed: dict[str, Any] = await settled_by(names, admin.list_group_offsets)
        errors = [
            f"{name}: {problem}"
            for name in names
            for problem in _errors([described[name], committed[name]])[:1]
        ]
        good = {name: committed[name] for name in names if isinstance(committed[name], dict)}
        places = {tp for offsets in good.values() for tp in offsets}
        ends: dict[TopicPartition, int] = {}
        starts: dict[TopicPartition, int] = {}
        if places:
            starts = await _offsets(admin, places, "earliest")
            ends = await _offsets(admin, places, "latest")
        groups = [
            GroupLag(
                name,
                described[name].state,
                len(described[name].members),
                # A group may have offsets of deleted topics: no lag is known there.
                sum(max(0, ends.get(tp, at.offset) - at.offset) for tp, at in offsets.items()),
                tuple(tp for tp, at in offsets.items() if at.offset < starts.get(tp, 0)),
            )
            for name, offsets in good.items()
            if not isinstance(described[name], KafkaError)
        ]
        return checks.check_groups(groups, errors, self._max_lag)

    async def _disks(self, admin: Any) -> Finding:
        found = await admin.describe_log_dirs(tps=[], raise_errors=False)
        errors = [
            f"broker {node} does not report its directories: {each}"
            for node, each in found.items()
            if isinstance(each, KafkaError)
        ]
        good = {n: list(e.values()) for n, e in found.items() if not isinstance(e, KafkaError)}
        return checks.check_disks(good, errors)

    async def _versions(self, admin: Any, advertised: Mapping[int, Tried]) -> Finding:
        from kclient.admin.configs import ConfigResource, ResourceType

        apis = {node: each.apis for node, each in advertised.items() if each.apis is not None}
        resources = [ConfigResource(ResourceType.BROKER, str(node)) for node in apis]
        answers = await admin.describe_configs(resources, names=[_IBP], raise_errors=False)
        protocols = {
            int(resource.name): found[_IBP].value
            for resource, found in answers.items()
            if not isinstance(found, KafkaError) and _IBP in found
        }
        return checks.check_versions(apis, protocols)


def _skew(before: float, stamped: float, after: float) -> Skew:
    """Return the skew of a clock that read *stamped* (in steps of 1 ms) between *before* and *after*, in seconds."""
    return Skew(stamped - (before + after) / 2, (after - before) / 2 + 0.001)


async def _offsets(
    admin: Any, places: Iterable[TopicPartition], which: str
) -> dict[TopicPartition, int]:
    found = await admin.list_offsets(dict.fromkeys(places, which), timeout=5.0, raise_errors=False)
    return {tp: each.offset for tp, each in found.items() if not isinstance(each, KafkaError)}


def _errors(answers: Iterable[Any]) -> list[KafkaError]:
    return [each for each in answers if isinstance(each, KafkaError)]


def _unchecked(name: str, problem: KafkaError) -> Finding:
    return Finding(
        name, Status.FAILED, f"cannot be checked: {problem}", "repeat when all brokers answer; -m SECONDS waits longer"
    )  # fmt: skip
