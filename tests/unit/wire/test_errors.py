import pickle

import pytest

from kclient.wire import errors
from kclient.wire.errors import (
    ErrorCode,
    KafkaError,
    MalformedMessage,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    ProtocolError,
    TopicAuthorizationFailed,
    UnknownServerError,
    UnknownTopicOrPartition,
    code_of,
    for_code,
    raise_for_code,
)


def test_every_code_but_none_has_a_class_of_its_name():
    for code in ErrorCode:
        if code is not ErrorCode.NONE:
            cls = for_code(code)
            assert cls.code is code
            assert cls.__name__.lower() == code.name.replace("_", "").lower()
            assert getattr(errors, cls.__name__) is cls
    assert [int(code) for code in ErrorCode] == list(range(-1, 128))


def test_every_class_has_a_default_message():
    for code in ErrorCode:
        if code is not ErrorCode.NONE:
            assert str(for_code(code)()).startswith(f"{code.name}: {for_code(code).__doc__}"[:20])
            assert len(for_code(code)().message) > 10


def test_what_needs_new_metadata_is_retriable():
    for code in ErrorCode:
        cls = for_code(code)
        assert cls.retriable or not cls.needs_metadata
    assert NotLeaderOrFollower.needs_metadata
    assert UnknownTopicOrPartition.retriable
    assert not OffsetOutOfRange.retriable
    assert not TopicAuthorizationFailed.retriable


def test_no_error_is_both_retriable_and_fatal():
    assert not [c for c in ErrorCode if for_code(c).retriable and for_code(c).fatal]


def test_code_0_raises_nothing_and_others_their_class():
    raise_for_code(0)
    with pytest.raises(NotLeaderOrFollower, match="topic-1 at broker 3"):
        raise_for_code(6, "topic-1 at broker 3")


def test_a_code_newer_than_the_table_keeps_its_number():
    with pytest.raises(UnknownServerError, match="unknown error code 999: at broker 3"):
        raise_for_code(999, "at broker 3")


def test_a_protocol_error_is_a_kafka_error_without_taking_over_a_code():
    assert issubclass(MalformedMessage, ProtocolError)
    assert issubclass(ProtocolError, KafkaError)
    assert for_code(ErrorCode.INVALID_REQUEST).__name__ == "InvalidRequest"


def test_a_hint_of_the_moment_replaces_the_general_one():
    error = OffsetOutOfRange("offset 7 of t-0", hint="the log starts at 12")
    assert str(error) == "OFFSET_OUT_OF_RANGE: offset 7 of t-0 (the log starts at 12)"


def test_errors_survive_pickling_with_their_text():
    error = OffsetOutOfRange("offset 7 of t-0", hint="the log starts at 12")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_code_of_something_unexpected_is_minus_one():
    assert code_of(ZeroDivisionError()) == -1
    assert code_of(NotLeaderOrFollower()) == 6


def test_an_error_has_the_name_of_its_code():
    assert NotLeaderOrFollower("t-0").name == "NOT_LEADER_OR_FOLLOWER"


@pytest.mark.parametrize("code", [c for c in ErrorCode if "AUTHORIZATION" in c.name])
def test_an_error_of_authorization_has_a_next_step(code):
    assert "ACL" in for_code(code)().hint or "DELEGATION" in code.name
