"""A client with its own protocol code that never retries: its record of a send is exact."""

from __future__ import annotations

import itertools
import random
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

from kclient.wire import fetch_request, fetch_response, messages, produce
from kclient.wire.batches import check_crc, iterate
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import CorruptMessage
from kclient.wire.fetch_request import FetchPartition, FetchRequest, FetchTopic
from kclient.wire.framing import framed
from kclient.wire.messages import RequestHeader
from kclient.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from kclient.wire.records import Record, decode_batch, encode_batch
from kclient.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kclient.wire.schema.metadata import MetadataRequest, MetadataRequestTopic
from kclient.wire.versions import ApiKey
from tests.chaos.client import Ended, Positions, split_key
from tests.checker import outcomes
from tests.checker.outcomes import Outcome

PRODUCE_VERSION, FETCH_VERSION, METADATA_VERSION, LIST_OFFSETS_VERSION = 9, 12, 9, 6
REQUEST_TIMEOUT = 3.0
_LENGTH = struct.Struct(">i")
Address = tuple[str, int]


class RawClient:
    """One connection per broker, one request at a time."""

    most_values = 3

    def __init__(
        self, bootstrap: Sequence[Address], *, acks: str, chance: random.Random, size: int = 0
    ) -> None:
        """*size*: so many bytes are sent beside each value, as its record's key."""
        self.acks = acks
        self.send_meta: dict[str, Any] = {"acks": acks, "client": f"raw-acks-{acks}"}
        self._size = size
        self._bootstrap = list(bootstrap)
        self._chance = chance
        self._correlation = itertools.count(1)
        self._connections: dict[Address, socket.socket] = {}
        self._brokers: dict[int, Address] = {}
        self._leaders: dict[str, int] = {}
        self._positions: Positions = {}

    # -- what a worker asks for ----------------------------------------------------------------

    def send(self, key: str, values: Sequence[int], done: Callable[[Ended], None]) -> None:
        """Send one batch, and wait for the answer."""
        leader = self._leader(key)
        connection = self._connect(leader)
        if connection is None:
            done(Ended(Outcome.FAIL, err=f"no connection to the leader, {leader}"))
            return
        topic, partition = split_key(key)
        now = time.time_ns() // 10**6
        records = [
            Record(n, now, bytes(self._size) or None, b"%d" % value, [])
            for n, value in enumerate(values)
        ]
        request = ProduceRequest(
            -1 if self.acks == "all" else int(self.acks),
            2500,
            [ProduceTopic(topic, [ProducePartition(partition, encode_batch(records))])],
        )
        number = next(self._correlation)
        pieces = produce.encode_request(request, PRODUCE_VERSION, number, "raw")
        try:
            frame = self._exchange(leader, b"".join(pieces))
        except OSError as error:
            self._leaders.clear()
            done(Ended(Outcome.INFO, err=repr(error), broker=leader))
            return
        _, response = produce.decode_response(frame, PRODUCE_VERSION)
        answer = response.topics[0].partitions[0]
        code = answer.error_code
        if code:
            self._leaders.clear()
        outcome = outcomes.of_send(code, answer.base_offset, acks=self.acks)
        offset = answer.base_offset if outcome is Outcome.OK else None
        done(Ended(outcome, offset, ErrorCode(code).name if code else None, leader))

    def assign(self, positions: Positions) -> None:
        """Read these keys from there on."""
        self._positions = dict(positions)

    def poll(self, timeout: float) -> dict[str, list[tuple[int, int]]]:
        """Fetch from one leader what it leads of our keys."""
        leaders = {key: self._leader(key) for key in self._positions}
        led = sorted({leader for leader in leaders.values() if leader >= 0})
        if not led:
            time.sleep(0.05)
            return {}
        leader = self._chance.choice(led)
        keys = [key for key, of_key in leaders.items() if of_key == leader]
        try:
            return self._fetch(leader, keys, timeout)
        except OSError:
            self._leaders.clear()
            return {}

    def flush(self, timeout: float) -> None:
        """Nothing is ever under way."""

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def end_of(self, key: str) -> int | None:
        """Ask the leader for the high watermark; None if it does not know yet."""
        leader = self._leader(key)
        if self._connect(leader) is None:
            return None
        topic, partition = split_key(key)
        latest = ListOffsetsPartition(partition_index=partition, timestamp=-1)
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[latest])]
        )
        try:
            answer = self._ask(leader, ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION, request)
        except OSError:
            self._leaders.clear()
            return None
        found = answer.topics[0].partitions[0]
        if found.error_code:
            self._leaders.clear()
            return None
        return int(found.offset)

    # -- requests ------------------------------------------------------------------------------

    def _fetch(
        self, leader: int, keys: Sequence[str], timeout: float
    ) -> dict[str, list[tuple[int, int]]]:
        topics: dict[str, list[FetchPartition]] = {}
        for key in keys:
            topic, partition = split_key(key)
            wanted = FetchPartition(partition, self._positions[key], 256 * 1024)
            topics.setdefault(topic, []).append(wanted)
        request = FetchRequest(
            int(timeout * 1000), 1, [FetchTopic(name, wanted) for name, wanted in topics.items()]
        )
        number = next(self._correlation)
        message = fetch_request.encode_request(request, FETCH_VERSION, number, "raw")
        frame = self._exchange(leader, message)
        _, response = fetch_response.decode_response(frame, FETCH_VERSION)
        found: dict[str, list[tuple[int, int]]] = {}
        for fetched in response.topics:
            for answer in fetched.partitions:
                key = f"{fetched.name}-{answer.partition}"
                if answer.error_code:
                    self._leaders.clear()
                    continue
                records = self._decode(b"".join(bytes(part) for part in answer.records), key)  # type: ignore[arg-type]
                if records:
                    found[key] = records
        return found

    def _decode(self, content: bytes, key: str) -> list[tuple[int, int]]:
        position = self._positions[key]
        records = []
        for info in iterate(content):
            try:
                check_crc(content, info)
            except CorruptMessage:  # what it was sent is not what was written: it goes no further
                break
            for record in decode_batch(content, info):
                if record.offset >= position:
                    records.append((record.offset, int(record.value or b"-1")))
        if records:
            self._positions[key] = records[-1][0] + 1
        return records

    def _ask(self, broker: int, api: ApiKey, version: int, request: object) -> Any:
        header = RequestHeader(api, version, next(self._correlation), "raw")
        frame = self._exchange(broker, messages.encode_request(header, request))
        return messages.decode_response(api, version, frame)[1]

    def _exchange(self, broker: int, message: bytes) -> memoryview:
        """Send a request and wait for its answer; after an OSError the connection is gone."""
        connection = self._connect(broker)
        if connection is None:
            raise ConnectionError(f"broker {broker} cannot be reached")
        try:
            connection.sendall(framed(message))
            deadline = time.monotonic() + REQUEST_TIMEOUT
            (size,) = _LENGTH.unpack(_read(connection, 4, deadline))
            return memoryview(_read(connection, size, deadline))
        except OSError:
            self._connections.pop(self._brokers[broker]).close()
            raise

    def _connect(self, broker: int) -> socket.socket | None:
        address = self._brokers.get(broker)
        if address is None:
            return None
        connection = self._connections.get(address)
        if connection is None:
            try:
                connection = socket.create_connection(address, 1.0)
            except OSError:
                self._leaders.clear()
                return None
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections[address] = connection
        return connection

    def _leader(self, key: str) -> int:
        if key not in self._leaders:
            self._refresh(split_key(key)[0])
        return self._leaders.get(key, -1)

    def _refresh(self, topic: str) -> None:
        """Read the leaders from any broker."""
        address = self._chance.choice(self._bootstrap)
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        self._brokers[-2] = address
        if self._connect(-2) is None:
            time.sleep(0.05)
            return
        try:
            answer = self._ask(-2, ApiKey.METADATA, METADATA_VERSION, request)
        except OSError:
            return
        for broker in answer.brokers:
            self._brokers[broker.node_id] = (broker.host, broker.port)
        for found in answer.topics:
            for partition in found.partitions:
                if partition.leader_id >= 0:
                    key = f"{found.name}-{partition.partition_index}"
                    self._leaders[key] = partition.leader_id
        if not any(key.startswith(topic) for key in self._leaders):
            time.sleep(0.05)


def _read(connection: socket.socket, size: int, deadline: float) -> bytes:
    pieces = bytearray()
    while len(pieces) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        connection.settimeout(left)
        piece = connection.recv(size - len(pieces))
        if not piece:
            raise ConnectionError("closed by the broker")
        pieces += piece
    return bytes(pieces)
