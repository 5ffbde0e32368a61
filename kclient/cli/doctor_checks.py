"""The checks of `kclient doctor`: from what was found to one finding with its cause and next step. Pure.

In: addresses that were tried, `Health`, log directories, groups, timestamps   Out: a `Finding` for each check, in order
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kclient.admin.health import Health
from kclient.admin.log_dirs import LogDir
from kclient.errors import Address, Cause
from kclient.net.metadata import TopicMetadata
from kclient.net.port_kinds import PortKind
from kclient.types import TopicPartition

_SHOWN = 3
"""Problems in a line; JSON has all of them."""
_SKEW_S = 1.0
_FUTURE_S = 60.0
"""A record's timestamp may be that far ahead: producers and this machine need not agree exactly."""
_LITTLE, _TOO_LITTLE = 0.15, 0.05
"""Free shares of a log directory that are a warning and a failure."""
OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"


class Status(enum.Enum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: *text* is the state or the cause, *items* are all problems if there are several."""

    check: str
    status: Status
    text: str
    next_step: str = ""
    items: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The finding for people."""
        after = f". Next: {self.next_step}" if self.next_step else ""
        return f"{self.status.value:<8} {self.check:<11} {self.text}{after}"

    @property
    def row(self) -> dict[str, Any]:
        """The finding for programs."""
        return {
            "check": self.check,
            "status": self.status.value,
            "message": self.text,
            "next_step": self.next_step or None,
            "items": list(self.items),
        }


def passed(check: str, text: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(check, Status.OK, text)


def problems(
    check: str, status: Status, items: Iterable[object], next_step: str, *, before: str = ""
) -> Finding:
    """Return a finding with the first of *items*, and how many others there are."""
    texts = tuple(map(str, items))
    more = f"; and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return Finding(check, status, f"{before}{'; '.join(texts[:_SHOWN])}{more}", next_step, texts)


# --- addresses


@dataclass(frozen=True, slots=True)
class Tried:
    """What happened at one address; the first failed step has a value, later ones have none."""

    address: Address
    ips: tuple[str, ...] = ()
    connected: bool = False
    cause: Cause | None = None
    """Why the address cannot be used, None if it can."""
    detail: str = ""
    kind: PortKind | None = None
    """What listens there, if it is no broker."""
    apis: Mapping[int, tuple[int, int]] | None = None
    """The version ranges of the broker's APIs."""
    cluster_id: str | None = None
    refused: str = ""
    """Why the broker did not answer a Metadata request."""

    @property
    def is_usable(self) -> bool:
        """Whether a client can work with this address."""
        return self.apis is not None and not self.refused

    @property
    def problem(self) -> str:
        """The address with its problem, for a list."""
        if self.refused:
            return f"{self.address}: {self.refused}"
        if self.kind is not None and self.kind is not PortKind.SILENT:
            return f"{self.address}: {self.kind.value}"
        cause = "no problem" if self.cause is None else self.cause.value
        return f"{self.address}: {cause}" + (f" ({self.detail})" if self.detail else "")


def check_names(tried: Sequence[Tried], context: str | None = None) -> Finding:
    """Check that the bootstrap servers, which *context* names if there is one, resolve."""
    bad = [each for each in tried if not each.ips]
    if bad:
        status = Status.FAILED if len(bad) == len(tried) else Status.WARNING
        step = "correct the name in -b or bootstrap.servers, or the DNS of this machine"
        return problems("bootstrap", status, [each.problem for each in bad], step)
    found = "; ".join(f"{each.address} is {', '.join(each.ips)}" for each in tried)
    return passed("bootstrap", f"{found} (context {context})" if context else found)


def check_connections(tried: Sequence[Tried]) -> Finding:
    """Check that the bootstrap servers that resolve accept connections."""
    wanted = [each for each in tried if each.ips]
    bad = [each for each in wanted if not each.connected]
    if not bad:
        return passed(
            "connection", f"{_listed(each.address for each in wanted)} accepts connections"
        )
    causes = {each.cause for each in bad}
    step = (
        "start the broker, or correct the port; `ss -ltn` on its machine shows the ports"
        if causes == {Cause.REFUSED}
        else "check the address, and firewalls between this machine and the broker"
    )
    status = Status.FAILED if len(bad) == len(wanted) else Status.WARNING
    return problems("connection", status, [each.problem for each in bad], step)


_STEPS = {
    PortKind.TLS: "give the port of a PLAINTEXT listener; kclient has no TLS",
    PortKind.HTTP: "give the port of a broker's listener, usually 9092; this is a web server, or a REST proxy",
    PortKind.ZOOKEEPER: "give the port of a broker, usually 9092; clients do not connect to ZooKeeper",
    PortKind.SSH: "give the port of a broker's listener, usually 9092",
    PortKind.OTHER: "give the port of a broker's listener, usually 9092",
    PortKind.SILENT: "give the port of a broker's listener; if this is one, the broker hangs: look at its log",
}


def check_protocol(tried: Sequence[Tried]) -> Finding:
    """Check that the bootstrap servers that accept connections are brokers, and serve clients without TLS and SASL."""
    wanted = [each for each in tried if each.connected]
    bad = [each for each in wanted if not each.is_usable]
    if not bad:
        counts = sorted({len(each.apis or ()) for each in wanted})
        return passed("protocol", f"Kafka, with {' or '.join(map(str, counts))} APIs")
    status = Status.FAILED if len(bad) == len(wanted) else Status.WARNING
    return problems("protocol", status, [each.problem for each in bad], _step_for(bad[0]))


def _step_for(tried: Tried) -> str:
    if tried.refused:
        return "give the port of a PLAINTEXT listener: one with SASL answers like this, and kclient has no SASL"
    if tried.kind is PortKind.SILENT and tried.cause is Cause.CLOSED:
        return "look for a proxy without a target, or a broker at its max.connections"
    return _STEPS[tried.kind or PortKind.OTHER]


def is_loopback(host: str) -> bool:
    """Return whether *host* is the machine itself, for every machine."""
    return host in ("localhost", "::1", "0:0:0:0:0:0:0:1") or host.startswith("127.")


def check_listeners(
    advertised: Mapping[int, Tried], cluster_id: str | None, bootstrap: Iterable[Address]
) -> Finding:
    """Check that the addresses that brokers advertise lead to this cluster, from here and from other machines."""
    name = "listeners"
    bad = {node: each for node, each in advertised.items() if not each.is_usable}
    remote = not all(is_loopback(each.host) for each in bootstrap)
    local = {n: each for n, each in advertised.items() if remote and is_loopback(each.address.host)}
    if bad:
        items = [f"broker {node} advertises {each.problem}" for node, each in bad.items()]
        step = _listener_step(bad.values(), is_local=bool(bad.keys() & local.keys()))
        return problems(name, Status.FAILED, items, step)
    elsewhere = {
        node: each
        for node, each in advertised.items()
        if cluster_id and each.cluster_id and each.cluster_id != cluster_id
    }
    if elsewhere:
        items = [
            f"broker {node} advertises {each.address}, where a broker of cluster {each.cluster_id} answers"
            for node, each in elsewhere.items()
        ]
        return problems(
            name, Status.FAILED, items, f"set advertised.listeners; this is cluster {cluster_id}"
        )
    shared = [
        f"{_brokers_named(nodes)} advertise the same {address}"
        for address, nodes in _by_address(advertised).items()
        if len(nodes) > 1
    ]
    if shared:
        return problems(
            name, Status.FAILED, shared, "give each broker its own advertised.listeners"
        )
    if local:
        items = [f"broker {node} advertises {each.address}" for node, each in local.items()]
        return problems(
            name, Status.WARNING, items,
            "set advertised.listeners: localhost leads to this cluster here, and on no other machine",
        )  # fmt: skip
    return passed(name, f"{_many(len(advertised), 'broker')} at {_listed(_by_address(advertised))}")


def _listener_step(bad: Iterable[Tried], *, is_local: bool) -> str:
    if is_local:
        return "set advertised.listeners to a name of the broker's machine: localhost is the client's own"
    if all(each.kind is PortKind.SILENT for each in bad):
        return "look at the broker's log, and whether its process is stopped: the port accepts and sends nothing"
    return (
        "set advertised.listeners to what clients resolve and reach; if the address is right, "
        "start the broker or open the firewall"
    )


def _by_address(advertised: Mapping[int, Tried]) -> dict[Address, list[int]]:
    found: dict[Address, list[int]] = {}
    for node, each in sorted(advertised.items()):
        found.setdefault(each.address, []).append(node)
    return found


# --- clocks


@dataclass(frozen=True, slots=True)
class Skew:
    """A broker's clock is *seconds* ahead of this machine's; the error is at most *within* seconds."""

    seconds: float
    within: float


def check_clocks(
    newest_ms: Mapping[TopicPartition, int], skews: Mapping[int, Skew] | None, now_ms: int
) -> Finding:
    """Check the clocks of brokers (None: not measured), and that no record is from the future."""
    bad = {
        node: each
        for node, each in (skews or {}).items()
        if abs(each.seconds) - each.within > _SKEW_S
    }
    if bad:
        items = [
            f"the clock of broker {node} is {abs(each.seconds):.1f} s {'ahead' if each.seconds > 0 else 'behind'}"
            for node, each in sorted(bad.items())
        ]
        return problems(
            "clock",
            Status.WARNING,
            items,
            "synchronize the clocks of brokers and of this machine (NTP)",
        )
    late = sorted(
        ((at - now_ms) / 1000, tp) for tp, at in newest_ms.items() if at - now_ms > _FUTURE_S * 1000
    )[::-1]
    if late:
        items = [f"{tp} has a record from {_duration(ahead)} ahead" for ahead, tp in late]
        return problems(
            "clock", Status.WARNING, items,
            "look for a producer, or this machine, with a wrong clock; retention.ms deletes no segment with it",
        )  # fmt: skip
    if skews is None:
        return passed(
            "clock", "no record is from the future (--write measures the clocks of brokers)"
        )
    worst = max((abs(each.seconds) for each in skews.values()), default=0.0)
    within = max((each.within for each in skews.values()), default=0.0)
    return passed(
        "clock",
        f"{_many(len(skews), 'broker')} at most {worst * 1000:.0f} ms off (±{within * 1000:.0f} ms)",
    )


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


# --- the cluster


def check_health(found: Health) -> list[Finding]:
    """Check the controller, brokers, partitions and min ISR."""
    return [
        _controller(found),
        _brokers(found),
        _partitions(found),
        _min_isr(found),
    ]


def _controller(found: Health) -> Finding:
    if found.controller >= 0:
        return passed("controller", f"broker {found.controller}")
    return Finding(
        "controller", Status.FAILED, "no broker is the controller: no leader is elected, no topic is created",
        "look at the brokers' logs for their ZooKeeper session (or the KRaft quorum)",
    )  # fmt: skip


def _brokers(found: Health) -> Finding:
    if found.down:
        return problems(
            "brokers", Status.FAILED, [f"broker {n}" for n in found.down],
            "start it, or move its replicas with `kclient reassign`", before="down, with replicas: ",
        )  # fmt: skip
    if found.silent:
        return problems(
            "brokers", Status.FAILED, [f"broker {n}" for n in found.silent],
            "correct its listener if that check failed; else look at its log, and whether its process is stopped",
            before="registered, but silent: ",
        )  # fmt: skip
    return passed(
        "brokers", f"{_many(len(found.expected), 'broker')} live: {_listed(found.expected)}"
    )


def _partitions(found: Health) -> Finding:
    if found.leaderless:
        return problems(
            "partitions", Status.FAILED, [f"{tp} {found.waits_for(tp)}" for tp in found.leaderless],
            "start the brokers that they wait for; `kclient topic describe --unavailable-partitions`",
            before=f"{_many(len(found.leaderless), 'partition')} offline, "
            f"{len(found.under_replicated)} under-replicated: ",
        )  # fmt: skip
    if found.under_replicated:
        return problems(
            "partitions", Status.WARNING, found.under_replicated,
            "start the brokers that are down; else see `kclient topic describe --under-replicated-partitions`",
            before=f"{_many(len(found.under_replicated), 'partition')} under-replicated: ",
        )  # fmt: skip
    if found.unchecked:
        return problems(
            "partitions", Status.WARNING, found.unchecked, "repeat when all brokers answer"
        )
    return passed("partitions", "none offline, none under-replicated")


def _min_isr(found: Health) -> Finding:
    if found.under_min_isr:
        return problems(
            "min-isr", Status.FAILED, found.under_min_isr,
            "start the brokers that are down; until then producers with acks=all get NOT_ENOUGH_REPLICAS",
            before=f"{_many(len(found.under_min_isr), 'partition')} below min.insync.replicas: ",
        )  # fmt: skip
    return passed("min-isr", "every partition accepts acks=all")


def check_internal_topics(
    topics: Mapping[str, TopicMetadata], policies: Mapping[str, str | None], brokers: int
) -> Finding:
    """Check replicas and cleanup policy of the topics of groups and transactions; *policies* by topic."""
    items, steps = [], []
    found = {name: topics[name] for name in (OFFSETS, TRANSACTIONS) if name in topics}
    for name, topic in found.items():
        factor = min((len(p.replicas) for p in topic.partitions.values()), default=0)
        if factor < min(brokers, 2):
            items.append(
                f"{name} has {_many(factor, 'replica')}: the loss of one broker stops its part"
            )
            steps.append("add replicas with `kclient reassign`")
        policy = policies.get(name)
        if policy is not None and policy != "compact":
            items.append(f"{name} has cleanup.policy={policy}: offsets are deleted with age")
            steps.append(f"kclient topic alter-config {name} --set cleanup.policy=compact")
    if items:
        return problems("internal", Status.WARNING, items, "; ".join(dict.fromkeys(steps)))
    texts = [
        f"{name} with {_many(len(each.partitions), 'partition')}" for name, each in found.items()
    ]
    return passed("internal", ", ".join(texts) or "no topic of groups or transactions yet")


# --- groups


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A group's members and lag in records; *lost* are partitions with a committed offset below the log start."""

    name: str
    state: str
    members: int
    lag: int
    lost: tuple[TopicPartition, ...] = ()


def check_groups(groups: Sequence[GroupLag], errors: Sequence[str], max_lag: int) -> Finding:
    """Check for groups that are dead, without members, too late, or with offsets below the log start."""
    items, steps = [], []
    for each in groups:
        if each.state == "Dead":
            items.append(f"{each.name} is dead")
            steps.append("see the log of its coordinator")
        elif each.lost:
            items.append(
                f"{each.name} has offsets below the log start of {_listed(each.lost)}: records were lost to it"
            )
            steps.append(
                "keep records longer (retention.ms), or `kclient group seek GROUP --to start`"
            )
        elif each.lag and not each.members:
            items.append(f"{each.name} has no members and a lag of {each.lag}")
            steps.append("start its consumers, or delete the group if nothing uses it")
        elif each.lag > max_lag:
            items.append(
                f"{each.name} has a lag of {each.lag} with {_many(each.members, 'member')}"
            )
            steps.append(
                "`kclient group watch GROUP` shows whether it grows; then add consumers or partitions"
            )
    if errors:
        return problems(
            "groups", Status.FAILED, [*errors, *items], "see the logs of the coordinators"
        )
    if items:
        return problems("groups", Status.WARNING, items, "; ".join(dict.fromkeys(steps)))
    return passed(
        "groups",
        f"{_many(len(groups), 'group')}, {sum(each.lag for each in groups)} records behind in all",
    )


# --- disks and versions


def check_disks(directories: Mapping[int, Sequence[LogDir]], errors: Sequence[str]) -> Finding:
    """Check for failed log directories, and free space; *errors* are of brokers that did not answer."""
    failed, little = [], []
    smallest: float | None = None
    too_little = False
    for node, each in sorted((n, d) for n, found in directories.items() for d in found):
        where = f"{each.path} of broker {node}"
        if each.error is not None:
            failed.append(f"{where} failed: {each.error}")
        elif each.total_bytes > 0 and each.usable_bytes >= 0:
            share = each.usable_bytes / each.total_bytes
            smallest = share if smallest is None else min(smallest, share)
            if share < _LITTLE:
                little.append(f"{where} has {share:.0%} free ({each.usable_bytes / 1e9:.1f} GB)")
                too_little = too_little or share < _TOO_LITTLE
    if failed:
        return problems(
            "disks", Status.FAILED, [*failed, *errors, *little],
            "look at the broker's log, repair the disk, restart the broker",
        )  # fmt: skip
    if errors:
        return problems(
            "disks", Status.FAILED, [*errors, *little], "see the checks of listeners and brokers"
        )
    if little:
        return problems(
            "disks", Status.FAILED if too_little else Status.WARNING, little,
            "lower retention of large topics (`kclient cluster log-dirs -r`), or add disks",
        )  # fmt: skip
    if smallest is None:
        return passed(
            "disks", "no failed log directory; the brokers do not report free space (KIP-827)"
        )
    return passed("disks", f"no failed log directory, at least {smallest:.0%} free")


def check_versions(
    apis: Mapping[int, Mapping[int, tuple[int, int]]], protocols: Mapping[int, str | None]
) -> Finding:
    """Check that all brokers serve the same APIs and have the same inter.broker.protocol.version, if they report it."""
    if not apis:
        return Finding("versions", Status.SKIPPED, "not checked: no broker answered")
    by_apis: dict[Any, list[int]] = {}
    by_protocol: dict[str, list[int]] = {}
    for node, served in sorted(apis.items()):
        by_apis.setdefault(tuple(sorted(served.items())), []).append(node)
    for node, protocol in sorted(protocols.items()):
        if protocol is not None:
            by_protocol.setdefault(protocol, []).append(node)
    items = []
    if len(by_apis) > 1:
        items += [
            f"{_brokers_named(nodes)} with {len(served)} APIs" for served, nodes in by_apis.items()
        ]
    if len(by_protocol) > 1:
        items += [
            f"{_brokers_named(nodes)} with inter.broker.protocol.version={protocol}"
            for protocol, nodes in by_protocol.items()
        ]
    if items:
        return problems(
            "versions", Status.WARNING, items, "end the rolling upgrade: the brokers differ"
        )
    also = "".join(f", inter.broker.protocol.version={each}" for each in by_protocol)
    return passed("versions", f"all brokers alike: {len(next(iter(by_apis)))} APIs{also}")


def _brokers_named(nodes: Sequence[int]) -> str:
    return f"broker{'' if len(nodes) == 1 else 's'} {_listed(nodes)}"


def skipped(checks: Iterable[str], why: str) -> list[Finding]:
    """Return findings of *checks* that were not made."""
    return [Finding(each, Status.SKIPPED, f"not checked: {why}") for each in checks]


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _listed(things: Iterable[object]) -> str:
    return ", ".join(map(str, things))
