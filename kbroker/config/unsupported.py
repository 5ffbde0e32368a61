"""Keys that are not settings of this broker: without effect, not supported, refused, or unknown."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from kbroker.config.setting import Setting

NO_EFFECT = frozenset(
    {
        "alter.log.dirs.replication.quota.window.num",
        "alter.log.dirs.replication.quota.window.size.seconds",
        "auto.include.jmx.reporter",
        "client.quota.callback.class",
        "config.providers",
        "connection.failed.authentication.delay.ms",
        "delegation.token.expiry.check.interval.ms",
        "delegation.token.expiry.time.ms",
        "delegation.token.max.lifetime.ms",
        "eligible.leader.replicas.enable",
        "group.coordinator.append.linger.ms",
        "group.coordinator.new.enable",
        "group.coordinator.rebalance.protocols",
        "group.coordinator.threads",
        "kafka.metrics.polling.interval.secs",
        "kafka.metrics.reporters",
        "log.dir.failure.timeout.ms",
        "log.initial.task.delay.ms",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "num.replica.alter.log.dirs.threads",
        "password.encoder.cipher.algorithm",
        "password.encoder.iterations",
        "password.encoder.key.length",
        "password.encoder.keyfactory.algorithm",
        "quota.window.num",
        "quota.window.size.seconds",
        "remote.log.storage.system.enable",
        "replica.selector.class",
        "replication.quota.window.num",
        "replication.quota.window.size.seconds",
        "controller.quota.window.num",
        "controller.quota.window.size.seconds",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
        "telemetry.max.bytes",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "transaction.partition.verification.enable",
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        "transaction.state.log.load.buffer.size",
        "unstable.api.versions.enable",
        "unstable.feature.versions.enable",
        "zookeeper.clientCnxnSocket",
    }
)
"""Keys of Kafka's that are accepted without effect: they tune threads and windows that do not exist here."""

REFUSED: Mapping[str, str] = {
    "process.roles": "KRaft is not supported: brokers are coordinated by ZooKeeper; remove the key",
    "controller.quorum.voters": "KRaft is not supported; set zookeeper.connect",
    "controller.quorum.bootstrap.servers": "KRaft is not supported; set zookeeper.connect",
    "controller.listener.names": "KRaft is not supported; set control.plane.listener.name or remove it",
    "node.id": "KRaft is not supported; set broker.id",
    "authorizer.class.name": "no authorizer yet: the broker would serve every client; remove the key",
    "super.users": "no authorizer yet: the broker would serve every client; remove the key",
    "sasl.enabled.mechanisms": "SASL is not supported yet: no client would be authenticated; remove the key",
}
"""Keys that are never ignored in silence: the operator would rely on a feature that does not exist."""

_NOT_YET = (
    "ssl.",
    "sasl.",
    "zookeeper.ssl.",
    "listener.name.",
    "principal.builder.",
    "security.",
    "remote.log.",
)
_OURS = (
    "kafka.",
    "metadata.log.",
    "metadata.max.",
    "initial.broker.",
    "broker.heartbeat.",
    "broker.session.",
)


def classify(given: Iterable[str], settings: Mapping[str, Setting]) -> tuple[list[str], list[str]]:
    """Sort the keys in *given* that are no *settings*: (warnings, problems)."""
    warnings: list[str] = []
    problems: list[str] = []
    idle = []
    for key in given:
        if key in REFUSED:
            problems.append(f"{key}: {REFUSED[key]}")
        elif key in settings:
            if settings[key].doc.startswith("Accepted, no effect"):
                idle.append(key)
        elif key in NO_EFFECT or key.startswith(_OURS):
            idle.append(key)
        elif key.startswith(_NOT_YET):
            warnings.append(f"{key}: not supported yet, ignored")
        else:
            near = difflib.get_close_matches(key, [*settings, *NO_EFFECT], 1, 0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            warnings.append(f"{key[:100]!r}: unknown setting, ignored{hint}")
    if idle:
        warnings.append("accepted, no effect: " + ", ".join(sorted(idle)))
    return warnings, problems
