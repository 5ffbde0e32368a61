"""Znodes of transactional ids, and of the offsets that are committed in transactions."""

from __future__ import annotations

from kbroker.zk.znodes.names import PENDING_OFFSETS, TRANSACTIONAL_IDS, escape, unescape


def transactional_id_path(transactional_id: str) -> str:
    """Return /transactions/ids/X; content by `coordinator.transaction.core.records`."""
    return f"{TRANSACTIONAL_IDS}/{escape(transactional_id)}"


def pending_offsets_path(producer_id: int, group: str) -> str:
    """Return /transactions/pending/P,G: the offsets that producer id P commits to group G in its open transaction."""
    return f"{PENDING_OFFSETS}/{producer_id:d},{escape(group)}"


def decode_pending_offsets_name(name: str) -> tuple[int, str] | None:
    """Return the producer id and the group of a child of /transactions/pending; None for another name."""
    producer_id, comma, group = name.partition(",")
    if not (
        comma
        and group
        and len(producer_id) < 20
        and producer_id.isascii()
        and producer_id.isdigit()
    ):
        return None
    found = int(producer_id), unescape(group)
    return found if pending_offsets_path(*found) == f"{PENDING_OFFSETS}/{name}" else None
