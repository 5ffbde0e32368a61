"""Deletes a tree of znodes in one blocking call, for commands: they run without a reactor."""

from __future__ import annotations

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from kbroker.zk.errors import CannotConnect
from kbroker.zk.session_state import quiet_logger


def delete_tree(hosts: str, path: str, *, timeout: float = 10.0) -> None:
    """Delete a znode and everything below it; nothing to do is no error."""
    client = KazooClient(hosts=hosts, timeout=timeout, logger=quiet_logger())
    try:
        client.start(timeout)
    except KazooTimeoutError:
        raise CannotConnect(
            reason=f"ZooKeeper at {hosts} did not answer in {timeout:g} s"
        ) from None
    try:
        client.delete(path, recursive=True)
    except NoNodeError:
        return
    finally:
        client.stop()
        client.close()
