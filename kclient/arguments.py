"""The shapes in which the clients take their arguments, the same for every client and API.

The configuration is the first argument, or the keyword ``config``; single settings are keywords. Topics follow, each a
string or a list of strings. One name or partition may stand for a list of one. Other shapes raise TypeError with the
right call in its text.

Timeouts of calls are ``timeout``, in seconds, in every API. Settings are in ms where Kafka's name ends with .ms.
``timeout_ms`` is taken too where users of kafka-python and aiokafka pass it: by `poll`, `getmany` and `poll_batches`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from kclient.types import OffsetAndMetadata, TopicPartition

Config = Mapping[str, Any]
Names = str | Iterable[str]

_RIGHT_CONSUMER = (
    'Consumer({"bootstrap.servers": "localhost:9092", "group.id": "g"}, ["orders", "payments"])'
)


def consumer_arguments(
    given: tuple[Config | Names, ...], config: Config | None
) -> tuple[Config | None, list[str]]:
    """Return (configuration, topics) of ``Consumer(*given, config=config)``; raise TypeError if a shape is wrong."""
    rest = given
    if given and isinstance(given[0], Mapping):
        if config is not None:
            raise TypeError(f"Consumer: there are two configurations; expected {_RIGHT_CONSUMER}")
        config, rest = given[0], given[1:]
    if config is not None and not isinstance(config, Mapping):
        raise TypeError(f"Consumer: config={config!r} is no dict; expected {_RIGHT_CONSUMER}")
    topics = []
    for each in rest:
        if isinstance(each, Mapping):
            raise TypeError(f"Consumer: the configuration comes first: {_RIGHT_CONSUMER}")
        topics += names_in(each, _RIGHT_CONSUMER)
    for topic in topics:
        if ":" in topic:
            raise TypeError(
                f"Consumer: {topic!r} is no topic; brokers are the setting bootstrap.servers: {_RIGHT_CONSUMER}"
            )
    return config, topics


def names_in(given: Names, right: str) -> list[str]:
    """Return the names in a list, or the one name that is given; raise TypeError for anything but strings.

    *right* is the right call, for the error text.
    """
    several = isinstance(given, Iterable) and not isinstance(given, str | bytes | TopicPartition)
    names: list[Any] = list(given) if several else [given]
    for name in names:
        if isinstance(name, TopicPartition):
            raise TypeError(
                f"{name!r} is a partition, not a name: consumer.assign takes partitions"
            )
        if not isinstance(name, str):
            raise TypeError(f"{name!r} is no str; expected {right}")
    return names


def partitions_in(
    given: TopicPartition | Iterable[TopicPartition], call: str
) -> list[TopicPartition]:
    """Return the partitions in a list, or the one partition that is given; a plain tuple may be a partition.

    Raise TypeError with the name of the *call* for anything else.
    """
    one = isinstance(given, str | TopicPartition) or _is_partition(given)
    several = isinstance(given, Iterable) and not one
    partitions: list[Any] = list(given) if several else [given]
    for each in partitions:
        if not _is_partition(each):
            raise TypeError(
                f'{each!r} is no partition; expected {call}([TopicPartition("orders", 0)])'
            )
    return [TopicPartition(*each) for each in partitions]


def config_text(value: object) -> str | None:
    """Return the value of a config as Kafka writes it: a number or a truth value may be one of Python."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def position_in(given: object, call: str) -> int:
    """Return the offset to consume from; raise TypeError or ValueError for what is none."""
    offset = given.offset if isinstance(given, OffsetAndMetadata) else given
    if not isinstance(offset, int):
        raise TypeError(f"{call}: {given!r} is no offset; it must be an int")
    if offset < 0:
        raise ValueError(f"offset {offset} is negative; see seek_to_beginning and seek_to_end")
    return offset


def poll_timeout(
    given: tuple[object, ...], timeout: float | None, timeout_ms: float | None
) -> float:
    """Return the timeout of ``poll(*given, timeout=timeout, timeout_ms=timeout_ms)`` in seconds, 0 without one.

    A positional timeout raises TypeError: it is in seconds in confluent-kafka, and in milliseconds in kafka-python.
    """
    if given:
        raise TypeError(
            f"poll({given[0]!r}): name the unit: poll(timeout=1.0) is in seconds, poll(timeout_ms=1000) in milliseconds"
        )
    if timeout is not None and timeout_ms is not None:
        raise TypeError("poll: give one of timeout (seconds) and timeout_ms (milliseconds)")
    for each in (timeout, timeout_ms):
        if each is not None and not isinstance(each, int | float):
            raise TypeError(f"poll: {each!r} is no number of seconds or milliseconds")
    seconds = timeout if timeout is not None else (timeout_ms or 0) / 1000
    if not seconds >= 0:
        raise ValueError(f"a timeout of {seconds} s is negative; math.inf waits without limit")
    return seconds


def waiting_time(timeout: float | None) -> float:
    """Return *timeout*, infinity for None and for -1, which is confluent-kafka's infinity."""
    return math.inf if timeout is None or timeout == -1 else timeout


def at_most(max_records: int | None, default: int) -> int:
    """Return the upper bound of the records in one poll; raise ValueError below 1."""
    if max_records is None:
        return default
    if max_records < 1:
        raise ValueError(f"max_records is {max_records}; it must be at least 1")
    return max_records


def _is_partition(given: object) -> bool:
    return (
        isinstance(given, tuple)
        and len(given) == 2
        and isinstance(given[0], str)
        and isinstance(given[1], int)
        and given[1] >= 0
    )
