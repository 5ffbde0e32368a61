"""meta.properties, partition.metadata and the clean-shutdown marker: small files that identify a directory.

Text files in Kafka's formats. Pure: bytes in, bytes out.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple
from uuid import UUID

from kclient.wire.errors import CorruptMessage

META_PROPERTIES: Final = "meta.properties"
PARTITION_METADATA: Final = "partition.metadata"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
LOCK: Final = ".lock"
NO_BROKER_EPOCH: Final = -1


class MetaProperties(NamedTuple):
    """The owner of a log directory; None for a field that the file does not have."""

    broker_id: int | None
    cluster_id: str | None
    directory_id: str | None

    def encode(self) -> bytes:
        """Return the content of meta.properties, in version 0: the one with ZooKeeper."""
        lines = ["#", "version=0"]
        if self.broker_id is not None:
            lines.append(f"broker.id={self.broker_id}")
        if self.cluster_id is not None:
            lines.append(f"cluster.id={self.cluster_id}")
        if self.directory_id is not None:
            lines.append(f"directory.id={self.directory_id}")
        return ("\n".join(lines) + "\n").encode("utf-8")


def decode_meta_properties(content: bytes) -> MetaProperties:
    """Read meta.properties; raise CorruptMessage when it makes no sense to a ZooKeeper broker."""
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise CorruptMessage(f"it is no text: {error}") from error
    found = {}
    for line in lines:
        text = line.strip()
        if text and text[0] not in "#!":
            key, separator, value = text.partition("=")
            if not separator:
                raise CorruptMessage(f"line {text!r} has no '='")
            found[key.strip()] = value.strip()
    version = found.get("version", "0")
    if version != "0":
        raise CorruptMessage(f"version {version} is of a cluster without ZooKeeper (KRaft)")
    if not found:
        raise CorruptMessage("it is empty")
    broker_id = found.get("broker.id")
    if broker_id is not None and not broker_id.isdecimal():
        raise CorruptMessage(f"broker.id is {broker_id!r}")
    return MetaProperties(
        None if broker_id is None else int(broker_id),
        found.get("cluster.id"),
        found.get("directory.id"),
    )


class PartitionMetadata(NamedTuple):
    """The identity of the log beside partition.metadata; None for a field that the file does not have.

    Kafka reads and writes the topic id alone. The other lines are ours and follow it; Kafka ignores them.
    """

    topic_id: UUID | None
    partition: int | None = None
    directory_id: str | None = None
    """directory.id of the log directory in which the log was made, or followed a leader last."""


def encode_partition_metadata(metadata: PartitionMetadata) -> bytes:
    """Return the content of partition.metadata; the topic id is needed."""
    assert metadata.topic_id is not None
    lines = ["version: 0", f"topic_id: {encode_uuid(metadata.topic_id)}"]
    if metadata.partition is not None:
        lines.append(f"partition: {metadata.partition}")
    if metadata.directory_id is not None:
        lines.append(f"directory_id: {metadata.directory_id}")
    return "\n".join(lines).encode("utf-8")


def decode_partition_metadata(content: bytes) -> PartitionMetadata:
    """Read partition.metadata; an empty file, which a power loss leaves, has no fields.

    Raise CorruptMessage when the content makes no sense.
    """
    if not content.strip(b"\0 \r\n"):
        return PartitionMetadata(None)
    try:
        rows = [
            line.partition(":") for line in content.decode("utf-8").splitlines() if line.strip()
        ]
        found = {key.strip(): value.strip() for key, _, value in rows}
        version, topic_id = int(found["version"]), decode_uuid(found["topic_id"])
        partition = int(found["partition"]) if "partition" in found else None
    except (KeyError, ValueError, UnicodeDecodeError) as error:
        raise CorruptMessage(f"not a partition.metadata: {error!r}") from error
    if version != 0:
        raise CorruptMessage(f"version {version} is not known")
    return PartitionMetadata(topic_id, partition, found.get("directory_id"))


def encode_uuid(value: UUID) -> str:
    """Return *value* as Kafka writes ids: 22 characters of URL-safe base 64."""
    return urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def decode_uuid(text: str) -> UUID:
    """Read an id as Kafka writes it; raise ValueError."""
    return UUID(bytes=urlsafe_b64decode(text + "=="))


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    """Return the content of the marker: the broker epoch of the shutdown (KIP-966)."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode("ascii")


def decode_clean_shutdown(content: bytes) -> int:
    """Return the broker epoch of a marker, or -1: older brokers left an empty file."""
    try:
        epoch = json.loads(content)["brokerEpoch"]
    except (ValueError, KeyError, TypeError):
        return NO_BROKER_EPOCH
    return epoch if isinstance(epoch, int) and not isinstance(epoch, bool) else NO_BROKER_EPOCH
