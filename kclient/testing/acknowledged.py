"""What brokers acknowledged to a producer, and the assertion that consumers receive exactly that.

An acknowledgement is a promise: the record is at this offset of this partition for good. `Acknowledged` collects the
promises of producers of any library, `assert_acked_equals_consumed` holds them against consumed records:

    lost       acknowledged, and not consumed
    changed    another value, or another key, at the offset of an acknowledged record
    repeated   consumed twice from one offset, or stored at two offsets
    extra      consumed, and never sent by a producer that `Acknowledged` knows of

A delivery that failed has an unknown outcome (the acknowledgement may be lost, not the record): its record may be
consumed or not. Owner: any thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

_SHOWN = 10
_ABSENT: Any = object()


class Position(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offset {self.offset}"


class _Content(NamedTuple):
    """Value and key as bytes; `_ABSENT` if the test did not name them."""

    value: Any = _ABSENT
    key: Any = _ABSENT

    def differs_from(self, other: _Content) -> bool:
        return any(
            one is not _ABSENT and two is not _ABSENT and one != two
            for one, two in zip(self, other, strict=True)
        )


class Acknowledged:
    """The acknowledged records of one or more producers.

    acked = Acknowledged()
    acked.track(producer.send("orders", b"1"), b"1")
    producer.flush()
    assert_acked_equals_consumed(acked, consumed_records)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[Position, _Content] = {}
        self._unknown: Counter[Any] = Counter()
        self._problems: list[str] = []

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Position]:
        with self._lock:
            return iter(list(self._records))

    @property
    def topics(self) -> list[str]:
        """The topics of the acknowledged records."""
        return sorted({position.topic for position in self})

    def add(self, where: Any, value: Any = _ABSENT, key: Any = _ABSENT) -> None:
        """Add an acknowledgement: the metadata that `send` gives in kclient, kafka-python and aiokafka, or a Message.

        Without *value* the assertion compares positions only; a Message of confluent-kafka brings its own.
        """
        position = _position(where)
        if callable(getattr(where, "value", None)):
            value, key = where.value(), where.key()
        content = _Content(_as_bytes(value), _as_bytes(key))
        with self._lock:
            if position.offset < 0:
                self._problems.append(
                    f"{position} is no acknowledgement: with acks=0 there is none"
                )
            elif (before := self._records.get(position)) is not None and before.differs_from(
                content
            ):
                self._problems.append(f"two records were acknowledged at {position}")
            self._records[position] = content

    def on_delivery(self, error: Any, message: Any) -> None:
        """Take what confluent-kafka's `produce(..., on_delivery=)` reports."""
        if error is None:
            self.add(message)
        else:
            self.unknown(message.value())

    def unknown(self, value: Any) -> None:
        """Note a record that was sent without an acknowledgement: it may be consumed or not."""
        with self._lock:
            self._unknown[_name(value)] += 1

    def track(self, future: Any, value: Any = _ABSENT, key: Any = _ABSENT) -> Any:
        """Add the record when *future*, which `send` returned, has its metadata; return *future*.

        A future of concurrent.futures (kclient), of asyncio (aiokafka), or of kafka-python. Until then, and if it
        fails, the outcome is unknown.
        """
        self.unknown(value)

        def delivered(where: Any) -> None:
            self.add(where, value, key)
            with self._lock:
                self._unknown[_name(value)] -= 1

        def ended(done: Any) -> None:
            if not done.cancelled() and done.exception() is None:
                delivered(done.result())

        if hasattr(future, "add_done_callback"):
            future.add_done_callback(ended)
        elif hasattr(future, "add_callback"):
            future.add_callback(delivered)
        else:
            raise TypeError(
                f"{type(future).__name__} is no future: pass what send() returned, or use add() with the metadata"
            )
        return future

    def problems_with(self, consumed: Iterable[Any], *, at_least_once: bool = False) -> list[str]:
        """Return a line for each way in which *consumed* differs, none if it is what was acknowledged."""
        with self._lock:
            acked, problems = dict(self._records), list(self._problems)
            unknown = Counter(self._unknown)
        if not acked:
            return [*problems, "no record was acknowledged, so nothing can be compared"]
        sent = {_name(content.value) for content in acked.values()}
        seen: dict[Position, _Content] = {}
        found: dict[str, list[str]] = {
            name: [] for name in ("lost", "changed", "repeated", "extra")
        }
        for record in consumed:
            position, content = _position(record), _content(record)
            name = _name(content.value)
            if position in seen:
                found["repeated"].append(f"{position}: consumed twice")
                continue
            seen[position] = content
            if position in acked:
                if acked[position].differs_from(content):
                    found["changed"].append(
                        f"{position}: {_shown(acked[position])} was acknowledged, {_shown(content)} consumed"
                    )
            elif unknown[name] > 0 or unknown[_ABSENT] > 0:
                unknown[name if unknown[name] > 0 else _ABSENT] -= 1
            elif name in sent:
                found["repeated"].append(
                    f"{position}: {_shown(content)} is acknowledged at another offset"
                )
            else:
                found["extra"].append(f"{position}: {_shown(content)} was not sent")
        found["lost"] = [
            f"{position}: {_shown(acked[position])}"
            for position in sorted(acked.keys() - seen.keys())
        ]
        if at_least_once:
            del found["repeated"]
        for kind, lines in found.items():
            if lines:
                problems.append(f"{kind}: {len(lines)} beside {len(acked)} acknowledged records")
                problems += [f"    {line}" for line in lines[:_SHOWN]]
                if len(lines) > _SHOWN:
                    problems.append(f"    and {len(lines) - _SHOWN} more")
        return problems


def assert_acked_equals_consumed(
    acked: Acknowledged, consumed: Iterable[Any], *, at_least_once: bool = False
) -> None:
    """Fail unless *consumed* has each acknowledged record once, at its offset, and no record that was not sent.

    *consumed* has records of kclient, kafka-python or aiokafka, or Messages of confluent-kafka. With *at_least_once*
    records may be repeated: consumers that start again from an earlier offset, producers without idempotence.
    """
    problems = acked.problems_with(consumed, at_least_once=at_least_once)
    if problems:
        raise AssertionError("consumed is not what was acknowledged\n" + "\n".join(problems))


def _position(record: Any) -> Position:
    """Return the position of a record, or of its metadata; confluent-kafka has methods where others have attributes."""
    error = getattr(record, "error", None)
    if callable(error) and (problem := error()) is not None:
        raise ValueError(f"a Message with an error is no record: {problem}")
    try:
        parts = [getattr(record, name) for name in Position._fields]
    except AttributeError:
        raise TypeError(
            f"{type(record).__name__} is no record: it needs topic, partition and offset"
        ) from None
    return Position(*(part() if callable(part) else part for part in parts))


def _content(record: Any) -> _Content:
    parts = [getattr(record, name, _ABSENT) for name in _Content._fields]
    return _Content(*(_as_bytes(part() if callable(part) else part) for part in parts))


def _as_bytes(value: Any) -> Any:
    """Return a str as the bytes that producers send of it."""
    return value.encode() if isinstance(value, str) else value


def _name(value: Any) -> Any:
    """Return what stands for *value* where it is counted: deserialized values may have no hash."""
    value = _as_bytes(value)
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


def _shown(content: _Content) -> str:
    return "a record" if content.value is _ABSENT else f"{content.value!r:.60}"
