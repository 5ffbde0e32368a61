"""The ISR broker epoch of a member: the broker epoch under which it joined the ISR, or void (KIP-903).

A member that reports that its log lacks records gets a void epoch. The void epoch keeps the broker epoch, which counts
again when the broker restarts and finds that log whole.
"""

from __future__ import annotations

from typing import Final

UNKNOWN_EPOCH: Final = -1
"""The state znode has no broker epoch of the member: an earlier version, or Apache Kafka, wrote it."""

VOID_EPOCH: Final = -2
"""Void, and the broker epoch is not known."""


def void(isr_epoch: int) -> int:
    """Return the void epoch that keeps *isr_epoch*."""
    return isr_epoch if is_void(isr_epoch) else VOID_EPOCH - 1 - isr_epoch


def is_void(isr_epoch: int) -> bool:
    """Return whether *isr_epoch* is void."""
    return isr_epoch <= VOID_EPOCH


def before_void(voided: int) -> int:
    """Return the broker epoch that the void epoch *voided* keeps; -1: unknown."""
    return VOID_EPOCH - 1 - voided
