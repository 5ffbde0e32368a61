"""The marker of a clean shutdown, with the broker epoch (KIP-966). Pure: bytes in, values out."""

from __future__ import annotations

import json
from typing import Final

CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
NO_BROKER_EPOCH: Final = -1


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
