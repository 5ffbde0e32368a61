"""partition.metadata of a log: topic id, partition and log directory.

Kafka's format, version 0, with lines of ours behind. Pure: bytes in, values out.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from kclient.wire.errors import CorruptMessage
from kclient.wire.uuids import decode_uuid, encode_uuid

PARTITION_METADATA: Final = "partition.metadata"


class PartitionMetadata(NamedTuple):
    """The identity of the log beside partition.metadata; None for a field that the file does not have.

    Kafka reads and writes the topic id alone. The other lines are ours and follow it; Kafka ignores them.
    """

    topic_id: UUID | None
    partition: int | None = None
    directory_id: str | None = None
    """directory.id of the log directory in which the log was made, or followed a leader last."""
    moves: int = 0
    """How often the log was moved between the broker's log directories."""


def encode_partition_metadata(metadata: PartitionMetadata) -> bytes:
    """Return the content of partition.metadata; the topic id is needed."""
    assert metadata.topic_id is not None
    lines = ["version: 0", f"topic_id: {encode_uuid(metadata.topic_id)}"]
    if metadata.partition is not None:
        lines.append(f"partition: {metadata.partition}")
    if metadata.directory_id is not None:
        lines.append(f"directory_id: {metadata.directory_id}")
    if metadata.moves:
        lines.append(f"moves: {metadata.moves}")
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
        moves = int(found.get("moves", 0))
    except (KeyError, ValueError, UnicodeDecodeError) as error:
        raise CorruptMessage(f"not a partition.metadata: {error!r}") from error
    if version != 0:
        raise CorruptMessage(f"version {version} is not known")
    return PartitionMetadata(topic_id, partition, found.get("directory_id"), moves)
