"""The outside of a broker: disk, network, ZooKeeper, wall clock, random numbers.

`Broker` is composed from a `World` and a reactor, and uses nothing else of the process. `tests/simulation` gives
another world, so that the simulated brokers are composed by the same code.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import randrange
from secrets import token_bytes
from typing import Any
from uuid import UUID, uuid4

from kbroker.common.logger_levels import LoggerLevels
from kbroker.config import KafkaConfig
from kbroker.log.cleaner_process import CleanerProcess
from kbroker.log.disk import OS_DISK, Disk
from kbroker.log.log_cleaner import NewWorker
from kbroker.log.log_dir_history import boot_id
from kbroker.network.service import Service
from kbroker.network.socket_server import SocketServer
from kbroker.zk.client import ZooKeeperClient
from kbroker.zk.previous_session import PreviousSession
from kclient.net.connection import Dial, connect


def disk_pool(threads: int) -> Executor:
    """Return the threads for slow operations on a disk."""
    return ThreadPoolExecutor(threads, "disk")


def zookeeper_session(reactor: Any, connect: str, session_timeout: float) -> ZooKeeperClient:
    """Return a client of the ensemble at *connect*; *session_timeout* in seconds."""
    return ZooKeeperClient(reactor, connect, session_timeout=session_timeout)


@dataclass(frozen=True)
class World:
    """The outside of a broker; the defaults are this machine."""

    disk: Disk = OS_DISK
    disk_pool: Callable[[int], Executor] = disk_pool
    """From a number of threads."""
    new_cleaner_worker: NewWorker = CleanerProcess
    """Makes what reads and filters logs that are compacted."""
    wall_clock: Callable[[], float] = time.time
    """Seconds since 1970, for timestamps that others read. All else goes by the reactor's clock."""
    new_uuid: Callable[[], UUID] = uuid4
    random_below: Callable[[int], int] = randrange
    random_bytes: Callable[[int], bytes] = token_bytes
    """For secrets."""
    boot_id: Callable[[], str] = boot_id
    """Of the machine: another one after it went down, with what was written and not synced."""
    dial: Dial = connect
    """How other brokers are reached."""
    socket_server: Callable[[Any, KafkaConfig, Service], SocketServer] = SocketServer
    """Makes the socket server, from the reactor, the configuration and the service for its requests."""
    zookeeper: Callable[[Any, str, float], ZooKeeperClient] = zookeeper_session
    previous_session: Callable[[Path], PreviousSession] = PreviousSession
    logger_levels: LoggerLevels = field(default_factory=LoggerLevels)

    def now_ms(self) -> int:
        """Return the wall clock in ms."""
        return int(self.wall_clock() * 1000)
