"""Samples leaders, high watermarks and log end offsets of running brokers several times a second.

It uses the brokers' own ports and ZooKeeper's, past the switchboard: a cut must not affect it. The high
watermark is ListOffsets' answer to a consumer, the log end its answer to the debugging consumer (replica id -2), on any
replica. A broker that is dead or paused has half a second to answer.
"""

from __future__ import annotations

import itertools
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from kclient.wire import messages
from kclient.wire.framing import framed
from kclient.wire.messages import RequestHeader
from kclient.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kclient.wire.versions import ApiKey
from tests.audits.isr_samples import Known, Mark, Sample
from tests.chaos.client import split_key
from tests.chaos.reconnecting_client import reconnecting_client

EVERY: Final = 0.2
PATIENCE: Final = 0.5
ZOOKEEPER_PATIENCE: Final = 2.0
CONSUMER, DEBUGGING_CONSUMER, LATEST = -1, -2, -1
VERSION: Final = 6
_LENGTH = struct.Struct(">i")
Answers = dict[str, tuple[int, int]]
"""Per key (leader epoch, offset), where there was no error."""


class IsrSampler(threading.Thread):
    """Takes samples of *keys* until it is stopped. *now* gives monotonic ns, as in the history."""

    def __init__(
        self,
        zookeeper_connect: str,
        chroot: str,
        addresses: Mapping[int, tuple[str, int]],
        keys: Sequence[str],
        now: Callable[[], int],
    ) -> None:
        super().__init__(name="isr-sampler", daemon=True)
        self._zookeeper = reconnecting_client(zookeeper_connect)
        self._paths = {
            key: f"{chroot}/brokers/topics/{topic}/partitions/{partition}/state"
            for key in keys
            for topic, partition in [split_key(key)]
        }
        self._keys = list(keys)
        self._lines = {n: _Line(address) for n, address in addresses.items()}
        self._now = now
        self._ending = threading.Event()
        self.samples: list[Sample] = []

    def finish(self) -> None:
        """Stop, and let go of everything."""
        self._ending.set()
        self.join(30)
        for line in self._lines.values():
            line.close()
        self._zookeeper.stop()
        self._zookeeper.close()

    def run(self) -> None:
        """Take samples."""
        with suppress(KazooTimeoutError):
            self._zookeeper.start(10)
        while not self._ending.wait(EVERY):
            with suppress(KazooException, KazooTimeoutError):
                self._look()

    def _look(self) -> None:
        began = self._now()
        before = self._states()
        marks = self._ask_all(CONSUMER)
        ends = self._ask_all(DEBUGGING_CONSUMER)
        self._zookeeper.sync_async("/").get(timeout=ZOOKEEPER_PATIENCE)
        after = self._states()
        ended = self._now()
        for key in self._keys:
            self.samples.append(
                Sample(
                    began,
                    ended,
                    key,
                    before[key],
                    {n: Mark(*found[key]) for n, found in marks.items() if key in found},
                    {n: found[key][1] for n, found in ends.items() if key in found},
                    after[key],
                )
            )

    def _states(self) -> dict[str, Known]:
        asked = {key: self._zookeeper.get_async(path) for key, path in self._paths.items()}
        states = {}
        for key, answer in asked.items():
            value, stat = answer.get(timeout=ZOOKEEPER_PATIENCE)
            state = json.loads(value)
            states[key] = Known(
                stat.version, state["leader"], state["leader_epoch"], tuple(state["isr"])
            )
        return states

    def _ask_all(self, replica_id: int) -> dict[int, Answers]:
        """Ask all brokers at once for the latest offsets; those that answer in time are in it."""
        for line in self._lines.values():
            line.ask(_latest(self._keys, replica_id))
        deadline = time.monotonic() + PATIENCE
        found = {}
        for n, line in self._lines.items():
            answers = line.answer(deadline)
            if answers is not None:
                found[n] = answers
        return found


class _Line:
    """A connection to one broker, made again when it fails; one request at a time."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        self._correlation = itertools.count(1)
        self._asked = 0

    def ask(self, request: ListOffsetsRequest) -> None:
        """Send *request*."""
        try:
            if self._socket is None:
                self._socket = socket.create_connection(self._address, PATIENCE)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._asked = next(self._correlation)
            header = RequestHeader(ApiKey.LIST_OFFSETS, VERSION, self._asked, "isr-sampler")
            self._socket.sendall(framed(messages.encode_request(header, request)))
        except OSError:
            self.close()

    def answer(self, deadline: float) -> Answers | None:
        """Return what was answered until *deadline*; None if nothing was."""
        if self._socket is None:
            return None
        try:
            (size,) = _LENGTH.unpack(self._read(4, deadline))
            frame = memoryview(self._read(size, deadline))
        except OSError:
            self.close()
            return None
        correlation, response = messages.decode_response(ApiKey.LIST_OFFSETS, VERSION, frame)
        assert correlation == self._asked
        return {
            f"{topic.name}-{one.partition_index}": (one.leader_epoch, one.offset)
            for topic in response.topics
            for one in topic.partitions
            if not one.error_code
        }

    def _read(self, size: int, deadline: float) -> bytes:
        assert self._socket is not None
        pieces = bytearray()
        while len(pieces) < size:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            piece = self._socket.recv(size - len(pieces))
            if not piece:
                raise ConnectionError("closed by the broker")
            pieces += piece
        return bytes(pieces)

    def close(self) -> None:
        """Forget the connection, and an answer that may still come."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _latest(keys: Sequence[str], replica_id: int) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsTopic] = {}
    for key in keys:
        name, partition = split_key(key)
        topic = topics.setdefault(name, ListOffsetsTopic(name=name))
        topic.partitions.append(ListOffsetsPartition(partition_index=partition, timestamp=LATEST))
    return ListOffsetsRequest(replica_id=replica_id, topics=list(topics.values()))
