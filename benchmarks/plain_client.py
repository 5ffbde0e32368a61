"""A client over a plain socket, one request at a time: for monitors, without the cost of a client library."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from kclient.wire import fetch, messages, produce
from kclient.wire.framing import framed
from kclient.wire.messages import RequestHeader
from kclient.wire.record_writer import Record, encode_batch
from kclient.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kclient.wire.schema.metadata import MetadataRequest, MetadataRequestTopic
from kclient.wire.versions import ApiKey

_METADATA, _LIST_OFFSETS, _PRODUCE, _FETCH = 5, 4, 8, 11
_EARLIEST = -2
_SAMPLE_EVERY_S, _LOOK_EVERY_S = 0.02, 0.1
_LENGTH = struct.Struct(">i")


class PlainClient:
    """One connection to the broker at 127.0.0.1:*port*; its methods raise OSError when the connection is lost."""

    def __init__(self, port: int, timeout: float = 10.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> PlainClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def metadata(self, topics: Sequence[str]) -> Any:
        """Return the metadata of the brokers and of *topics*."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=False,
        )
        frame = self._send(
            messages.encode_request(RequestHeader(ApiKey.METADATA, _METADATA, 1, "watch"), request)
        )
        return messages.decode_response(ApiKey.METADATA, _METADATA, frame)[1]

    def led(self, topic: str, partitions: Sequence[int]) -> set[int]:
        """Return which of *partitions* this broker leads: those for which it answers ListOffsets."""
        request = ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=index, current_leader_epoch=-1, timestamp=_EARLIEST
                        )
                        for index in partitions
                    ],
                )
            ],
        )
        header = RequestHeader(ApiKey.LIST_OFFSETS, _LIST_OFFSETS, 1, "watch")
        frame = self._send(messages.encode_request(header, request))
        response = messages.decode_response(ApiKey.LIST_OFFSETS, _LIST_OFFSETS, frame)[1]
        return {
            each.partition_index
            for found in response.topics
            for each in found.partitions
            if not each.error_code
        }

    def produce(self, topic: str, partition: int, batch: bytes) -> int:
        """Append one batch with acks=1; return its offset. Raise RuntimeError with the error code."""
        wanted = produce.ProducePartition(partition, batch)
        request = produce.ProduceRequest(1, 10_000, [produce.ProduceTopic(topic, [wanted])])
        frame = self._send(b"".join(produce.encode_request(request, _PRODUCE, 1, "watch")))
        answer = produce.decode_response(memoryview(frame), _PRODUCE)[1].topics[0].partitions[0]
        if answer.error_code:
            raise RuntimeError(f"produce to {topic}-{partition}: error {answer.error_code}")
        return answer.base_offset

    def fetch(self, topic: str, partition: int, offset: int) -> int:
        """Fetch from *offset* without waiting; return the bytes. Raise RuntimeError with the error code."""
        wanted = fetch.FetchPartition(partition, offset, 1 << 16)
        request = fetch.FetchRequest(0, 1, [fetch.FetchTopic(topic, [wanted])])
        frame = self._send(fetch.encode_request(request, _FETCH, 1, "watch"))
        answer = fetch.decode_response(memoryview(frame), _FETCH)[1].topics[0].partitions[0]
        if answer.error_code:
            raise RuntimeError(f"fetch from {topic}-{partition}: error {answer.error_code}")
        return answer.records_size

    def _send(self, request: bytes) -> bytes:
        self._socket.sendall(framed(request))
        (size,) = _LENGTH.unpack(self._read(4))
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            data += piece
        return bytes(data)


def until_all_report(
    ports: Sequence[int],
    topic: str,
    holds: Callable[[int, list[int]], bool],
    *,
    sample: str | None = None,
    patience: float = 60.0,
) -> float:
    """Poll metadata of the brokers at *ports* until *holds* for every partition's leader and ISR; return the seconds.

    Metadata of thousands of partitions would load the brokers and the machine. So each broker is first polled for the
    small topic *sample*, which changes in the same way, and for *topic* only when *holds* there. Raise RuntimeError
    after *patience* seconds.
    """
    began = time.monotonic()
    left = list(ports)
    while left:
        if time.monotonic() - began > patience:
            raise RuntimeError(f"{topic} did not settle within {patience:.0f} s")
        port = left[0]
        if sample is not None and not _holds(port, sample, holds):
            time.sleep(_SAMPLE_EVERY_S)
        elif not _holds(port, topic, holds):
            time.sleep(_LOOK_EVERY_S)
        else:
            left.remove(port)
    return time.monotonic() - began


def _holds(port: int, topic: str, holds: Callable[[int, list[int]], bool]) -> bool:
    with PlainClient(port) as broker:
        (found,) = broker.metadata([topic]).topics
    return all(
        each.leader_id >= 0 and holds(each.leader_id, each.isr_nodes) for each in found.partitions
    )


def small_batch() -> bytes:
    """Return a batch with one record of 100 B."""
    return bytes(encode_batch([Record(0, int(time.time() * 1000), None, bytes(100))]))
