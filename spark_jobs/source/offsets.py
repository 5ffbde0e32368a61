"""Looks up the partitions of a query and their offsets in the cluster, with retries as Spark's Kafka connector has."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Literal, TypeVar

from kclient.errors import KafkaError
from kclient.net.metadata import TopicMetadata
from kclient.types import TopicPartition
from spark_jobs.source.options import (
    EARLIEST,
    LATEST,
    Assign,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Offsets,
    Position,
    SourceOptions,
    Subscribe,
    SubscribePattern,
)
from spark_jobs.source.planning import check_named

if TYPE_CHECKING:
    from kclient import AdminClient

T = TypeVar("T")
log = logging.getLogger(__name__)

_EDGES: Mapping[int, Literal["earliest", "latest"]] = {EARLIEST: "earliest", LATEST: "latest"}


class OffsetsUnavailable(Exception):
    """The partitions or offsets of a query could not be looked up; the text names the cluster and the cause."""


class OffsetLookup:
    """Looks up offsets for one query; connects on first use. Owner: the driver's Python process."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._admin: AdminClient | None = None

    def close(self) -> None:
        """Close the connection."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions of the query, sorted; raise OffsetsUnavailable if a named topic does not exist."""
        return self._retried(self._partitions)

    def log_starts(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the log start offsets."""
        return self._retried(lambda: self._times(dict.fromkeys(partitions, "earliest")))

    def log_ends(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the high watermarks, or the last stable offsets with isolation level read_committed."""
        return self._retried(lambda: self._times(dict.fromkeys(partitions, "latest")))

    def resolve(
        self, position: Position, partitions: Collection[TopicPartition], *, starting: bool
    ) -> Offsets:
        """Return the offset of *position* in each partition; raise ValueError if it does not name the partitions."""
        match position:
            case "earliest":
                return self.log_starts(partitions)
            case "latest":
                return self.log_ends(partitions)
            case AtOffsets(offsets):
                check_named(f"{_edge(starting)}Offsets", offsets, partitions)
                return self._edges_resolved(offsets)
            case AtTimestamps(timestamps):
                check_named(f"{_edge(starting)}OffsetsByTimestamp", timestamps, partitions)
                return self._at(timestamps, starting=starting)
            case AtTimestamp(timestamp):
                return self._at(dict.fromkeys(partitions, timestamp), starting=starting)

    def _edges_resolved(self, offsets: Offsets) -> Offsets:
        edges = {tp: _EDGES[offset] for tp, offset in offsets.items() if offset < 0}
        return {**offsets, **self._retried(lambda: self._times(edges))}

    def _at(self, timestamps: Offsets, *, starting: bool) -> Offsets:
        """Return the first offsets at or after the timestamps; the log end where there is none, if allowed."""
        found = self._retried(lambda: self._times(timestamps))
        without = [tp for tp, offset in found.items() if offset < 0]
        if starting and without and not self._options.latest_without_match:
            named = ", ".join(f"{tp} ({timestamps[tp]})" for tp in sorted(without))
            raise ValueError(
                f"no record is as recent as the starting timestamp in {named}; "
                "startingOffsetsByTimestampStrategy=latest starts at the log end there"
            )
        return {**found, **self.log_ends(without)}

    def _partitions(self) -> list[TopicPartition]:
        selection = self._options.selection
        match selection:
            case Subscribe(topics):
                return _all_of(self._described(topics))
            case SubscribePattern(pattern):
                found = re.compile(pattern)
                return _all_of(
                    self._described(
                        [name for name in self._client.list_topics() if found.search(name)]
                    )
                )
            case Assign(assigned):
                existing = _all_of(self._described(sorted({tp.topic for tp in assigned})))
                missing = sorted(set(assigned) - set(existing))
                if missing:
                    raise OffsetsUnavailable(
                        f"assign names partitions that do not exist: {', '.join(map(str, missing))}"
                    )
                return list(assigned)

    def _described(self, topics: Collection[str]) -> list[TopicMetadata]:
        if not topics:
            return []
        found = []
        for name, answer in self._client.describe_topics(topics, raise_errors=False).items():
            if isinstance(answer, KafkaError):
                raise answer
            if answer.is_internal:
                raise OffsetsUnavailable(
                    f"{name} is an internal topic; the source does not read it"
                )
            found.append(answer)
        return found

    def _times(
        self, wanted: Mapping[TopicPartition, int | Literal["earliest", "latest"]]
    ) -> Offsets:
        if not wanted:
            return {}
        found = self._client.list_offsets(
            dict(wanted), read_committed=self._options.read_committed, raise_errors=False
        )
        offsets = {}
        for tp, answer in found.items():
            if isinstance(answer, KafkaError):
                raise answer
            offsets[tp] = answer.offset
        return offsets

    @property
    def _client(self) -> AdminClient:
        from kclient import AdminClient

        if self._admin is None:
            self._admin = AdminClient(self._options.admin_settings).start()
        return self._admin

    def _retried(self, attempt: Callable[[], T]) -> T:
        """Return the result of *attempt*, which is repeated after errors of the cluster."""
        for number in range(1, self._options.retries + 1):
            try:
                return attempt()
            except KafkaError as problem:
                self.close()
                if number == self._options.retries:
                    raise OffsetsUnavailable(f"{self._options.bootstrap}: {problem}") from problem
                log.warning("attempt %s to look up offsets failed: %s", number, problem)
                time.sleep(self._options.retry_interval_s)
        raise AssertionError("unreachable: there is at least one attempt")


def _all_of(topics: Collection[TopicMetadata]) -> list[TopicPartition]:
    return sorted(
        TopicPartition(topic.name, number) for topic in topics for number in topic.partitions
    )


def _edge(starting: bool) -> str:
    return "starting" if starting else "ending"
