"""A member's place in its group by librdkafka, taken out of the bytes that it means for a producer (KIP-447).

``rd_kafka_consumer_group_metadata_write``: ``CGMDv2:``, the generation as the machine writes an int, then group id and
member id, each ended by a zero byte.
"""

from __future__ import annotations

import struct

_MAGIC = b"CGMDv2:"
_GENERATION = struct.Struct("=i")


def generation_and_member(content: bytes) -> tuple[int, str]:
    """Return generation id (-1 in none) and member id; raise ValueError if *content* is something else."""
    if not content.startswith(_MAGIC):
        raise ValueError(f"not a consumer's group metadata: {content[:20]!r}")
    (generation,) = _GENERATION.unpack_from(content, len(_MAGIC))
    _group, member, _ = content[len(_MAGIC) + _GENERATION.size :].split(b"\0", 2)
    return generation, member.decode()
