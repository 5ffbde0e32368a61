"""Reading a history: pairs, and what is refused; the table of outcomes; the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kclient.wire.error_codes import ErrorCode
from tests.checker import outcomes
from tests.checker.history import Event, HistoryError, operations, parse_line, read_history
from tests.checker.history_builder import Builder
from tests.checker.outcomes import Outcome
from tests.checker.verdict import check


def test_a_line_survives_the_way_to_the_file_and_back() -> None:
    event = Event(3, 5, "nemesis", "info", "nemesis", {"kill": 2}, None, {"x": [1]})
    assert parse_line(event.to_json()) == event


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"i": 1}',
        '{"i":1,"t":1,"p":1,"type":"perhaps","f":"send"}',
        '{"i":1,"t":1,"p":1,"type":"ok","f":"send","v":[["sent","k",[1,1]]]}',
        '{"i":1,"t":1,"p":1,"type":"ok","f":"poll","v":[["poll",{"k":[[null,1]]}]]}',
    ],
)
def test_what_is_no_event_is_named_by_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(Builder().send(1, 0).events[0].to_json() + "\n" + line + "\n")
    with pytest.raises(HistoryError, match="line 2"):
        read_history(path)


def test_operations_that_overlap_are_paired_by_their_beginnings() -> None:
    builder = Builder()
    first = builder.event(1, "invoke", "send", [["send", "k", [None, 1]]])
    second = builder.event(1, "invoke", "send", [["send", "k", [None, 2]]])
    builder.event(1, "info", "send", None, op=second.i)
    builder.event(1, "ok", "send", [["send", "k", [0, 1]]], op=first.i)
    one, other = operations(builder.events)
    assert (one.begun, one.outcome, list(one.sends())) == (first, "ok", [("k", 0, 1)])
    assert (other.begun, other.outcome, list(other.sends())) == (second, "info", [("k", None, 2)])


def test_an_end_too_many_is_refused() -> None:
    builder = Builder().send(1, 0)
    builder.event(0, "ok", "send", [["send", "t-0", [0, 1]]], op=0)
    with pytest.raises(HistoryError, match="ends 0"):
        operations(builder.events)


def test_a_value_that_was_written_twice_is_refused() -> None:
    with pytest.raises(HistoryError, match="value 1"):
        check(Builder().send(1, 0).send(1, 1).events)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (None, Outcome.INFO),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, Outcome.INFO),
        (ErrorCode.REQUEST_TIMED_OUT, Outcome.INFO),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, Outcome.INFO),
        (ErrorCode.KAFKA_STORAGE_ERROR, Outcome.INFO),
        (ErrorCode.UNKNOWN_SERVER_ERROR, Outcome.INFO),
        (ErrorCode.NETWORK_EXCEPTION, Outcome.INFO),
        (ErrorCode.NOT_ENOUGH_REPLICAS, Outcome.FAIL),
        (ErrorCode.CORRUPT_MESSAGE, Outcome.FAIL),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, Outcome.FAIL),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, Outcome.FAIL),
        (ErrorCode.PRODUCER_FENCED, Outcome.FAIL),
    ],
)
def test_an_error_decides_whether_the_record_may_be_there(
    code: int | None, expected: Outcome
) -> None:
    assert outcomes.of_send(code) is expected


def test_what_was_sent_more_than_once_never_certainly_failed() -> None:
    refused = ErrorCode.NOT_ENOUGH_REPLICAS
    assert outcomes.of_send(refused, retried=True) is Outcome.INFO
    assert outcomes.of_send(0, 5, retried=True) is Outcome.OK


def test_success_needs_an_offset_and_an_acknowledgement() -> None:
    assert outcomes.of_send(0, 5) is Outcome.OK
    assert outcomes.of_send(0, -1) is Outcome.INFO
    assert outcomes.of_send(0, 5, acks="0") is Outcome.INFO


@pytest.mark.parametrize(
    ("builder", "code", "word"),
    [
        (Builder().send(1, 0).final((0, 1)), 0, "clean"),
        (Builder().send(1, 0).final(), 1, "broken"),
        (Builder().send(1, 0), 2, "unknown"),
    ],
)
def test_the_command_prints_one_word_and_exits_by_it(
    tmp_path: Path, builder: Builder, code: int, word: str
) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text("".join(event.to_json() + "\n" for event in builder.events))
    command = [sys.executable, "-m", "tests.checker", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    assert json.loads(done.stdout)["verdict"] == word
