"""Znodes of transactional ids, and of the offsets that are committed in transactions."""

from __future__ import annotations

from kbroker.zk.znodes.groups import group_path
from kbroker.zk.znodes.names import TRANSACTIONAL_IDS, escape


def transactional_id_path(transactional_id: str) -> str:
    """Return /transactions/ids/X; content by `coordinator.transaction.core.records`."""
    return f"{TRANSACTIONAL_IDS}/{escape(transactional_id)}"


def pending_offsets_path(group: str, producer_id: int) -> str:
    """Return /consumers/G/pending/P: the offsets that producer id P commits in its open transaction."""
    return f"{group_path(group)}/pending/{producer_id:d}"
