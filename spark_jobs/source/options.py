"""Parses the options of the data source `kbroker`; names, meanings and defaults are those of Spark's Kafka connector.

An option that is not supported is refused by name with the reason. No option is ignored without a warning.
Pure.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from kclient.config import NO_EFFECT, AdminConfig, ConsumerConfig, ProducerConfig, dotted
from kclient.errors import ConfigError
from kclient.types import TopicPartition

EARLIEST = -2
LATEST = -1
"""The numbers for the edges of a log in `startingOffsets` and `endingOffsets`."""

Offsets: TypeAlias = dict[TopicPartition, int]


class OptionError(ValueError):
    """An option is missing, unknown, refused, or has an invalid value; the text names it."""


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """A position by offset, for each partition; `EARLIEST` and `LATEST` stand for the edges of the log."""

    offsets: Offsets


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """The first offset at or after a timestamp (ms since the epoch), for each partition."""

    timestamps: Offsets


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first offset at or after one timestamp (ms since the epoch), in every partition."""

    timestamp: int


Position: TypeAlias = Literal["earliest", "latest"] | AtOffsets | AtTimestamps | AtTimestamp


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of the named topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of the topics in which the pattern is found."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Assign:
    """The named partitions."""

    partitions: tuple[TopicPartition, ...]


Selection: TypeAlias = Subscribe | SubscribePattern | Assign


class OptionalColumns(NamedTuple):
    """The columns that a query has on request: `headers` and `batch`."""

    headers: bool = False
    batches: bool = False


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one query."""

    bootstrap: str
    selection: Selection
    starting: Position
    ending: Position
    latest_without_match: bool
    """startingOffsetsByTimestampStrategy: start at the log end where no record is as recent as the timestamp."""
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    include_headers: bool
    include_batches: bool
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_s: float
    poll_timeout_s: float
    retries: int
    retry_interval_s: float
    client: tuple[tuple[str, str], ...]
    """Settings of kclient from `kafka.*`, without bootstrap.servers."""
    warnings: tuple[str, ...] = ()
    """One text for each option that has no effect in this query."""

    @property
    def columns(self) -> OptionalColumns:
        """The optional columns of the rows."""
        return OptionalColumns(self.include_headers, self.include_batches)

    @property
    def read_committed(self) -> bool:
        """Whether records of open and aborted transactions are left out."""
        return ("isolation.level", "read_committed") in self.client

    @property
    def admin_settings(self) -> dict[str, str]:
        """The settings for an admin client."""
        known = {dotted(f.name) for f in dataclasses.fields(AdminConfig)}
        settings = {name: value for name, value in self.client if name in known}
        return {**settings, "bootstrap.servers": self.bootstrap}


NAMES = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "includeBatches",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
"""The supported options besides `kafka.*`. Spark does not distinguish upper and lower case in them."""

_REFUSED = {
    "groupidprefix": "groupIdPrefix: the source reads without a consumer group",
    "topic": "topic: an option of the sink, which this source does not have; use subscribe",
    "path": "path: this source reads topics; use subscribe, subscribePattern or assign",
}

_NO_GROUP = "the source reads without a consumer group"
_BYTES = "the source returns binary keys and values"
_REFUSED_CLIENT = {
    "auto.offset.reset": "use startingOffsets: Spark keeps the offsets, not the consumer",
    "key.deserializer": _BYTES,
    "value.deserializer": _BYTES,
    "enable.auto.commit": "Spark keeps the offsets in the checkpoint",
    "auto.commit.interval.ms": "Spark keeps the offsets in the checkpoint",
    "enable.auto.offset.store": "Spark keeps the offsets in the checkpoint",
    "interceptor.classes": "an interceptor could change records",
    "group.id": _NO_GROUP,
    "group.instance.id": _NO_GROUP,
    "session.timeout.ms": _NO_GROUP,
    "heartbeat.interval.ms": _NO_GROUP,
    "rebalance.timeout.ms": _NO_GROUP,
    "max.poll.interval.ms": _NO_GROUP,
    "partition.assignment.strategy": _NO_GROUP,
    "max.poll.records": "the source reads whole record batches; fetch.max.bytes limits them",
    "check.crcs": "the source always checks the CRC of every batch",
    "allow.auto.create.topics": "the source never creates a topic",
    "exclude.internal.topics": "the source never reads internal topics",
}

_SELECTIONS = ("subscribe", "subscribePattern", "assign")


def optional_columns(options: Mapping[str, str]) -> OptionalColumns:
    """Return which optional columns the rows have; check all options that do not depend on the kind of query."""
    return parse(options, streaming=None).columns


def parse(options: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
    """Parse *options*; raise OptionError. *streaming* None: batch or stream, not known yet."""
    given = {name.lower(): value for name, value in options.items()}
    _check_names(given)
    bootstrap, client = _client(given)
    starting = _position(given, "starting", "latest" if streaming else "earliest")
    ending = _position(given, "ending", "latest")
    noted = _overruled(given)
    if streaming:
        for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
            if name.lower() in given:
                raise OptionError(f"{name} is not valid in a streaming query: it has no end")
        if "maxtriggerdelay" in given and "minoffsetspertrigger" not in given:
            noted.append("maxTriggerDelay has no effect without minOffsetsPerTrigger")
    elif streaming is False:
        _check_batch(starting, ending)
        noted += [
            f"{name} has no effect in a batch query"
            for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
            if name.lower() in given
        ]
    most, least = (
        _number(given, name, None, 1) for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger")
    )
    if most is not None and least is not None and least > most:
        raise OptionError(
            f"minOffsetsPerTrigger ({least}) is higher than maxOffsetsPerTrigger ({most})"
        )
    return SourceOptions(
        bootstrap,
        _selection(given),
        starting,
        ending,
        _strategy(given),
        _number(given, "minPartitions", None, 1),
        _number(given, "maxRecordsPerPartition", None, 1),
        _boolean(given, "failOnDataLoss", default=True),
        _boolean(given, "includeHeaders", default=False),
        _boolean(given, "includeBatches", default=False),
        most,
        least,
        _seconds(given, "maxTriggerDelay", "15m"),
        (_number(given, "kafkaConsumer.pollTimeoutMs", 120_000, 1) or 0) / 1000,
        _number(given, "fetchOffset.numRetries", 3, 1) or 0,
        (_number(given, "fetchOffset.retryIntervalMs", 1000, 0) or 0) / 1000,
        client,
        tuple(noted),
    )


def _check_names(given: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in NAMES}
    for name in given:
        if name in _REFUSED:
            raise OptionError(_REFUSED[name])
        if name in known or name.startswith("kafka."):
            continue
        if f"kafka.{name}" in known or name == "bootstrap.servers":
            raise OptionError(f"{name}: unknown option, did you mean kafka.{name}?")
        near = difflib.get_close_matches(name, known, n=1)
        hint = f", did you mean {known[near[0]]}?" if near else ""
        raise OptionError(f"{name}: unknown option of the kbroker source{hint}")


def _client(given: Mapping[str, str]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the bootstrap servers and the other settings of kclient."""
    settings = {
        name.removeprefix("kafka."): value
        for name, value in given.items()
        if name.startswith("kafka.")
    }
    if not settings.get("bootstrap.servers"):
        raise OptionError("kafka.bootstrap.servers: the option is missing")
    known = {dotted(f.name) for config in (ConsumerConfig, AdminConfig) for f in _fields(config)}
    of_producers = {dotted(f.name) for f in _fields(ProducerConfig)}
    for name in settings:
        if name in _REFUSED_CLIENT:
            raise OptionError(f"kafka.{name} is not supported: {_REFUSED_CLIENT[name]}")
        if name in NO_EFFECT:
            raise OptionError(f"kafka.{name} is not supported: it has no effect in kclient")
        if name in of_producers - known:
            raise OptionError(f"kafka.{name} is not supported: it is a setting of producers")
    try:
        parsed = ConsumerConfig.load(settings)
    except ConfigError as problem:
        raise OptionError(f"kafka.* options: {problem.message}") from None
    if "isolation.level" in settings:
        settings["isolation.level"] = parsed.isolation_level
    return settings.pop("bootstrap.servers"), tuple(sorted(settings.items()))


def _fields(
    config: type[AdminConfig | ConsumerConfig | ProducerConfig],
) -> Collection[dataclasses.Field[object]]:
    return dataclasses.fields(config)


def _selection(given: Mapping[str, str]) -> Selection:
    chosen = [name for name in _SELECTIONS if name.lower() in given]
    if len(chosen) != 1:
        count = "one" if not chosen else "only one"
        raise OptionError(f"{count} of the options {', '.join(_SELECTIONS)} must be given")
    (name,) = chosen
    text = given[name.lower()].strip()
    if name == "subscribe":
        topics = tuple(sorted({topic.strip() for topic in text.split(",")} - {""}))
        if not topics:
            raise OptionError(f"subscribe: {text!r} names no topic")
        return Subscribe(topics)
    if name == "subscribePattern":
        return SubscribePattern(_pattern(text))
    return Assign(_assigned(text))


def _pattern(text: str) -> str:
    """Return *text* if it is a pattern that Python and Java read alike."""
    if not text:
        raise OptionError("subscribePattern is empty")
    try:
        with warnings.catch_warnings():
            # Java's set operations: Python would read them as plain characters.
            warnings.simplefilter("error")
            re.compile(text)
    except (re.error, Warning) as problem:
        raise OptionError(
            f"subscribePattern: {text!r} is not a pattern of Python: {problem}"
        ) from None
    return text


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    example = '{"topicA":[0,1],"topicB":[2,4]}'
    topics = _json(text, "assign", example)
    found = set()
    for topic, numbers in topics.items():
        if not isinstance(numbers, list) or not all(_is_count(n) for n in numbers):
            raise OptionError(f"assign: expected for example {example}, not {text}")
        found |= {TopicPartition(topic, number) for number in numbers}
    if not found:
        raise OptionError(f"assign: {text} names no partition")
    return tuple(sorted(found))


def _position(
    given: Mapping[str, str], edge: str, default: Literal["earliest", "latest"]
) -> Position:
    """Return where the query starts or ends. Preference: one timestamp, timestamps by partition, offsets."""
    if (text := given.get(f"{edge}timestamp")) is not None:
        number = _long(text)
        if number is None:
            raise OptionError(f"{edge}Timestamp: {text!r} is not a number (ms)")
        return AtTimestamp(_timestamp(number, f"{edge}Timestamp"))
    if (text := given.get(f"{edge}offsetsbytimestamp")) is not None:
        name = f"{edge}OffsetsByTimestamp"
        example = '{"topicA":{"0":1700000000000,"1":1700000000000}}'
        timestamps = _by_partition(text, name, example)
        return AtTimestamps({tp: _timestamp(time, name) for tp, time in timestamps.items()})
    name = f"{edge}Offsets"
    text = given.get(name.lower(), default).strip()
    if text.lower() == "earliest":
        return "earliest"
    if text.lower() == "latest":
        return "latest"
    offsets = _by_partition(text, name, '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}')
    if wrong := {str(tp): offset for tp, offset in offsets.items() if offset < EARLIEST}:
        raise OptionError(f"{name}: {wrong}: an offset is at least 0; -1 is latest, -2 earliest")
    return AtOffsets(offsets)


def _overruled(given: Mapping[str, str]) -> list[str]:
    """Return a text for each option on positions that has no effect beside, or without, another one."""
    found = []
    for edge in ("starting", "ending"):
        names = [f"{edge}Timestamp", f"{edge}OffsetsByTimestamp", f"{edge}Offsets"]
        present = [name for name in names if name.lower() in given]
        found += [f"{name} has no effect beside {present[0]}" for name in present[1:]]
    strategy = "startingOffsetsByTimestampStrategy"
    timestamps = ("startingtimestamp", "startingoffsetsbytimestamp")
    if strategy.lower() in given and not any(name in given for name in timestamps):
        found.append(f"{strategy} has no effect without a starting timestamp")
    return found


def _timestamp(time: int, name: str) -> int:
    if time < 0:
        raise OptionError(f"{name}: {time} is negative; a timestamp is in ms since the epoch")
    return time


def _check_batch(starting: Position, ending: Position) -> None:
    if starting == "latest" or (
        isinstance(starting, AtOffsets) and LATEST in starting.offsets.values()
    ):
        raise OptionError("startingOffsets can't be latest (-1) for batch queries")
    if ending == "earliest" or (
        isinstance(ending, AtOffsets) and EARLIEST in ending.offsets.values()
    ):
        raise OptionError("endingOffsets can't be earliest (-2) for batch queries")
    if isinstance(starting, AtOffsets) and isinstance(ending, AtOffsets):
        _check_order("Offsets", starting.offsets, ending.offsets)
    if isinstance(starting, AtTimestamps) and isinstance(ending, AtTimestamps):
        _check_order("OffsetsByTimestamp", starting.timestamps, ending.timestamps)


def _check_order(name: str, starting: Offsets, ending: Offsets) -> None:
    if starting.keys() != ending.keys():
        only = ", ".join(map(str, sorted(starting.keys() ^ ending.keys())))
        raise OptionError(f"starting{name} and ending{name} must name the same partitions: {only}")
    for tp, low in starting.items():
        if low > ending[tp] >= 0:
            raise OptionError(
                f"starting{name} of {tp} ({low}) is above ending{name} ({ending[tp]})"
            )


def _strategy(given: Mapping[str, str]) -> bool:
    text = given.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
    if text not in ("error", "latest"):
        raise OptionError(f"startingOffsetsByTimestampStrategy is error or latest, not {text!r}")
    return text == "latest"


def _by_partition(text: str, name: str, example: str) -> Offsets:
    found: Offsets = {}
    for topic, numbers in _json(text, name, example).items():
        if not isinstance(numbers, dict):
            raise OptionError(f"{name}: expected for example {example}, not {text}")
        for partition, number in numbers.items():
            if not re.fullmatch(r"\d{1,9}", partition) or not _is_integer(number):
                raise OptionError(f"{name}: expected for example {example}, not {text}")
            found[TopicPartition(topic, int(partition))] = number
    return found


def _json(text: str, name: str, example: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise OptionError(f"{name}: expected for example {example}, not {text!r}")
    return found


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


def _is_count(value: object) -> bool:
    return _is_integer(value) and isinstance(value, int) and 0 <= value < 1 << 31


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise OptionError(f"{name} is true or false, not {text!r}")
    return text == "true"


def _number(given: Mapping[str, str], name: str, default: int | None, least: int) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return default
    value = _long(text)
    if value is None:
        raise OptionError(f"{name}: {text!r} is not a whole number below 2^63")
    if value < least:
        raise OptionError(f"{name} must be at least {least}, not {value}")
    return value


def _long(text: str) -> int | None:
    """Return *text* as a number of 64 bits, as Java reads it: without underscores; None if it is none."""
    if re.fullmatch(r"[+-]?[0-9]{1,19}", text.strip()) is None:
        return None
    value = int(text.strip())
    return value if abs(value) < 1 << 63 else None


_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def _seconds(given: Mapping[str, str], name: str, default: str) -> float:
    """Return a time as in Spark's settings: a whole number with a unit, ms without."""
    text = given.get(name.lower(), default).strip().lower()
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text)
    if match is None or (match[2] or "ms") not in _UNITS:
        raise OptionError(f"{name}: {text!r} is not a time like 500ms, 30s, 15m, 1h")
    return int(match[1]) * _UNITS[match[2] or "ms"]
