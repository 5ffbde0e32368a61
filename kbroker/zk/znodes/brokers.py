"""Znodes of brokers, the controller and the cluster."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kbroker.common.endpoint import Endpoint
from kbroker.common.log_dir_integrity import (
    UNKNOWN_INTEGRITY,
    EpochRange,
    LogDirCondition,
    LogDirIntegrity,
    broker_epochs,
)
from kbroker.zk.errors import PoisonZnode
from kbroker.zk.znodes.fields import INT32_MAX, Fields, decode_json, decode_number, encode_json
from kbroker.zk.znodes.names import (
    BROKER_IDS,
    CLUSTER_ID,
    CONTROLLER,
    CONTROLLER_EPOCH,
    INTER_BROKER_SECRET,
)

SECRET_BYTES: Final = 32
"""The inter-broker secret has at least so many bytes."""


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """The content of /brokers/ids/N; *timestamp* in ms. The broker epoch is the znode's czxid.

    *integrity* is in three fields of ours, which Kafka's tools ignore (KIP-966). "start" is the condition of the log
    directories. "intact" has the first and the last broker epoch that they cover. "epochs" has all ranges of these
    broker epochs, where there are several. A controller that does not know the third takes all epochs between the two.
    """

    broker_id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    timestamp: int = 0
    jmx_port: int = -1
    features: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    integrity: LogDirIntegrity = UNKNOWN_INTEGRITY


def broker_path(broker_id: int) -> str:
    """Return /brokers/ids/N (ephemeral)."""
    return f"{BROKER_IDS}/{broker_id:d}"


def encode_broker(broker: BrokerInfo) -> bytes:
    """Write version 5; `host` and `port` of the first PLAINTEXT listener are for old clients."""
    plain = next((e for e in broker.endpoints if e.security_protocol == "PLAINTEXT"), None)
    value: dict[str, Any] = {
        "features": {name: dict(span) for name, span in broker.features.items()},
        "listener_security_protocol_map": {
            e.listener: e.security_protocol for e in broker.endpoints
        },
        "endpoints": [str(e) for e in broker.endpoints],
        "jmx_port": broker.jmx_port,
        "port": plain.port if plain else -1,
        "host": plain.host if plain else None,
        "version": 5,
        "timestamp": str(broker.timestamp),
    }
    if broker.rack is not None:
        value["rack"] = broker.rack
    condition, intact = broker.integrity
    if condition is not LogDirCondition.UNKNOWN:
        value["start"] = condition.value
        value["intact"] = None if intact is None else (intact.first, intact.last)
        if intact is not None and len(intact.ranges) > 1:
            value["epochs"] = intact.ranges
    return encode_json(value)


_ENDPOINT = re.compile(r"([A-Za-z0-9_.-]+)://\[?([^\[\]/]*)\]?:(-?\d{1,5})")
_DEFAULT_PROTOCOLS = {p: p for p in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")}


def decode_broker(broker_id: int, data: bytes) -> BrokerInfo:
    """Read versions 1 to 5."""
    fields = decode_json(broker_path(broker_id), data)
    version = fields.integer("version", low=1)
    if version == 1:
        host, port = fields.text("host"), fields.integer("port", low=0, high=65535)
        endpoints: tuple[Endpoint, ...] = (Endpoint("PLAINTEXT", "PLAINTEXT", host, port),)
    else:
        name = "listener_security_protocol_map"
        protocols = fields.object(name).strings() if fields.has(name) else _DEFAULT_PROTOCOLS
        endpoints = tuple(_endpoint(fields, e, protocols) for e in fields.items("endpoints"))
    features = fields.object_or_empty("features")
    return BrokerInfo(
        broker_id,
        endpoints,
        rack=fields.text("rack") if fields.has("rack") else None,
        timestamp=fields.decimal("timestamp") if fields.has("timestamp") else 0,
        jmx_port=fields.integer("jmx_port") if fields.has("jmx_port") else -1,
        features={
            name: {label: features.object(name).integer(label) for label in span}
            for name, span in features.values.items()
            if isinstance(span, dict)
        },
        integrity=_integrity(fields),
    )


_CONDITIONS = {condition.value: condition for condition in LogDirCondition}


def _integrity(fields: Fields) -> LogDirIntegrity:
    start = fields.text("start") if fields.has("start") else ""
    if not start:
        return UNKNOWN_INTEGRITY
    condition = _CONDITIONS.get(start, LogDirCondition.UNKNOWN)
    if not fields.has("intact"):
        return LogDirIntegrity(condition, None)
    span = _epoch_range(fields, "intact", fields.items("intact"))
    ranges = [span]
    if fields.has("epochs"):
        ranges = [_epoch_range(fields, "epochs", item) for item in fields.items("epochs")]
    epochs = [epoch for each in ranges for epoch in each]
    if not epochs or epochs != sorted(epochs):
        raise fields.poison("the broker epochs do not ascend")
    return LogDirIntegrity(condition, broker_epochs(*ranges))


def _epoch_range(fields: Fields, name: str, value: Any) -> EpochRange:
    found = [fields.long(name, item) for item in value] if isinstance(value, list) else []
    if len(found) != 2:
        raise fields.poison(f'field "{name}" is not made of pairs of broker epochs')
    return found[0], found[1]


def _endpoint(fields: Fields, text: Any, protocols: Mapping[str, str]) -> Endpoint:
    match = _ENDPOINT.fullmatch(text) if isinstance(text, str) else None
    if match is None or not 0 <= int(match[3]) <= 65535:
        raise fields.poison(f"endpoint {text!r:.80} is not LISTENER://host:port")
    if match[1] not in protocols:
        raise fields.poison(f"listener {match[1]} has no security protocol")
    return Endpoint(match[1], protocols[match[1]], match[2], int(match[3]))


@dataclass(frozen=True, slots=True)
class ControllerRegistration:
    """The content of /controller; *timestamp* in ms."""

    broker_id: int
    timestamp: int


def encode_controller(controller: ControllerRegistration) -> bytes:
    """Write /controller (ephemeral)."""
    return encode_json(
        {
            "version": 2,
            "brokerid": controller.broker_id,
            "timestamp": str(controller.timestamp),
            "kraftControllerEpoch": -1,
        }
    )


def decode_controller(data: bytes) -> ControllerRegistration:
    """Read /controller, any version."""
    fields = decode_json(CONTROLLER, data)
    timestamp = fields.decimal("timestamp") if fields.has("timestamp") else 0
    return ControllerRegistration(fields.integer("brokerid", low=0), timestamp)


def encode_controller_epoch(epoch: int) -> bytes:
    """Write /controller_epoch: plain decimal text."""
    return str(epoch).encode()


def decode_controller_epoch(data: bytes) -> int:
    """Read /controller_epoch."""
    return decode_number(CONTROLLER_EPOCH, data, low=0, high=INT32_MAX)


def encode_cluster_id(cluster_id: str) -> bytes:
    """Write /cluster/id; the version is a string there, in Kafka too."""
    return encode_json({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    """Read /cluster/id."""
    return decode_json(CLUSTER_ID, data).text("id")


def encode_inter_broker_secret(secret: bytes) -> bytes:
    """Write /cluster/inter_broker_secret, a znode of ours."""
    return encode_json({"version": 1, "secret": base64.b64encode(secret).decode()})


def decode_inter_broker_secret(data: bytes) -> bytes:
    """Read /cluster/inter_broker_secret. The error does not show the content."""
    text = decode_json(INTER_BROKER_SECRET, data).text("secret")
    try:
        secret = base64.b64decode(text, validate=True)
    except ValueError:
        secret = b""
    if len(secret) < SECRET_BYTES:
        raise PoisonZnode(INTER_BROKER_SECRET, f"no secret of {SECRET_BYTES} bytes in base64")
    return secret
