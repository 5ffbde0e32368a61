"""The options of the data source `kbroker`: what they mean, and which are refused with which reason."""

from __future__ import annotations

import json

import pytest

from kclient.types import TopicPartition
from spark_jobs.source.options import (
    NAMES,
    Assign,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    OptionalColumns,
    OptionError,
    SourceOptions,
    Subscribe,
    SubscribePattern,
    optional_columns,
    parse,
)


def batch(**options: str) -> SourceOptions:
    return parse(given(options), streaming=False)


def stream(**options: str) -> SourceOptions:
    return parse(given(options), streaming=True)


def given(options: dict[str, str]) -> dict[str, str]:
    """Options with underscores for dots; a cluster and a topic unless they are there."""
    named = {name.replace("_", "."): value for name, value in options.items()}
    chosen = {"subscribe", "subscribePattern", "assign"} & named.keys()
    topic = {} if chosen else {"subscribe": "t"}
    return {"kafka.bootstrap.servers": "h:1", **topic, **named}


def test_defaults_are_those_of_the_connector() -> None:
    options = batch()
    assert options.bootstrap == "h:1"
    assert options.selection == Subscribe(("t",))
    assert (options.starting, options.ending) == ("earliest", "latest")
    assert stream().starting == "latest"
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert not options.include_batches
    assert not options.latest_without_match
    assert (options.min_partitions, options.max_records_per_partition) == (None, None)
    assert (options.max_offsets_per_trigger, options.min_offsets_per_trigger) == (None, None)
    assert options.max_trigger_delay_s == 900
    assert (options.poll_timeout_s, options.retries, options.retry_interval_s) == (120, 3, 1)
    assert not options.read_committed
    assert options.client == ()
    assert options.warnings == ()


def test_names_are_not_case_sensitive() -> None:
    options = parse(
        {name.upper(): value for name, value in given({"includeHeaders": "TRUE"}).items()},
        streaming=False,
    )
    assert options.include_headers
    assert options.bootstrap == "h:1"


def test_topics_are_selected_by_name_pattern_or_partition() -> None:
    assert batch(subscribe="b, a,,a ").selection == Subscribe(("a", "b"))
    assert batch(subscribePattern=" a.* ").selection == SubscribePattern("a.*")
    assert batch(assign='{"b": [1, 0], "a": [2]}').selection == Assign(
        (TopicPartition("a", 2), TopicPartition("b", 0), TopicPartition("b", 1))
    )


@pytest.mark.parametrize("pattern", ["[a-z&&[^b]]", r"\p{Alpha}", r"\Qa\E", "(?<name>a)", "a(?i)"])
def test_a_pattern_that_python_reads_otherwise_than_java_is_refused(pattern: str) -> None:
    with pytest.raises(OptionError, match="subscribePattern: "):
        batch(subscribePattern=pattern)


def test_positions_are_offsets_or_timestamps_and_the_most_specific_name_wins_with_a_warning() -> (
    None
):
    offsets = {TopicPartition("t", 0): -2, TopicPartition("t", 1): 7}
    text = '{"t": {"0": -2, "1": 7}}'
    assert batch(startingOffsets=text).starting == AtOffsets(offsets)
    assert stream(startingOffsets='{"t": {"0": -1}}').starting == AtOffsets(
        {TopicPartition("t", 0): -1}
    )
    assert batch(endingOffsetsByTimestamp='{"t": {"0": 5}}').ending == AtTimestamps(
        {TopicPartition("t", 0): 5}
    )
    options = batch(startingOffsets=text, startingTimestamp=" 9 ")
    assert options.starting == AtTimestamp(9)
    assert options.warnings == ("startingOffsets has no effect beside startingTimestamp",)


def test_options_of_streams_have_no_effect_in_batches_and_are_named() -> None:
    assert batch(maxOffsetsPerTrigger="5", maxTriggerDelay="1s").warnings == (
        "maxOffsetsPerTrigger has no effect in a batch query",
        "maxTriggerDelay has no effect in a batch query",
    )
    assert stream(maxOffsetsPerTrigger="5").warnings == ()


def test_options_that_have_no_effect_without_another_one_are_named() -> None:
    """Both were ignored without a warning."""
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert batch(**strategy).warnings == (
        "startingOffsetsByTimestampStrategy has no effect without a starting timestamp",
    )
    assert batch(**strategy, startingTimestamp="5").warnings == ()
    assert batch(**strategy, startingOffsetsByTimestamp='{"t": {"0": 5}}').warnings == ()
    assert stream(maxTriggerDelay="1s").warnings == (
        "maxTriggerDelay has no effect without minOffsetsPerTrigger",
    )
    assert stream(maxTriggerDelay="1s", minOffsetsPerTrigger="5").warnings == ()


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    value = {"endingOffsets": "latest", "endingTimestamp": "1"}.get(name, '{"t": {"0": 1}}')
    with pytest.raises(OptionError, match=f"{name} is not valid in a streaming query"):
        stream(**{name: value})


@pytest.mark.parametrize(
    ("text", "seconds"), [("15m", 900), ("250", 0.25), ("250ms", 0.25), ("2 h", 7200), ("1min", 60)]
)
def test_a_delay_is_a_time_of_spark(text: str, seconds: float) -> None:
    assert stream(maxTriggerDelay=text).max_trigger_delay_s == pytest.approx(seconds)


def test_client_settings_go_to_kclient_by_name() -> None:
    options = batch(
        kafka_isolation_level="READ_COMMITTED", kafka_client_id="x", kafka_fetch_max_bytes="1000"
    )
    assert dict(options.client) == {
        "isolation.level": "read_committed",
        "client.id": "x",
        "fetch.max.bytes": "1000",
    }
    assert options.read_committed
    assert options.admin_settings == {"bootstrap.servers": "h:1", "client.id": "x"}


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        (
            "subcribe",
            "t",
            "subcribe: unknown option of the kbroker source, did you mean subscribe?",
        ),
        ("bootstrap.servers", "h:1", "did you mean kafka.bootstrap.servers?"),
        ("groupIdPrefix", "g", "without a consumer group"),
        ("path", "/x", "path: this source reads topics"),
        ("kafka.group.id", "g", "kafka.group.id is not supported: .* without a consumer group"),
        ("kafka.max.poll.records", "5", "whole record batches"),
        ("kafka.ssl.truststore.location", "x", "TLS and SASL are not supported yet"),
        ("kafka.security.protocol", "SASL_SSL", "none of PLAINTEXT"),
        ("kafka.fetch.max.byte", "5", "unknown setting, did you mean fetch.max.bytes?"),
        ("kafka.client.dns.lookup", "x", "it has no effect in kclient"),
        ("kafka.acks", "all", "it is a setting of producers"),
        ("kafka.linger.ms", "5", "it is a setting of producers"),
        ("kafka.bootstrap.servers", "h:x", "is not host:port"),
        ("kafka.bootstrap.servers", "", "kafka.bootstrap.servers: the option is missing"),
        ("startingTimestamp", "-1", "is negative"),
        ("startingTimestamp", "noon", "is not a number"),
        ("startingTimestamp", "1_000", "is not a number"),
        ("startingTimestamp", str(1 << 63), "is not a number"),
        ("minPartitions", "1_0", "is not a whole number"),
        ("startingOffsets", '{"t": {"0": -3}}', "at least 0"),
        ("startingOffsets", '{"t": {"x": 1}}', "expected for example"),
        ("startingOffsets", '{"t": {"0": 1.5}}', "expected for example"),
        ("startingOffsets", '{"t": {"0": true}}', "expected for example"),
        ("startingOffsets", '{"t": [0]}', "expected for example"),
        ("startingOffsets", "", "expected for example"),
        ("endingOffsets", "[]", "expected for example"),
        ("maxTriggerDelay", "soon", "not a time"),
        ("fetchOffset.numRetries", "0", "at least 1"),
        ("maxOffsetsPerTrigger", "0", "at least 1"),
        ("maxOffsetsPerTrigger", str(1 << 63), r"below 2\^63"),
    ],
)
def test_a_wrong_or_unsupported_option_is_refused_by_name(
    name: str, value: str, reason: str
) -> None:
    with pytest.raises(OptionError, match=reason):
        stream(**{name: value}) if "ending" not in name else batch(**{name: value})


@pytest.mark.parametrize(
    "text",
    ['{"t": [-1]}', '{"t": 0}', "{}", '{"t": []}', '{"t": ["0"]}', "[0]", '{"t": [4294967296]}'],
)
def test_assign_names_partitions(text: str) -> None:
    with pytest.raises(OptionError, match="assign"):
        batch(assign=text)


def test_both_ends_name_the_same_partitions_in_order() -> None:
    with pytest.raises(OptionError, match="must name the same partitions: t-1"):
        batch(startingOffsets='{"t": {"0": 1}}', endingOffsets='{"t": {"0": 1, "1": 1}}')
    with pytest.raises(OptionError, match=r"startingOffsets of t-0 \(2\) is above endingOffsets"):
        batch(startingOffsets='{"t": {"0": 2}}', endingOffsets='{"t": {"0": 1}}')
    batch(startingOffsets='{"t": {"0": 2}}', endingOffsets='{"t": {"0": -1}}')


def test_the_schema_needs_no_kind_of_query() -> None:
    headers = given({"includeHeaders": "true", "endingOffsets": "latest"})
    assert optional_columns(headers) == OptionalColumns(headers=True)
    batches = given({"includebatches": "TRUE", "startingOffsets": "latest"})
    assert optional_columns(batches) == OptionalColumns(batches=True)
    assert optional_columns(given({})) == OptionalColumns()
    with pytest.raises(OptionError):
        optional_columns({"subscribe": "t"})


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_read(name: str) -> None:
    """A value of no type or format is refused for each option, so none is ignored."""
    if name in ("subscribe", "subscribePattern", "assign"):
        bad = {"subscribe": ",", "subscribePattern": "(", "assign": "t"}[name]
        options = {"kafka.bootstrap.servers": "h:1", name: bad}
    else:
        options = given({name: json.dumps({"t": "?"})})
    with pytest.raises(OptionError, match=name):
        parse(options, streaming=None)


@pytest.mark.parametrize("name", ["assign", "startingOffsets", "endingOffsetsByTimestamp"])
def test_json_with_too_many_levels_is_refused_by_name(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name}: expected for example"):
        batch(**{name: "[" * 100_000})
