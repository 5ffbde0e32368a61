"""The progress of active reassignments: bytes in the replicas being added, of the bytes that they need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kclient.admin.reassignment_plan import Copied, Reassignment, copied_of
from kclient.types import TopicPartition

LOOK_S = 3.0
"""Seconds that a broker may take to return its replica sizes."""


async def copied_bytes(
    admin: Any, moving: Mapping[TopicPartition, Reassignment]
) -> dict[TopicPartition, Copied]:
    """Request the sizes of the replicas of *moving* from the live brokers, and compare them."""
    from kclient.wire.errors import KafkaError

    live = admin.cluster.metadata.brokers.keys()
    brokers = sorted({n for each in moving.values() for n in each.replicas} & live)
    found = await admin.describe_log_dirs(brokers, list(moving), timeout=LOOK_S, raise_errors=False)
    sizes: dict[TopicPartition, dict[int, int]] = {tp: {} for tp in moving}
    for broker, dirs in found.items():
        for each in () if isinstance(dirs, KafkaError) else dirs.values():
            for tp, replica in each.replicas.items():
                if tp in sizes:
                    sizes[tp][broker] = replica.size
    return {tp: copied_of(each, sizes[tp]) for tp, each in moving.items()}


def progress_line(copied: Mapping[TopicPartition, Copied]) -> str:
    """Return the progress as one line."""
    done = sum(each.done for each in copied.values())
    total = sum(each.total for each in copied.values())
    s = "" if len(copied) == 1 else "s"
    share = f" ({done * 100 // total} %)" if total else ""
    return f"In progress: {len(copied)} partition{s}, {done} of {total} bytes copied{share}"
