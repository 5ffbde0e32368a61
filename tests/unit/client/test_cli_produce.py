"""`kclient produce`: what is read from standard input, how much of it waits, and what becomes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from io import FileIO
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kclient.cli.delivery import FEWEST_ROWS, Deliveries, Given
from kclient.cli.exit_codes import TIMED_OUT
from kclient.cli.pace import BURST_S, Pace
from kclient.cli.run import exit_code
from kclient.cli.stdin import LineBatches, _lines
from kclient.errors import KafkaTimeoutError
from kclient.producer.producer import Producer
from kclient.wire.errors import ErrorCode
from kclient.wire.produce import (
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
)
from kclient.wire.schema.init_producer_id import InitProducerIdResponse
from kclient.wire.versions import ApiKey
from tests.kit.scripted_broker import Outcome
from tests.kit.scripted_cluster import ScriptedCluster


class ProduceOnScriptedCluster:
    """The deliveries of one `kclient produce` to topic "t" on scripted brokers; `answer` acknowledges them."""

    def __init__(self, most: int, rate: float | None = None, **settings: Any) -> None:
        self.scripted = ScriptedCluster({"t": 1})
        self.scripted.answers[ApiKey.INIT_PRODUCER_ID] = lambda _: InitProducerIdResponse(
            producer_id=5, producer_epoch=0
        )
        self.producer: Producer[Any, Any] = Producer(reactor=self.scripted.clock, **settings)
        self.scripted.attach(self.producer.cluster)
        pace = None if rate is None else Pace(self.scripted.clock, rate)
        self.deliveries = Deliveries(self.producer, "t", most=most, pace=pace)

    def send(self, values: Iterable[bytes]) -> Outcome:
        records = (Given(None, value, []) for value in values)
        return Outcome(Deferred.fromCoroutine(self.deliveries.send(records)))

    def send_rows(self, values: Iterable[bytes], keys: list[bytes | None] | None = None) -> Outcome:
        return Outcome(Deferred.fromCoroutine(self.deliveries.send_rows([*values], keys, [])))

    def answer(self, code: int = 0) -> None:
        """Answer every Produce that waits."""
        self.scripted.pass_time(0.2)
        for asked in self.scripted.waiting(ApiKey.PRODUCE):
            request: ProduceRequest = asked.message
            [topic] = request.topics
            answers = [ProducePartitionResponse(p.index, error_code=code, base_offset=0)
                       for p in topic.partitions]  # fmt: skip
            asked.answer(ProduceResponse([ProduceTopicResponse("t", answers)]))
        self.scripted.pass_time(0.2)


def test_only_so_many_records_wait_for_their_acknowledgements() -> None:
    """A million lines waited in the producer, and most of them for longer than their delivery timeout."""
    it = ProduceOnScriptedCluster(most=100)
    sending = it.send(b"%d" % n for n in range(250))
    it.scripted.pass_time(0.2)
    assert it.deliveries.sent == 100
    it.answer()
    assert it.deliveries.delivered == 100
    assert it.deliveries.sent == 200
    it.answer()
    assert sending.fired
    it.answer()
    assert (it.deliveries.delivered, it.deliveries.failed) == (250, 0)


@pytest.mark.parametrize("as_rows", [False, True])
def test_at_a_rate_records_are_sent_when_they_are_due(as_rows: bool) -> None:
    it = ProduceOnScriptedCluster(most=10_000, rate=100)
    values = [b"%d" % n for n in range(2 * FEWEST_ROWS)]
    sending = it.send_rows(values) if as_rows else it.send(values)
    assert it.deliveries.sent == 1
    it.scripted.pass_time(0.5, step=0.01)
    assert 50 <= it.deliveries.sent <= 52
    it.scripted.pass_time(0.5, step=0.01)
    assert sending.fired
    assert it.deliveries.sent == len(values)


def test_after_a_pause_of_the_input_its_records_are_not_sent_faster() -> None:
    it = ProduceOnScriptedCluster(most=10_000, rate=100)
    assert it.send([b"first"]).fired
    it.scripted.pass_time(60)
    it.send([b"%d" % n for n in range(1000)])
    assert it.deliveries.sent <= 1 + 100 * BURST_S + 1
    it.scripted.pass_time(0.5, step=0.01)
    assert 50 <= it.deliveries.sent <= 1 + 100 * (BURST_S + 0.5) + 1


def test_no_more_records_are_sent_after_one_was_not_acknowledged_in_time() -> None:
    it = ProduceOnScriptedCluster(most=100, delivery_timeout_ms=2000, max_block_ms=2000)
    it.scripted.answers[ApiKey.PRODUCE] = lambda _: ProduceResponse(
        [ProduceTopicResponse("t", [ProducePartitionResponse(0, ErrorCode.NOT_ENOUGH_REPLICAS)])]
    )
    sending = it.send(b"%d" % n for n in range(1000))
    for _ in range(30):
        it.scripted.pass_time(0.2)
    assert sending.fired
    assert it.deliveries.timed_out
    assert (it.deliveries.sent, it.deliveries.delivered, it.deliveries.failed) == (100, 0, 100)


@pytest.mark.parametrize("memory", [33_554_432, 1000])
def test_kafka_console_producer_delivers_what_comes_after_an_outage(memory: int) -> None:
    """It dropped every later line without a word, and its exit code is 0."""
    it = ProduceOnScriptedCluster(
        most=100, delivery_timeout_ms=2000, max_block_ms=1000, buffer_memory=memory, batch_size=500
    )
    deliveries = Deliveries(it.producer, "t", goes_on=True)
    it.deliveries = deliveries
    it.send(b"%0100d" % n for n in range(20))
    it.scripted.pass_time(30)
    for asked in it.scripted.waiting(ApiKey.PRODUCE):
        asked.fail()
    it.scripted.pass_time(30)
    assert deliveries.problems.total() == 20
    assert not deliveries.undelivered
    sending = it.send([b"later"])
    it.answer()
    assert sending.fired
    assert deliveries.delivered == 1


def test_equal_errors_are_counted_and_not_repeated() -> None:
    it = ProduceOnScriptedCluster(most=10)
    it.send([b"a", b"b", b"c"])
    it.answer(code=ErrorCode.INVALID_RECORD)
    assert list(it.deliveries.problems.values()) == [3]
    assert not it.deliveries.timed_out


def test_many_lines_are_rows_and_only_so_many_wait() -> None:
    it = ProduceOnScriptedCluster(most=100)
    for first in range(0, 300, 150):
        sending = it.send_rows(b"%d" % n for n in range(first, first + 150))
    assert it.deliveries.sent == 150
    it.answer()
    assert sending.fired
    it.answer()
    assert (it.deliveries.sent, it.deliveries.delivered, it.deliveries.failed) == (300, 300, 0)


def test_a_few_lines_wait_for_linger_as_records_do() -> None:
    """Columns are sent at once: each line of a slow pipe would be a batch."""
    it = ProduceOnScriptedCluster(most=100, linger_ms=5000)
    it.send_rows([b"a"] * (FEWEST_ROWS - 1))
    it.scripted.pass_time(1)
    assert not it.scripted.waiting(ApiKey.PRODUCE)
    it.send_rows([b"a"] * FEWEST_ROWS)
    it.scripted.pass_time(1)
    assert it.scripted.waiting(ApiKey.PRODUCE)


def test_one_line_that_is_too_large_does_not_fail_the_others() -> None:
    it = ProduceOnScriptedCluster(most=1000, max_request_size=1000)
    it.send_rows([*[b"a"] * FEWEST_ROWS, b"b" * 2000, *[b"c"] * FEWEST_ROWS])
    while it.deliveries.undelivered:
        it.answer()
    assert (it.deliveries.delivered, it.deliveries.failed) == (2 * FEWEST_ROWS, 1)
    assert [*it.deliveries.problems.values()] == [1]


def test_rows_that_fail_are_counted_under_their_cause() -> None:
    it = ProduceOnScriptedCluster(most=1000)
    keys: list[bytes | None] = [b"k"] * 200
    it.send_rows([b"a"] * 200, keys)
    it.answer(code=ErrorCode.INVALID_RECORD)
    assert (it.deliveries.delivered, it.deliveries.failed) == (0, 200)
    [(text, count)] = it.deliveries.problems.items()
    assert count == 200
    assert "rows" not in text


# --- standard input


def test_the_two_bytes_of_a_line_end_may_come_apart() -> None:
    kept_open, other_end = os.pipe()
    stream = FileIO(kept_open)
    lines = _lines(stream)
    try:
        os.write(other_end, b"a\r\nb\r")
        assert next(lines) == [b"a"]
        os.write(other_end, b"\nc\n")
        assert next(lines) == [b"b", b"c"]
    finally:
        os.close(other_end)
        stream.close()


IDLE = """
import threading, time
from kclient.cli.stdin import LineBatches
class Reactor:
    def callFromThread(self, *call): pass
LineBatches(Reactor(), ["-"])._start()
time.sleep(0.1)
"""


def test_the_process_ends_while_standard_input_is_idle() -> None:
    """At Ctrl-C in an idle `kclient produce` the interpreter aborted with the stacks of all threads."""
    kept_open, other_end = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-c", IDLE], stdin=kept_open, capture_output=True, timeout=20
        )
    finally:
        os.close(kept_open)
        os.close(other_end)
    assert (done.returncode, done.stderr) == (0, b"")


def test_lines_are_read_in_large_pieces(tmp_path: Any) -> None:
    """A file of 200,000 lines is a few pieces, without a switch of threads for every 64 KiB."""
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%07d\r\n" % n for n in range(200_000)) + b"end")
    pieces: list[Any] = []

    class Reactor:
        def callFromThread(self, call: Any, piece: Any) -> None:  # noqa: N802 (Twisted's name)
            pieces.append(piece)
            batches._room.release()

    batches = LineBatches(Reactor(), [str(path)])
    batches._read()
    *lists, last = pieces
    assert last is None
    assert len(lists) <= 4
    lines = [line for piece in lists for line in piece]
    assert lines == [b"%07d" % n for n in range(200_000)] + [b"end"]


def test_lines_of_a_file_are_read_in_turns_of_the_reactor(tmp_path: Any) -> None:
    """Without a thread: its switches took a tenth of the time of a million lines."""
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%07d\r\n" % n for n in range(200_000)) + b"end")
    turns: list[Callable[[], object]] = []

    class Reactor:
        def callLater(self, _delay: float, call: Any, *args: Any) -> None:  # noqa: N802 (Twisted's name)
            turns.append(partial(call, *args))

    batches = LineBatches(Reactor(), [str(path), str(path)])
    pieces: list[list[bytes]] = []

    async def read() -> None:
        async for lines in batches:
            pieces.append(lines)

    done = Deferred.fromCoroutine(read())
    for number in range(4):
        assert len(pieces) == number
        turns.pop()()
    batches.end()
    turns.pop()()
    assert done.called
    assert len(pieces) == 4
    lines = [line for piece in pieces[:3] for line in piece]
    assert lines[:200_001] == [b"%07d" % n for n in range(200_000)] + [b"end"]


# --- exit codes


def test_a_timeout_names_the_option_that_waits_longer(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(Failure(KafkaTimeoutError("creating topics: gave up after 10 s"))) == TIMED_OUT
    assert capsys.readouterr().err == (
        "kclient: creating topics: gave up after 10 s (-m SECONDS waits longer)\n"
    )
