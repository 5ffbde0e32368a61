"""Every setting of the clients: the name, type and default of Kafka's Java clients, and one line of documentation.

A setting is ``linger.ms`` in dictionaries and files, and ``linger_ms`` as a keyword; the field names below are the
second form. One dictionary may serve several clients: a consumer ignores a producer's settings. An unknown name is a
`ConfigError` that suggests the nearest known one.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeVar

from kclient.errors import Address, ConfigError
from kclient.host_names import is_host_name, is_ipv6_literal
from kclient.settings_elsewhere import ADVICE
from kclient.wire.fields import MAX_STRING

C = TypeVar("C", bound="CommonConfig")


INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
"""The largest numbers of Kafka's types INT and LONG. Numbers are INT where nothing else is stated."""


def _setting(
    default: Any,
    doc: str,
    *,
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
    maximum: float = INT_MAX,
) -> Any:
    bounds = {"minimum": minimum, "maximum": maximum}
    return field(default=default, metadata={"doc": doc, "choices": choices, **bounds})


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonConfig:
    """Settings of all clients."""

    client: ClassVar[str]
    """The client with these settings, for error texts."""

    bootstrap_servers: str = _setting(
        "localhost:9092", "Brokers to connect to first, host:port separated by commas."
    )
    client_id: str = _setting("kclient", "Name of this client in its requests.")
    request_timeout_ms: int = _setting(30_000, "Timeout of a request, in ms.", minimum=0)
    socket_connection_setup_timeout_ms: int = _setting(
        10_000,
        "Timeout of one connection attempt with ApiVersions, in ms.",
        minimum=0,
        maximum=LONG_MAX,
    )
    reconnect_backoff_ms: int = _setting(
        50, "Wait before a new connection attempt to a broker, in ms.", minimum=0, maximum=LONG_MAX
    )
    reconnect_backoff_max_ms: int = _setting(
        1_000, "Upper bound of that exponential backoff.", minimum=0, maximum=LONG_MAX
    )
    retry_backoff_ms: int = _setting(
        100, "Wait before a failed request is retried, in ms.", minimum=0, maximum=LONG_MAX
    )
    retry_backoff_max_ms: int = _setting(
        1_000, "Upper bound of that exponential backoff.", minimum=0, maximum=LONG_MAX
    )
    metadata_max_age_ms: int = _setting(
        300_000, "Metadata are fetched again after this time.", minimum=0, maximum=LONG_MAX
    )
    connections_max_idle_ms: int = _setting(
        540_000, "An idle connection is closed after this time; -1: never.", maximum=LONG_MAX
    )
    default_api_timeout_ms: int = _setting(
        60_000, "Timeout of calls without a timeout argument.", minimum=0
    )
    security_protocol: str = _setting(
        "PLAINTEXT", "Security protocol of connections to brokers.", choices=("PLAINTEXT",)
    )

    @classmethod
    def load(cls, config: Mapping[str, Any] | None = None, /, **keywords: Any) -> Self:
        """Build the settings from dotted names and keywords; keywords win.

        Raise one `ConfigError` that lists every problem, TypeError if *config* is no dictionary.
        """
        cls._check_is_dict(config)
        known = {f.name: f for f in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        problems: list[str] = []
        given = {**{snake(name): (name, value) for name, value in (config or {}).items()}}
        given.update({name: (name, value) for name, value in keywords.items()})
        for name, (written, value) in given.items():
            if name in known:
                try:
                    values[name] = _convert(known[name], written, value)
                except ValueError as problem:
                    problems.append(str(problem))
            elif name not in every_setting() and dotted(name) not in NO_EFFECT:
                problems.append(_unknown(written))
        if not problems:
            made = cls(**values)
            problems += made.contradictions()
            if not problems:
                return made
        raise ConfigError(
            problems[0]
            if len(problems) == 1
            else "several settings are wrong:" + "".join(f"\n  {p}" for p in problems)
        )

    @classmethod
    def _check_is_dict(cls, config: object) -> None:
        if config is not None and not isinstance(config, Mapping):
            servers = config if isinstance(config, str) else "localhost:9092"
            raise TypeError(
                f"{config!r} is no dict of settings; expected "
                f'{cls.client}({{"bootstrap.servers": "{servers}"}})'
            )

    def contradictions(self) -> list[str]:
        """Return the conflicts between settings."""
        try:
            parse_addresses(self.bootstrap_servers)
        except ConfigError as problem:
            return [problem.message]
        return []

    @property
    def addresses(self) -> list[Address]:
        """The bootstrap servers."""
        return parse_addresses(self.bootstrap_servers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(CommonConfig):
    """Settings of a producer."""

    client: ClassVar[str] = "Producer"

    acks: str = _setting(
        "all",
        "Replicas that must have a record: 0 none, 1 the leader, all the ISR.",
        choices=("0", "1", "all"),
    )
    batch_size: int = _setting(131_072, "Bytes at which a partition's batch is full.", minimum=0)
    columns_batch_size: int = _setting(
        1_000_000,
        "Bytes at which a batch of send_columns is full, if its rows are sent in order; "
        "at least batch.size, at most an eighth of buffer.memory.",
        minimum=0,
    )
    linger_ms: float = _setting(
        5, "How long a batch waits for more records, in ms.", minimum=0, maximum=LONG_MAX
    )
    buffer_memory: int = _setting(
        33_554_432,
        "Bytes of unacknowledged records; send blocks when it is full.",
        minimum=1,
        maximum=LONG_MAX,
    )
    max_block_ms: int = _setting(
        60_000, "How long send waits for metadata and memory.", minimum=0, maximum=LONG_MAX
    )
    delivery_timeout_ms: int = _setting(
        120_000, "Time limit from send to acknowledgement, in ms.", minimum=0
    )
    max_request_size: int = _setting(
        1_048_576, "Bytes of the largest record and the largest Produce request.", minimum=1
    )
    compression_type: str = _setting(
        "none", "Codec of the batches.", choices=("none", "gzip", "snappy", "lz4", "zstd")
    )
    retries: int = _setting(
        2_147_483_647, "Attempts after the first; delivery.timeout.ms also limits them.", minimum=0
    )
    max_in_flight_requests_per_connection: int = _setting(
        5, "Unanswered requests per broker.", minimum=1
    )
    enable_idempotence: bool = _setting(
        True, "Number the batches, so that the broker drops duplicates (KIP-98)."
    )
    partitioner_ignore_keys: bool = _setting(False, "Choose partitions as if no record had a key.")
    transactional_id: str = _setting(
        "",
        "Name of the producer in transactions; a later one with the same name fences it (KIP-98).",
    )
    transaction_timeout_ms: int = _setting(
        60_000, "A transaction that is open for longer is aborted by its coordinator.", minimum=1
    )

    def contradictions(self) -> list[str]:
        """Return the conflicts between settings."""
        problems = CommonConfig.contradictions(self)
        if self.transactional_id and not (self.enable_idempotence and self.acks == "all"):
            problems.append("transactional.id needs enable.idempotence=true and acks=all")
        return problems


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(CommonConfig):
    """Settings of a consumer."""

    client: ClassVar[str] = "Consumer"

    group_id: str = _setting("", "The group to join; empty for a consumer without a group.")
    group_instance_id: str = _setting(
        "", "The name of a static member, which survives restarts (KIP-345)."
    )
    auto_offset_reset: str = _setting(
        "latest", "Where to start without a valid position.", choices=("earliest", "latest", "none")
    )
    enable_auto_commit: bool = _setting(
        True, "Commit the records that poll has returned, periodically."
    )
    auto_commit_interval_ms: int = _setting(5_000, "Period of automatic commits.", minimum=1)
    enable_auto_offset_store: bool = _setting(
        True, "Commit what poll has returned; if false, only what store_offsets has stored."
    )
    fetch_min_bytes: int = _setting(
        1, "The broker holds a fetch until it has this many bytes.", minimum=0
    )
    fetch_max_wait_ms: int = _setting(500, "Upper bound of that wait.", minimum=0)
    fetch_max_bytes: int = _setting(
        52_428_800, "Bytes of one fetch, and of all prefetched records.", minimum=0
    )
    max_partition_fetch_bytes: int = _setting(
        1_048_576, "Bytes of one partition in a fetch.", minimum=0
    )
    max_poll_records: int = _setting(500, "Upper bound of the records in one poll.", minimum=1)
    max_poll_interval_ms: int = _setting(
        300_000, "A member that does not poll for this time leaves its group.", minimum=1
    )
    session_timeout_ms: int = _setting(
        45_000, "A member without heartbeats for this time is removed.", minimum=1
    )
    heartbeat_interval_ms: int = _setting(3_000, "Period of heartbeats.", minimum=1)
    rebalance_timeout_ms: int = _setting(
        0, "Time for members to rejoin in a rebalance; 0 takes max.poll.interval.ms.", minimum=0
    )
    partition_assignment_strategy: str = _setting(
        "range,cooperative-sticky",
        "Assignors in order of preference: range, roundrobin, cooperative-sticky.",
    )
    isolation_level: str = _setting(
        "read_uncommitted",
        "Whether records of open and aborted transactions are returned.",
        choices=("read_uncommitted", "read_committed"),
    )
    check_crcs: bool = _setting(True, "Check the CRC of every batch.")
    client_rack: str = _setting(
        "", "Rack of this client, for fetching from a nearby replica (KIP-392)."
    )
    allow_auto_create_topics: bool = _setting(
        True, "Allow brokers to create a subscribed topic (auto.create.topics.enable)."
    )
    exclude_internal_topics: bool = _setting(True, "Patterns do not match internal topics.")

    @property
    def read_committed(self) -> bool:
        """Whether isolation.level is read_committed."""
        return self.isolation_level == "read_committed"

    def contradictions(self) -> list[str]:
        """Return the conflicts between settings."""
        problems = CommonConfig.contradictions(self)
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            problems.append(
                f"heartbeat.interval.ms ({self.heartbeat_interval_ms}) must be below "
                f"session.timeout.ms ({self.session_timeout_ms}), a third of it is best"
            )
        return problems


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig(CommonConfig):
    """Settings of an admin client."""

    client: ClassVar[str] = "AdminClient"

    retries: int = _setting(
        2_147_483_647, "Attempts after the first; default.api.timeout.ms limits them.", minimum=0
    )


CONFIGS: tuple[type[CommonConfig], ...] = (
    CommonConfig,
    ProducerConfig,
    ConsumerConfig,
    AdminConfig,
)

NO_EFFECT = frozenset(
    [
        "auto.include.jmx.reporter",
        "client.dns.lookup",
        "enable.metrics.push",
        "interceptor.classes",
        "key.serializer",
        "value.serializer",
        "key.deserializer",
        "value.deserializer",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "receive.buffer.bytes",
        "send.buffer.bytes",
        "partitioner.class",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
        "metadata.max.idle.ms",
    ]
)
"""Java settings that are accepted and have no effect here."""


def every_setting() -> dict[str, dataclasses.Field[Any]]:
    """Return all settings of all clients by their keyword name."""
    return {f.name: f for config in CONFIGS for f in dataclasses.fields(config)}


def describe(cls: type[CommonConfig]) -> Iterator[tuple[str, str, Any, str]]:
    """Yield (dotted name, type, default, doc) of every setting of *cls*."""
    for f in dataclasses.fields(cls):
        yield dotted(f.name), str(f.type), f.default, f.metadata["doc"]


_HOST_AND_PORT = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]+))(?::([0-9]{0,5}))?")
"""An IPv6 address in brackets, or another host; and a port, or none."""

_PORT = 9092
"""Of an address without a port."""


def parse_addresses(text: str | list[str] | tuple[str, ...]) -> list[Address]:
    """Parse ``host:port,[::1]:9092``; the default port is 9092.

    Raise `ConfigError` for an invalid or empty list.
    """
    found = []
    for part in text.split(",") if isinstance(text, str) else text:
        entry = part.strip().partition("://")[2] or part.strip()
        if not entry:
            continue
        match = _HOST_AND_PORT.fullmatch(entry)
        if match is None and is_ipv6_literal(entry):
            found.append(Address(entry, _PORT))
            continue
        port = int(match[3] or _PORT) if match else 0
        if match is None or not 0 < port < 65536 or not (match[2] or is_ipv6_literal(match[1])):
            raise ConfigError(f"bootstrap.servers: {entry!r:.200} is not host:port")
        if match[2] and not is_host_name(match[2]):
            raise ConfigError(f"bootstrap.servers: {entry!r:.200} has no valid host name")
        found.append(Address(match[1] or match[2], port))
    if not found:
        raise ConfigError("bootstrap.servers: no address is given, expected host:port")
    return found


def read_properties(text: str) -> dict[str, str]:
    r"""Read a client properties file: ``key=value`` lines, ``#`` comments, ``\\`` continues a line."""
    values = {}
    pending = ""
    for line in text.splitlines():
        stripped = pending + line.strip()
        pending = ""
        if not stripped or stripped[0] in "#!":
            continue
        if stripped.endswith("\\"):
            pending = stripped[:-1]
            continue
        name, _, value = stripped.partition("=")
        values[name.strip()] = value.strip()
    return values


def snake(name: str) -> str:
    """Return the keyword of a setting: linger_ms of linger.ms."""
    return name.replace(".", "_")


def dotted(name: str) -> str:
    """Return the name of a setting as Kafka writes it: linger.ms of linger_ms."""
    return name.replace("_", ".")


def _unknown(written: str) -> str:
    name = dotted(written)
    if name.startswith(("ssl.", "sasl.")):
        return f"{written}: TLS and SASL are not supported yet"
    if name in ADVICE:
        return f"{written}: no setting of kclient; {ADVICE[name]}"
    candidates = [dotted(known) for known in every_setting()]
    near = difflib.get_close_matches(name, candidates, n=1)
    return f"{written}: unknown setting" + (f", did you mean {near[0]}?" if near else "")


_IN_REQUESTS = ("client_id", "client_rack", "group_id", "group_instance_id", "transactional_id")
"""The settings that are strings of requests."""


def _check_fits_string(written: str, text: str) -> None:
    """Raise ValueError unless *text* fits Kafka's type STRING."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{written}: {text!r:.200} is no text in UTF-8") from None
    if size > MAX_STRING:
        raise ValueError(f"{written}: it has {size} bytes in UTF-8, above {MAX_STRING}")


_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


def _convert(setting: dataclasses.Field[Any], written: str, value: Any) -> Any:
    """Return *value* as the setting's type; raise ValueError with the problem."""
    kind = setting.type
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value).strip()
    converted: Any
    if kind == "bool":
        if text.lower() not in _TRUE + _FALSE:
            raise ValueError(f"{written}: {value!r} is neither true nor false")
        converted = text.lower() in _TRUE
    elif kind in ("int", "float"):
        try:
            converted = int(text) if kind == "int" else float(text)
        except ValueError:
            raise ValueError(f"{written}: {value!r} is not a number") from None
        if isinstance(converted, float) and not math.isfinite(converted):
            raise ValueError(f"{written}: {value!r} is not a finite number")
        minimum, maximum = setting.metadata["minimum"], setting.metadata["maximum"]
        if minimum is not None and converted < minimum:
            raise ValueError(f"{written}: {value!r} is below {minimum}")
        if converted > maximum:
            raise ValueError(f"{written}: {value!r} is above {maximum}")
    else:
        converted = "" if value is None else text
        if setting.name in _IN_REQUESTS:
            _check_fits_string(written, converted)
    choices = setting.metadata["choices"]
    if choices:
        converted = {"-1": "all"}.get(converted, converted)
        matching = [c for c in choices if c.lower() == converted.lower()]
        if not matching:
            raise ValueError(f"{written}: {value!r} is none of {', '.join(choices)}")
        converted = matching[0]
    return converted
