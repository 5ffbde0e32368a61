"""meta.properties of a log directory: the ids of its broker, its cluster and itself.

Kafka's format, version 0. Pure: bytes in, values out.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kclient.wire.errors import CorruptMessage

META_PROPERTIES: Final = "meta.properties"


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
