"""A ZooKeeper client that reconnects at once when ZooKeeper is back: kazoo's backoff grows up to a minute."""

from __future__ import annotations

from kazoo.client import KazooClient
from kazoo.retry import KazooRetry


def reconnecting_client(connect: str) -> KazooClient:
    """Make one; the caller has to start, stop and close it."""
    often = KazooRetry(max_tries=-1, delay=0.1, backoff=1, max_delay=0.5)
    return KazooClient(connect, timeout=10, connection_retry=often)
