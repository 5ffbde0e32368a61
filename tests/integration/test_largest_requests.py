"""The largest request of every API at a real broker: no long turn, little memory, the session kept, others answered.

For each API that is served, from its schema (`tests.kit.largest_requests`): as many elements as its budget allows in
each of its arrays, as many bytes, and one more of each; with and without tagged fields. The turns are those of the
broker's reactor, in CPU time of its thread (`benchmarks.turns`), which does not depend on what else the machine does.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.contenders import create_replicated
from kbroker.apis.api_specs import API_SPECS
from kclient.wire import messages, produce
from kclient.wire.error_codes import ErrorCode
from kclient.wire.framing import framed
from kclient.wire.messages import RequestHeader
from kclient.wire.produce import (
    MIRROR_SOURCE_CONFIG,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from kclient.wire.schema.api_versions import ApiVersionsRequest
from kclient.wire.schema.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kclient.wire.schema.find_coordinator import FindCoordinatorRequest
from kclient.wire.schema.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kclient.wire.versions import SERVED, ApiKey
from tests.kit.brokers import Broker, MakeCluster
from tests.kit.inter_broker import introduction, proof_in
from tests.kit.largest_requests import (
    CORRELATION_ID,
    FEW_TOPICS,
    GROUP,
    OLD,
    WIDE,
    WIDE_PARTITIONS,
    Large,
    largest,
    old_batches,
    versions_that_differ,
)
from tests.kit.reactor_turns import TURN_MS, longest_turn, note_turns

pytestmark = pytest.mark.slow

MEMORY = 256 << 20
"""Bytes above what the broker had before."""
PATIENCE_SECONDS = 60.0
METADATA_CHARACTERS = 3000
"""Of each committed offset; offset.metadata.max.bytes is 4096."""
OTHERS_SECONDS = 5.0
"""How long others may wait on a machine that is busy with other things, too."""

INT = struct.Struct(">i")
SMALLEST = struct.pack(">hhih", ApiKey.API_VERSIONS, 0, 1, -1)


class Other(threading.Thread):
    """A client that asks for the versions all the time, and notes how long it waited at most."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._line = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
        self._over = threading.Event()
        self.longest = 0.0
        self.asked = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        body = ApiVersionsRequest(client_software_name="other", client_software_version="1")
        request = framed(messages.encode_request(RequestHeader(18, 3, 1, "other"), body))
        file = self._line.makefile("rb")
        try:
            while True:
                began = time.monotonic()
                self._line.sendall(request)
                file.read(INT.unpack(file.read(4))[0])
                self.longest = max(self.longest, time.monotonic() - began)
                self.asked += 1
                if self._over.wait(0.02):
                    break
        except BaseException as failure:
            self.failure = failure
        finally:
            file.close()
            self._line.close()

    def end(self) -> None:
        self._over.set()
        self.join(PATIENCE_SECONDS)
        if self.failure is not None:
            raise self.failure


class Watched:
    """The broker, and what can be seen of it from outside."""

    def __init__(self, broker: Broker, proof: bytes, turns: Path) -> None:
        self.broker = broker
        self.proof = proof
        self.turns = turns
        self.base = self.memory("VmRSS")

    def settle(self) -> None:
        """Wait until the broker has freed the request before: its memory is small, or has not fallen for 0.3 s.

        The C library keeps some of what was freed.
        """
        lowest = self.memory("VmRSS")
        deadline = time.monotonic() + 0.3
        while lowest - self.base > MEMORY // 2 and time.monotonic() < deadline:
            time.sleep(0.05)
            if (now := self.memory("VmRSS")) < lowest - (1 << 20):
                lowest, deadline = now, time.monotonic() + 0.3

    def memory(self, which: str) -> int:
        """Resident bytes now (VmRSS), or the most since `/proc/PID/clear_refs` was written (VmHWM)."""
        for line in Path(f"/proc/{self.broker.pid}/status").read_text().splitlines():
            if line.startswith(which + ":"):
                return int(line.split()[1]) * 1024
        raise LookupError(which)

    def longest_turn(self, since: float, until: float) -> tuple[float, list[object]]:
        """Return the longest turn that ended between two times of the monotonic clock: ms, and its stacks."""
        return longest_turn(self.turns, since, until)


def ask(port: int, frame: bytes, proof: bytes = b"") -> bytes | None:
    """Send *frame*; return the answer, or None where the broker closed the connection instead.

    With *proof*, it is sent as a broker.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as line:
        if proof:
            header = RequestHeader(ApiKey.API_VERSIONS, 3, 1, "broker")
            line.sendall(framed(messages.encode_request(header, introduction(proof))))
            with line.makefile("rb") as file:
                file.read(INT.unpack(file.read(4))[0])
        with suppress(BrokenPipeError, ConnectionResetError):
            line.sendall(framed(frame))
        try:
            with line.makefile("rb") as file:
                head = file.read(4)
                if len(head) < 4:
                    return None
                answer: bytes = file.read(INT.unpack(head)[0])
                return answer
        except ConnectionResetError:
            return None


LOST_SESSION = re.compile(r"ZooKeeper session 0x[0-9a-f]+ (may have )?expired")
"""In a broker's log, as `kbroker.zk.session_state` writes it."""


@pytest.fixture(scope="module")
def watched(
    module_clusters: MakeCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    cluster = module_clusters(
        1, {"auto.create.topics.enable": "false", "message.max.bytes": "10000000"}, start=False
    )
    broker = cluster[1]
    turns = tmp_path_factory.mktemp("turns") / "turns"
    note_turns(broker, turns, os.environ.get("KBROKER_TURN_STACKS", "-"))
    cluster.start()
    create_replicated(broker.address, WIDE, [[1]] * WIDE_PARTITIONS)
    prefixes = ["few", *(f"deleted-{v}-" for v in versions_that_differ(ApiKey.DELETE_TOPICS))]
    few = [CreatableTopic(f"{prefix}{n}", 1, 1) for prefix in prefixes for n in range(FEW_TOPICS)]
    # A mirror copies what its source has; a producer's batch of this kind is refused.
    mark = CreatableTopicConfig(MIRROR_SOURCE_CONFIG, "source")
    few.append(CreatableTopic(OLD, 2, 1, configs=[mark]))
    header = RequestHeader(ApiKey.CREATE_TOPICS, 7, 1, "x")
    assert ask(broker.port, messages.encode_request(header, CreateTopicsRequest(few, 30_000)))
    batches = [ProducePartition(index, batch, 0) for index, batch in enumerate(old_batches())]
    frame = produce.encode_request(ProduceRequest(1, 9000, [ProduceTopic(OLD, batches)]), 9, 1, "x")
    answer = ask(broker.port, b"".join(frame))
    assert answer is not None
    outcomes = produce.decode_response(memoryview(answer), 9)[1].topics[0].partitions
    assert [outcome.error_code for outcome in outcomes] == [0, 0]
    coordinator = FindCoordinatorRequest(key=GROUP, key_type=0, coordinator_keys=[GROUP])
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        frame = messages.encode_request(RequestHeader(10, 4, 1, "x"), coordinator)
        answer = ask(broker.port, frame)
        assert answer is not None
        if messages.decode_response(10, 4, answer)[1].coordinators[0].error_code == 0:
            break
        time.sleep(0.05)
    commit(broker.port)
    time.sleep(1.5)  # until the handlers are made (`RequestPipeline.make_handlers`)
    yield Watched(broker, proof_in(cluster, 1, 1), turns)
    assert "Traceback" not in broker.log
    assert LOST_SESSION.search(broker.log) is None


def commit(port: int) -> None:
    """Commit an offset of `GROUP`, with much metadata, for each partition of `WIDE`."""
    named = [
        OffsetCommitRequestPartition(index, 7, -1, "m" * METADATA_CHARACTERS)
        for index in range(WIDE_PARTITIONS)
    ]
    request = OffsetCommitRequest(GROUP, topics=[OffsetCommitRequestTopic(WIDE, named)])
    header = RequestHeader(ApiKey.OFFSET_COMMIT, 8, 1, "x")
    answer = ask(port, messages.encode_request(header, request))
    assert answer is not None
    response = messages.decode_response(ApiKey.OFFSET_COMMIT, 8, answer)[1]
    assert {each.error_code for each in response.topics[0].partitions} == {0}


def error_code(case: Large, answer: bytes) -> int:
    _, response = messages.decode_response(case.api, case.version, memoryview(answer))
    found: int = getattr(response, "error_code", 0)
    return found


@pytest.mark.parametrize("api", SERVED, ids=lambda api: api.name)
def test_the_largest_requests_of_every_api_delay_no_other_client(
    watched: Watched, api: ApiKey
) -> None:
    broker = watched.broker
    cases = list(largest(api))
    assert any(case.is_above for case in cases)
    assert not all(case.is_above for case in cases)
    lines = len(broker.log.splitlines())
    other = Other(broker.port)
    other.start()
    problems = []
    for case in cases:
        watched.settle()
        kept = watched.memory("VmRSS") - watched.base
        Path(f"/proc/{broker.pid}/clear_refs").write_text("5")  # the peak of memory begins here
        began = time.monotonic()
        proof = watched.proof if API_SPECS[api].broker_field else b""
        answer = ask(broker.port, case.frame, proof)
        ended = time.monotonic()
        if case.is_above:
            if answer is not None and error_code(case, answer) != ErrorCode.INVALID_REQUEST:
                problems.append(f"{case}: answered, and is above the budget")
        elif answer is None:
            problems.append(f"{case}: closed, and is within the budget")
        if answer is not None:
            assert INT.unpack_from(answer)[0] == CORRELATION_ID
        # A turn is noted when it is over, and the answer may leave before: another request is answered after that.
        assert ask(broker.port, SMALLEST)
        turn, stacks = watched.longest_turn(began, time.monotonic())
        peak = watched.memory("VmHWM") - watched.base
        if peak > MEMORY:
            problems.append(f"{case}: {peak >> 20} MiB above the base, {kept >> 20} before it")
        if os.environ.get("KBROKER_TURN_STACKS"):
            text = f"{peak >> 20:4d} MiB {turn:7.1f} ms {ended - began:6.2f} s {len(answer or b''):9d} B  {case}"
            print(text)  # noqa: T201
            for place, count in stacks[:6] if turn > 50 else ():  # type: ignore[misc]
                print(f"          {count:4d} {place}")  # noqa: T201
        if turn > TURN_MS:
            problems.append(f"{case}: a turn of {turn:.0f} ms")
    other.end()
    if other.longest > OTHERS_SECONDS:
        problems.append(f"another client waited {other.longest:.1f} s")
    assert not problems, "\n".join(problems)
    assert other.asked
    written = broker.log.splitlines()[lines:]
    closed = [line for line in written if "closing" in line]
    assert len(closed) <= sum(case.is_above for case in cases)


def test_many_large_requests_at_once_share_the_turns(watched: Watched) -> None:
    broker = watched.broker
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")
    frames = [
        next(each.frame for each in largest(api) if not each.is_above)
        for api in (
            ApiKey.METADATA,
            ApiKey.LIST_OFFSETS,
            ApiKey.OFFSET_FETCH,
            ApiKey.FIND_COORDINATOR,
            ApiKey.DESCRIBE_GROUPS,
        )
    ]
    lines = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(2 * len(frames))]
    other = Other(broker.port)
    other.start()
    began = time.monotonic()

    def send(line: socket.socket, frame: bytes) -> None:
        for _ in range(2):
            line.sendall(framed(frame))

    senders = [
        threading.Thread(target=send, args=(line, frames[number % len(frames)]))
        for number, line in enumerate(lines)
    ]
    for sender in senders:
        sender.start()
    for line in lines:
        line.settimeout(PATIENCE_SECONDS)
        with line.makefile("rb") as file:
            for _ in range(2):
                assert file.read(INT.unpack(file.read(4))[0])
        line.close()
    for sender in senders:
        sender.join()
    ended = time.monotonic()
    other.end()
    assert ask(broker.port, SMALLEST)
    turn, stacks = watched.longest_turn(began, ended)
    assert turn <= TURN_MS, stacks
    assert watched.memory("VmHWM") - watched.base <= MEMORY
    assert other.longest < OTHERS_SECONDS
