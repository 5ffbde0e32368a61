"""How `kclient` prints the answers for several names, and its exit code."""

from __future__ import annotations

import pytest

from kclient.cli.context import FAILED, print_answers
from kclient.wire.errors import TopicAlreadyExists, UnknownTopicOrPartition


def test_each_answer_is_a_line_and_each_error_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    error = UnknownTopicOrPartition("no topic a")
    answers = {"a": error, "b": 2}
    assert print_answers(answers, lambda name, answer: f"{name} is {answer}") == FAILED
    assert capsys.readouterr() == ("b is 2\n", f"kclient: a: {error}\n")


def test_only_an_accepted_error_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    accepted = {TopicAlreadyExists: "{name} exists."}
    answers = {"a": TopicAlreadyExists("a")}
    assert print_answers(answers, lambda *_: "", accepted) == 0
    assert capsys.readouterr() == ("", "a exists.\n")
    assert print_answers({"a": UnknownTopicOrPartition("a")}, lambda *_: "", accepted) == FAILED
