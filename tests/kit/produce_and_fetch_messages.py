"""Strategies for Produce and Fetch messages: per version only the fields that the version has."""

from typing import Any

from hypothesis import strategies as st

from kclient.wire import fetch, produce
from kclient.wire.leaders import LeaderIdAndEpoch, NodeEndpoint

Strategy = st.SearchStrategy[Any]

int16 = st.integers(-(1 << 15), (1 << 15) - 1)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
natural = st.integers(0, (1 << 31) - 1)
codes = st.integers(0, 119)
# A whole number of milliseconds that datetime can hold, or none.
clocks = st.just(-1) | st.integers(0, 4_000_000_000).map(lambda seconds: seconds * 1000)
names = st.sampled_from(["", "orders", "größe", "x" * 127, "y" * 249])
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
record_sets = st.binary(max_size=50) | st.sampled_from([b"", b"z" * 126, b"r" * 5000])
leaders = st.none() | st.builds(LeaderIdAndEpoch, natural, natural)
endpoints = st.lists(
    st.builds(NodeEndpoint, int32, texts, int32, st.none() | texts), max_size=2
).map(tuple)


def since(version: int, first: int, strategy: Strategy, default: object) -> Strategy:
    """*strategy* from version *first* on; before it the field does not exist."""
    return strategy if version >= first else st.just(default)


def few(strategy: Strategy) -> Strategy:
    return st.lists(strategy, max_size=3)


def produce_requests(version: int) -> Strategy:
    partitions = st.builds(produce.ProducePartition, int32, st.none() | record_sets)
    topics = st.builds(produce.ProduceTopic, names, few(partitions))
    return st.builds(produce.ProduceRequest, int16, natural, few(topics), st.none() | texts)


def produce_responses(version: int) -> Strategy:
    errors = st.builds(produce.RecordError, int32, st.none() | texts)
    partitions = st.builds(
        produce.ProducePartitionResponse,
        int32,
        codes,
        int64,
        clocks,
        since(version, 5, int64, -1),
        since(version, 8, few(errors).map(tuple), ()),
        since(version, 8, st.none() | texts, None),
        since(version, 10, leaders, None),
    )
    topics = st.builds(produce.ProduceTopicResponse, names, few(partitions))
    return st.builds(
        produce.ProduceResponse, few(topics), natural, since(version, 10, endpoints, ())
    )


def _topics(version: int, cls: type[Any], partitions: Strategy) -> Strategy:
    if version >= fetch.FIRST_WITH_TOPIC_IDS:
        ids = st.none() | st.uuids(version=4)
        return few(st.builds(cls, st.just(""), few(partitions), ids))
    return few(st.builds(cls, names, few(partitions)))


def fetch_requests(version: int) -> Strategy:
    partitions = st.builds(
        fetch.FetchPartition,
        int32,
        int64,
        int32,
        since(version, 9, int32, -1),
        since(version, 12, int32, -1),
        since(version, 5, int64, -1),
    )
    return st.builds(
        fetch.FetchRequest,
        natural,
        int32,
        _topics(version, fetch.FetchTopic, partitions),
        int32,
        st.integers(0, 1),
        since(version, 7, int32, 0),
        since(version, 7, int32, -1),
        natural,
        since(version, 15, natural, -1),
        since(version, 7, _topics(version, fetch.ForgottenTopic, int32), ()),
        since(version, 11, texts, ""),
        since(version, 12, st.none() | texts, None),
    )


def fetch_partition_responses(version: int) -> Strategy:
    aborted = st.builds(fetch.AbortedTransaction, int64, int64)
    return st.builds(
        lambda records, **fields: fetch.FetchPartitionResponse(
            records=(records,) if records else (), records_size=len(records), **fields
        ),
        record_sets,
        partition=int32,
        error_code=codes,
        high_watermark=int64,
        last_stable_offset=int64,
        log_start_offset=since(version, 5, int64, -1),
        aborted_transactions=st.none() | few(aborted),
        preferred_read_replica=since(version, 11, int32, -1),
        diverging_epoch=since(
            version, 12, st.none() | st.builds(fetch.EpochEndOffset, natural, natural), None
        ),
        current_leader=since(version, 12, leaders, None),
    )


def fetch_responses(version: int) -> Strategy:
    return st.builds(
        fetch.FetchResponse,
        _topics(version, fetch.FetchTopicResponse, fetch_partition_responses(version)),
        natural,
        since(version, 7, codes, 0),
        since(version, 7, int32, 0),
        since(version, 16, endpoints, ()),
    )
