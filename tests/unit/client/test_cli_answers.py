"""How `kclient` prints the answers for several names, and its exit code."""

from __future__ import annotations

import json

import pytest

from kclient.cli.answers import good_answers, print_answers
from kclient.cli.exit_codes import FAILED, PARTLY_FAILED
from kclient.cli.settings import Settings
from kclient.wire.errors import TopicAlreadyExists, UnknownTopicOrPartition


def test_each_answer_is_a_line_and_each_error_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    error = UnknownTopicOrPartition("refused")
    answers = {"a": error, "b": 2}
    assert (
        print_answers(Settings(), answers, lambda name, answer: f"{name} is {answer}")
        == PARTLY_FAILED
    )
    assert capsys.readouterr() == ("b is 2\n", f"kclient: a: {error}\n")


def test_only_an_accepted_error_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    accepted = {TopicAlreadyExists: "{name} exists."}
    answers = {"a": TopicAlreadyExists("a")}
    assert print_answers(Settings(), answers, lambda *_: "", accepted) == 0
    assert capsys.readouterr() == ("", "a exists.\n")
    assert (
        print_answers(Settings(), {"a": UnknownTopicOrPartition("a")}, lambda *_: "", accepted)
        == FAILED
    )


def test_with_quiet_only_errors_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = Settings(quiet=True)
    quiet.note("beside the data")
    error = UnknownTopicOrPartition("refused")
    answers = {"a": error, "b": 2, "c": TopicAlreadyExists("c")}
    assert (
        print_answers(quiet, answers, str, {TopicAlreadyExists: "{name} exists."}) == PARTLY_FAILED
    )
    assert capsys.readouterr() == ("", f"kclient: a: {error}\n")


def test_answers_are_rows_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    error = UnknownTopicOrPartition("refused")
    answers = {"a": error, "b": None, "c": TopicAlreadyExists("c")}
    accepted = {TopicAlreadyExists: "{name} exists."}
    assert print_answers(Settings(format="json"), answers, str, accepted) == PARTLY_FAILED
    rows, messages = capsys.readouterr()
    assert json.loads(rows) == [
        {"name": "a", "error": str(error)},
        {"name": "b", "error": None},
        {"name": "c", "error": None},
    ]
    assert messages == f"c exists.\nkclient: a: {error}\n"


def test_good_answers_are_returned_and_errors_named(capsys: pytest.CaptureFixture[str]) -> None:
    error = UnknownTopicOrPartition("t")
    assert good_answers({1: error, 2: "fine"}, lambda number: f"broker {number}") == {2: "fine"}
    assert capsys.readouterr() == ("", f"kclient: broker 1: {error}\n")
