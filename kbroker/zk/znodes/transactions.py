"""Znodes of transactional ids, and of the offsets that are committed in transactions."""

from __future__ import annotations

from kbroker.zk.znodes.groups import group_path
from kbroker.zk.znodes.names import TRANSACTIONS, escape


def transactional_ids_path() -> str:
    """Return /transactions/ids."""
    return f"{TRANSACTIONS}/ids"


def transactional_id_path(transactional_id: str) -> str:
    """Return /transactions/ids/X; content by `coordinator.transaction.core.records`."""
    return f"{transactional_ids_path()}/{escape(transactional_id)}"


def pending_offsets_path(group: str, producer_id: int) -> str:
    """Return /consumers/G/pending/P: the offsets that producer id P commits in its open transaction."""
    return f"{group_path(group)}/pending/{producer_id:d}"
