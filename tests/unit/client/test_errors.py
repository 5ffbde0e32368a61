"""What a program sees of an error: its class, name, whether to try again, and the next step."""

from __future__ import annotations

import pytest

import kclient
from kclient import errors
from kclient.errors import Address, AttemptFailed, BootstrapError, Cause, KafkaError
from kclient.wire.errors import ErrorCode, for_code


def test_the_class_of_every_code_is_exported() -> None:
    for code in ErrorCode:
        if code is not ErrorCode.NONE:
            cls = for_code(code)
            assert getattr(errors, cls.__name__) is cls
            assert cls.__name__ in errors.__all__


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        (errors.KafkaTimeoutError("late"), "KAFKA_TIMEOUT_ERROR"),
        (errors.BufferExhausted("full"), "BUFFER_EXHAUSTED"),
        (errors.ClientClosed("closed"), "CLIENT_CLOSED"),
        (errors.TopicAlreadyExists("t"), "TOPIC_ALREADY_EXISTS"),
    ],
)
def test_an_error_has_a_name(problem: KafkaError, name: str) -> None:
    assert problem.name == name


@pytest.mark.parametrize("hint", ["", "2181 is a port of ZooKeeper"])
def test_a_bootstrap_error_has_a_hint_that_is_once_in_its_text(hint: str) -> None:
    problem = BootstrapError([AttemptFailed(Address("east", 2181), Cause.REFUSED)], hint)
    assert problem.hint == hint or (not hint and "bootstrap.servers" in problem.hint)
    assert str(problem).count(hint or "\n") == 1
    assert problem.retriable


def test_the_usual_errors_are_exported_at_the_top() -> None:
    for name in ("KafkaError", "KafkaTimeoutError", "BootstrapError", "ConfigError"):
        assert getattr(kclient, name) is getattr(errors, name)
