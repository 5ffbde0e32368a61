"""Hostile bytes at a real broker: it answers or closes the connection, stays up, and serves other clients (S41).

Each case is sent over a connection of its own. The broker has to close it, or to answer with a frame with the
correlation id of the request; afterwards an honest client is served as before, the process is the same, its memory has
not grown by more than 32 MB over all cases together, and no case put more than a few lines or any traceback into the
log.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from kclient.wire import fetch, messages, produce
from kclient.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from kclient.wire.messages import RequestHeader
from kclient.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from kclient.wire.schema.api_versions import ApiVersionsRequest
from kclient.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kclient.wire.schema.metadata import MetadataRequest, MetadataRequestTopic
from kclient.wire.versions import SERVED
from tests.kit.brokers import Broker, MakeCluster

pytestmark = pytest.mark.slow

LIMIT = 1 << 20
"""socket.request.max.bytes of the broker under attack."""

CORRELATION_ID = 0x5EED
INT = struct.Struct(">i")


def framed(body: bytes) -> bytes:
    return INT.pack(len(body)) + body


def header(
    api: int, version: int, client_id: bytes | None = b"x", size: int | None = None
) -> bytes:
    length = (-1 if client_id is None else len(client_id)) if size is None else size
    return struct.pack(">hhih", api, version, CORRELATION_ID, length) + (client_id or b"")


def request(api: int, version: int, body: object) -> bytes:
    return messages.encode_request(RequestHeader(api, version, CORRELATION_ID, "x"), body)


METADATA = request(3, 9, MetadataRequest(topics=None))
FLEXIBLE = header(3, 12) + b"\x00"
OLD = header(3, 1)

FRAMING = {
    "length -1": INT.pack(-1),
    "length -2^31": INT.pack(-(2**31)),
    "length 2^31-1": INT.pack(2**31 - 1),
    "length limit+1": INT.pack(LIMIT + 1),
    "empty frame": framed(b""),
    **{f"frame of {n} bytes": framed(b"\0" * n) for n in range(1, 8)},
    "frame of the limit": framed(bytes(LIMIT)),
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS ClientHello": bytes.fromhex("16030100c8010000c40303") + os.urandom(190),
    "ssh banner": b"SSH-2.0-OpenSSH_9.2\r\n",
    "PROXY header": b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n",
    "random megabyte": random.Random(1).randbytes(1 << 20),
}

HEADERS = {
    **{f"api key {api}": framed(header(api, 0)) for api in (-1, 9999, 52, 70, 32767)},
    **{
        f"{api.name} v{version}": framed(header(api, version))
        for api, versions in SERVED.items()
        for version in (-1, versions.max + 1, 32767)
    },
    "client id null": framed(header(3, 0, None) + INT.pack(0)),
    "client id -2": framed(header(3, 0, b"", -2)),
    "client id past the end": framed(header(3, 0, b"x", 32767)),
    "client id of 32767 bytes": framed(header(3, 0, b"y" * 32767) + INT.pack(0)),
    "client id that is no UTF-8": framed(header(3, 0, b"\xff\xfe") + INT.pack(0)),
    "client id with control characters": framed(
        header(3, 0, b"a\r\n2026 FATAL x\x1b[2J\0") + INT.pack(0)
    ),
    "flexible body behind a plain header": framed(header(3, 12) + b"\x01\x00\x00\x00\x00"),
    "plain body behind a flexible header": framed(header(3, 1) + b"\x00" + INT.pack(-1)),
    "2^31 tagged fields": framed(header(3, 12) + b"\xff\xff\xff\xff\x0f"),
    "a tagged field past the end": framed(header(3, 12) + b"\x01\x00\xff\x7f"),
    "a tagged field twice": framed(
        header(3, 12) + b"\x02\x00\x00\x00\x00" + b"\x01\x00\x00\x00\x00"
    ),
    **{f"{api} without a body": framed(header(api, SERVED[api].max) + b"\x00") for api in SERVED},  # type: ignore[dict-item]
    **{
        f"random body for api {int(api)}": framed(
            header(api, SERVED[api].max) + b"\x00" + random.Random(int(api)).randbytes(200)
        )
        for api in SERVED
    },
}

PRIMITIVES = {
    **{f"array of {n}": framed(OLD + INT.pack(n)) for n in (-2, 1, 2**31 - 1, 10**6)},
    "array of 10^5 empty strings": framed(OLD + INT.pack(10**5) + b"\0\0" * 10**5),
    "compact array of 2^31": framed(FLEXIBLE + b"\xff\xff\xff\xff\x0f"),
    "varint of six bytes": framed(FLEXIBLE + b"\xff" * 6),
    "varint over-long": framed(FLEXIBLE + b"\x80\x80\x80\x80\x80\x01"),
    **{f"string of {n}": framed(OLD + INT.pack(1) + struct.pack(">h", n)) for n in (-1, -2, 32767)},
    "string that is no UTF-8": framed(OLD + INT.pack(1) + b"\0\2\xc3\x28"),
    "string with a surrogate": framed(OLD + INT.pack(1) + b"\0\3\xed\xa0\x80"),
    "string with NUL": framed(OLD + INT.pack(1) + b"\0\3a\0b"),
    "topic names that are paths": framed(
        request(
            3,
            4,
            MetadataRequest([MetadataRequestTopic(name=n) for n in ("../x", "a/b", ".", "..")]),
        )
    ),
    "bool 7": framed(header(3, 4) + INT.pack(0) + b"\7"),
    "zero topic id": framed(FLEXIBLE + b"\x02" + bytes(16) + b"\x00\x00" + b"\x00\x00\x00"),
    "trailing garbage": framed(METADATA + b"garbage"),
}


def fetching(count: int, **fields: int) -> bytes:
    wanted = [FetchPartition(n % 7, -5 + n, 2**31 - 1) for n in range(count)]
    values = {"max_wait_ms": 100, "min_bytes": 1, "max_bytes": 2**31 - 1, **fields}
    body = FetchRequest(topics=[FetchTopic("t", wanted)], **values)
    return framed(fetch.encode_request(body, 11, CORRELATION_ID, "x"))


def producing(records: bytes | None, acks: int = 1) -> bytes:
    body = ProduceRequest(acks, 1000, [ProduceTopic("t", [ProducePartition(0, records)])])
    return framed(b"".join(produce.encode_request(body, 9, CORRELATION_ID, "x")))


AMPLIFICATION = {
    "metadata for 20,000 unknown topics": framed(
        request(3, 9, MetadataRequest([MetadataRequestTopic(name=f"n{n}") for n in range(20_000)]))
    ),
    "fetch of 20,000 partitions": fetching(20_000),
    "fetch with negative limits": fetching(1, max_bytes=-1, min_bytes=-1, max_wait_ms=-1),
    "fetch that waits for 24 days": fetching(0, max_wait_ms=2**31 - 1),
    "fetch as a follower": fetching(3, replica_id=1),
    "fetch with a session of another client": fetching(1, session_id=77, session_epoch=9),
    "offsets at no time": framed(
        request(2, 9, ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, -9)])]))
    ),
    **{f"produce {name}": producing(records) for name, records in {
        "nothing": None, "no bytes": b"", "zeros": bytes(200), "noise": os.urandom(500),
        "a header alone": bytes(16) + b"\2" + bytes(44)}.items()},
    "produce with acks 5": producing(b"", acks=5),
    "produce with acks 0 without a leader": producing(b"junk", acks=0),
    **{f"inter-broker api {int(api)}": framed(header(api, versions.max) + b"\x00" + bytes(40))
       for api, versions in SERVED.items() if 4 <= api <= 7},
}  # fmt: skip

CASES = {**FRAMING, **HEADERS, **PRIMITIVES, **AMPLIFICATION}


def memory_of(broker: Broker) -> int:
    """Resident bytes of the broker's process."""
    with open(f"/proc/{broker.pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def connect(broker: Broker) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", broker.port), timeout=10)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return line


def frame_from(line: socket.socket) -> bytes | None:
    """The next frame; None when the broker closed the connection instead."""
    try:
        got = b""
        while len(got) < 4 or len(got) < 4 + INT.unpack_from(got)[0]:
            wanted = 4 if len(got) < 4 else 4 + INT.unpack_from(got)[0]
            piece = line.recv(wanted - len(got))
            if not piece:
                return None
            got += piece
        return got[4:]
    except ConnectionResetError:
        return None


def outcome(broker: Broker, sent: bytes) -> str:
    """Send; return "closed" or "answered", or fail."""
    with connect(broker) as line:
        with suppress(OSError):  # reset already: shutdown raises ENOTCONN then
            line.sendall(sent)
            line.shutdown(socket.SHUT_WR)
        answer = frame_from(line)
        if answer is None:
            return "closed"
        assert len(answer) >= 4
        assert INT.unpack_from(answer)[0] == CORRELATION_ID
        return "answered"


def honest(broker: Broker) -> None:
    """Ask for the versions, and get them."""
    with connect(broker) as line:
        body = ApiVersionsRequest(client_software_name="honest", client_software_version="1")
        line.sendall(framed(request(18, 3, body)))
        answer = frame_from(line)
        assert answer is not None
        assert messages.decode_response(18, 3, answer)[1].error_code == 0


@pytest.fixture
def broker(broker_clusters: MakeCluster) -> Broker:
    cluster = broker_clusters(
        1,
        {
            "socket.request.max.bytes": str(LIMIT),
            "message.max.bytes": "500000",
            "queued.max.request.bytes": str(4 * LIMIT),
            "connections.max.idle.ms": "3000",
            "auto.create.topics.enable": "true",
        },
        forked=False,
    )
    return cluster[1]


def test_every_case_is_answered_or_closed_and_the_broker_stays_up(broker: Broker) -> None:
    honest(broker)
    lines = len(broker.log.splitlines())
    pid, memory = broker.pid, memory_of(broker)
    outcomes = {}
    for name, sent in CASES.items():
        outcomes[name] = outcome(broker, sent)
    assert broker.process is not None
    assert broker.process.poll() is None
    assert broker.pid == pid
    honest(broker)
    assert (memory_of(broker) - memory) / 1e6 < 32
    assert {name for name in FRAMING if outcomes[name] == "answered"} <= {"frame of the limit"}
    assert outcomes["API_VERSIONS v32767"] == "answered"
    assert outcomes["METADATA v32767"] == "closed"
    written = broker.log.splitlines()[lines:]
    # The controller logs topics that a case created; the case itself has one line.
    assert len([line for line in written if "closing" in line]) <= len(CASES)
    assert not any("2026 FATAL" in line and "\\x0d" not in line for line in written)


def slowly(broker: Broker, sent: bytes, pieces: int) -> bytes | None:
    with connect(broker) as line:
        step = max(1, len(sent) // pieces)
        for start in range(0, len(sent), step):
            line.sendall(sent[start : start + step])
            time.sleep(0.002)
        return frame_from(line)


@pytest.mark.parametrize("pieces", [2, 4, 1000])
def test_a_frame_in_pieces_is_a_frame(broker: Broker, pieces: int) -> None:
    assert slowly(broker, framed(METADATA), pieces) is not None


def test_ten_thousand_pipelined_requests_are_answered_in_order(broker: Broker) -> None:
    count = 10_000
    with connect(broker) as line:
        sent = b"".join(framed(struct.pack(">hhih", 18, 0, number, -1)) for number in range(count))
        line.settimeout(30)
        line.sendall(sent)
        file = line.makefile("rb")
        for number in range(count):
            (size,) = INT.unpack(file.read(4))
            assert INT.unpack_from(file.read(size))[0] == number
        file.close()


def test_silence_after_an_announcement_holds_no_memory_and_ends(broker: Broker) -> None:
    memory = memory_of(broker)
    lines = [connect(broker) for _ in range(200)]
    for line in lines:
        line.sendall(INT.pack(LIMIT) + b"\0" * 100)
    honest(broker)
    assert (memory_of(broker) - memory) / 1e6 < 32 + 26, "the first growth of each: 128 KiB"
    assert eventually(lambda: frame_from(lines[0]) is None, 12)
    for line in lines:
        line.close()


def test_clients_that_never_read_do_not_fill_the_memory(broker: Broker) -> None:
    memory = memory_of(broker)
    lines = [connect(broker) for _ in range(50)]
    for line in lines:
        line.setblocking(False)
        with suppress(BlockingIOError):
            for _ in range(2000):
                line.send(framed(METADATA) * 10)
    for _ in range(20):
        honest(broker)
    assert (memory_of(broker) - memory) / 1e6 < 64
    for line in lines:
        line.close()


def eventually(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
