"""Kafka's settings that this broker does not have: refused, without effect, or not supported; and unknown names.

A value that asks for something the broker cannot give, and that the operator would rely on, is refused. All other
settings are accepted, so that a server.properties of Kafka's starts this broker, and each is named in a warning.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Final

from kbroker.config.setting import Setting

_KRAFT: Final = "KRaft is not supported: brokers are coordinated by ZooKeeper"
_TIERED: Final = "tiered storage is not supported"
_JAVA: Final = "it names a Java class, which cannot run here"


def _is_set(value: str) -> bool:
    return bool(value)


def _is_true(value: str) -> bool:
    return value.lower() != "false"


def _is_id(value: str) -> bool:
    return value != "-1"


REFUSED: Final[Mapping[str, tuple[Callable[[str], bool], str]]] = {
    "process.roles": (_is_set, f"{_KRAFT}; remove the key"),
    "controller.quorum.voters": (_is_set, f"{_KRAFT}; set zookeeper.connect"),
    "controller.quorum.bootstrap.servers": (_is_set, f"{_KRAFT}; set zookeeper.connect"),
    "controller.listener.names": (_is_set, f"{_KRAFT}; remove the key"),
    "node.id": (_is_id, f"{_KRAFT}; set broker.id"),
    "zookeeper.metadata.migration.enable": (_is_true, f"{_KRAFT}: there is nothing to migrate to"),
    "authorizer.class.name": (
        _is_set,
        "no authorizer yet: the broker would serve every client; remove the key",
    ),
    "super.users": (
        _is_set,
        "no authorizer yet: the broker would serve every client; remove the key",
    ),
    "sasl.enabled.mechanisms": (
        _is_set,
        "SASL is not supported yet: no client would be authenticated; remove the key",
    ),
    "zookeeper.ssl.client.enable": (
        _is_true,
        "TLS to ZooKeeper is not supported yet: the connection would not be encrypted; remove the key",
    ),
    "client.quota.callback.class": (_is_set, f"{_JAVA}: no quota would apply; remove the key"),
    "remote.log.storage.system.enable": (
        _is_true,
        f"{_TIERED}: old segments would stay on local disks; remove the key",
    ),
}
"""Settings that some values of are refused: the operator would rely on what does not exist. Which values, and why."""

NO_EFFECT: Final[Mapping[str, tuple[str, ...]]] = {
    "it tunes threads, buffers or windows that do not exist here": (
        "alter.log.dirs.replication.quota.window.",
        "connection.failed.authentication.delay.ms",
        "eligible.leader.replicas.enable",
        "group.coordinator.",
        "log.initial.task.delay.ms",
        "num.replica.alter.log.dirs.threads",
        "replication.quota.window.",
        "socket.connection.setup.timeout.",
        "telemetry.max.bytes",
        "transaction.state.log.load.buffer.size",
        "unstable.",
        "zookeeper.clientCnxnSocket",
    ),
    _JAVA: (
        "auto.include.jmx.reporter",
        "config.providers",
        "kafka.",
        "metric.reporters",
        "metrics.",
        "principal.builder.",
        "security.providers",
    ),
    _KRAFT: (
        "broker.heartbeat.interval.ms",
        "broker.session.timeout.ms",
        "controller.listener.names",
        "controller.quorum.",
        "early.start.listeners",
        "initial.broker.registration.timeout.ms",
        "metadata.log.",
        "metadata.max.",
        "node.id",
        "process.roles",
        "server.max.startup.time.ms",
        "unclean.leader.election.interval.ms",
        "zookeeper.metadata.migration.",
    ),
    _TIERED: ("log.local.retention.", "remote."),
    "the group protocol of KIP-848 is not supported": ("group.consumer.",),
    "share groups are not supported": ("group.share.",),
}
"""Reason -> names, or prefixes that end with a dot."""

NOT_YET: Final = (
    "authorizer.class.name",
    "client.quota.callback.class",
    "connections.max.reauth.ms",
    "delegation.token.",
    "listener.name.",
    "password.encoder.",
    "sasl.",
    "ssl.",
    "super.users",
    "zookeeper.ssl.",
)
"""Names and prefixes of what may be supported later: TLS, SASL, delegation tokens."""

OVERRIDDEN_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "log.dir": ("log.dirs",),
    "log.flush.scheduler.interval.ms": ("log.flush.interval.ms",),
    "log.retention.hours": ("log.retention.ms", "log.retention.minutes"),
    "log.retention.minutes": ("log.retention.ms",),
    "log.roll.hours": ("log.roll.ms",),
    "log.roll.jitter.hours": ("log.roll.jitter.ms",),
}
"""Settings for one thing, as in Kafka: where one on the right is given, that on the left has no effect."""


def honoured(given: Mapping[str, str], settings: Mapping[str, Setting]) -> list[str]:
    """Return the names of *given* that have an effect, in their order."""
    return [
        name
        for name in given
        if name in settings and not settings[name].is_idle and _overriding(name, given) is None
    ]


def _overriding(name: str, given: Mapping[str, str]) -> str | None:
    return next((other for other in OVERRIDDEN_BY.get(name, ()) if other in given), None)


def classify(
    given: Mapping[str, str], settings: Mapping[str, Setting]
) -> tuple[list[str], list[str]]:
    """Sort *given*, name -> value, into warnings and problems, apart from the values of *settings*."""
    warnings: list[str] = []
    problems: list[str] = []
    idle: dict[str, list[str]] = {}
    for name, value in given.items():
        is_refused, reason = REFUSED.get(name, (None, ""))
        if is_refused is not None and is_refused(value.strip()):
            problems.append(f"{name}: {reason}")
        elif name in settings:
            if settings[name].is_idle:
                idle.setdefault("", []).append(name)
            elif (other := _overriding(name, given)) is not None:
                idle.setdefault(f" ({other} overrides it)", []).append(name)
        elif (why := reason_without_effect(name)) is not None:
            idle.setdefault(f" ({why})", []).append(name)
        elif _matches(name, NOT_YET):
            warnings.append(f"{name}: not supported yet, ignored")
        else:
            near = difflib.get_close_matches(name, list(settings), 1, 0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            warnings.append(f"{name[:100]!r}: unknown setting, ignored{hint}")
    warnings += [
        f"accepted, no effect{why}: {', '.join(sorted(names))}" for why, names in idle.items()
    ]
    return warnings, problems


def reason_without_effect(name: str) -> str | None:
    """Return why setting *name* of Kafka's has no effect; None if it is none of `NO_EFFECT`."""
    return next((why for why, names in NO_EFFECT.items() if _matches(name, names)), None)


def _matches(name: str, names: tuple[str, ...]) -> bool:
    return any(name.startswith(one) if one.endswith(".") else name == one for one in names)
