"""Settings: Kafka's names, snake_case twins, all problems at once."""

from __future__ import annotations

import dataclasses
import re

import pytest

from kclient.config import (
    CONFIGS,
    AdminConfig,
    CommonConfig,
    ConsumerConfig,
    ProducerConfig,
    dotted,
    every_setting,
    parse_addresses,
    read_properties,
)
from kclient.errors import Address, ConfigError
from kclient.settings_elsewhere import ADVICE


def test_dotted_names_and_keywords_are_the_same_setting_and_keywords_win() -> None:
    config = ProducerConfig.load({"linger.ms": "7", "acks": "1"}, linger_ms=9)
    assert (config.linger_ms, config.acks) == (9, "1")


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"linger\.sm: unknown setting, did you mean linger\.ms"):
        ProducerConfig.load({"linger.sm": 1})


@pytest.mark.parametrize("name", ADVICE)
def test_a_setting_of_another_client_is_refused_with_what_to_write_instead(name: str) -> None:
    """message.timeout.ms suggested session.timeout.ms, the nearest name, which is another thing."""
    for written in (name, name.replace(".", "_")):
        with pytest.raises(ConfigError, match=re.escape(f"{written}: no setting of kclient; ")):
            ConsumerConfig.load({written: "1"})
    named = re.search(r"^write ([a-z.]+)", ADVICE[name])
    if named and "its" not in ADVICE[name]:
        assert named[1].replace(".", "_") in every_setting()


def test_one_dictionary_may_serve_several_clients() -> None:
    shared = {"group.id": "g", "linger.ms": 1, "bootstrap.servers": "a:1"}
    assert ConsumerConfig.load(shared).group_id == "g"
    assert AdminConfig.load(shared).addresses == [Address("a", 1)]


def test_one_error_lists_every_problem() -> None:
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.load({"linger.ms": "soon", "compression.type": "rar", "sasl.mechanism": "X"})
    text = str(caught.value)
    assert all(name in text for name in ("linger.ms", "compression.type", "sasl.mechanism"))


@pytest.mark.parametrize(("given", "meant"), [("all", "all"), (-1, "all"), ("1", "1"), (0, "0")])
def test_acks_may_be_written_in_all_the_usual_ways(given: object, meant: str) -> None:
    assert ProducerConfig.load(acks=given).acks == meant


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a:1,b:2", [Address("a", 1), Address("b", 2)]),
        (" a ", [Address("a", 9092)]),
        ("PLAINTEXT://a:1", [Address("a", 1)]),
        ("[::1]:5,[fe80::1]", [Address("::1", 5), Address("fe80::1", 9092)]),
        ("[fe80::1%eth0]:5,::1", [Address("fe80::1%eth0", 5), Address("::1", 9092)]),
        (
            "b\u00fccher.example.:1,my_broker",
            [Address("b\u00fccher.example.", 1), Address("my_broker", 9092)],
        ),
        (f"{'a' * 63}.b:1", [Address("a" * 63 + ".b", 1)]),
    ],
)
def test_addresses_are_read(text: str, found: list[Address]) -> None:
    assert parse_addresses(text) == found


@pytest.mark.parametrize("text", ["", "a:b", "a:0", "a:70000", ":9092"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        parse_addresses(text)


@pytest.mark.parametrize(
    "entry",
    [
        "[::1:9092", "[::1]:::9092", "[::1]9092", "[::1", "a]:1", "[]:1", "[a]:1", "[a:b]:1", "a:1:2:9092", ":::1",
        "a:\u00b2", "a:\u0663", f"a:{'9' * 5000}",
    ],
)  # fmt: skip
def test_the_error_of_a_wrong_address_names_it(entry: str) -> None:
    """int() refuses a port such as \u00b2, which str.isdigit() takes."""
    with pytest.raises(
        ConfigError, match=re.escape(f"bootstrap.servers: {entry!r:.200} is not host:port")
    ):
        parse_addresses(f"a:1,{entry}")


@pytest.mark.parametrize(
    "host",
    [
        "a..b",
        ".a",
        ".",
        "a" * 64,
        f"b.{'a' * 64}",
        "\u2024",
        "\u2024a",
        "\udcff",
        "a\0b",
        "b\u00fccher..de",
    ],
)
def test_the_error_of_a_host_without_a_valid_name_names_it(host: str) -> None:
    """The thread of the resolver, in which IDNA refuses it, gave no answer."""
    with pytest.raises(
        ConfigError,
        match=re.escape(f"bootstrap.servers: {host + ':9092'!r} has no valid host name"),
    ):
        parse_addresses(f"a:1,{host}:9092")


def test_an_ipv6_address_is_written_in_brackets() -> None:
    assert str(Address("::1", 9092)) == "[::1]:9092"


def test_a_heartbeat_slower_than_the_session_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"heartbeat\.interval\.ms"):
        ConsumerConfig.load(session_timeout_ms=3000)


def test_a_properties_file_is_read() -> None:
    text = "# comment\nbootstrap.servers = a:1,\\\n  b:2\n\n! also\nacks=1\n"
    assert read_properties(text) == {"bootstrap.servers": "a:1,b:2", "acks": "1"}


DURATIONS = [
    (kind, f.name)
    for kind in CONFIGS
    for f in dataclasses.fields(kind)
    if f.name.endswith("_ms") and f.name != "connections_max_idle_ms"
]


@pytest.mark.parametrize(("kind", "name"), DURATIONS)
def test_a_negative_duration_is_refused_as_in_kafka(kind: type[CommonConfig], name: str) -> None:
    """A negative request.timeout.ms ended a command by an exception in the reactor's callLater."""
    with pytest.raises(ConfigError, match=re.escape(f"{dotted(name)}: '-1' is below ")):
        kind.load({dotted(name): "-1"})


def test_connections_stay_open_with_a_negative_idle_time_as_in_kafka() -> None:
    assert AdminConfig.load({"connections.max.idle.ms": "-1"}).connections_max_idle_ms == -1


@pytest.mark.parametrize("name", ["fetch.max.bytes", "max.partition.fetch.bytes"])
def test_a_negative_size_is_refused_as_in_kafka(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{name}: -1 is below 0")):
        ConsumerConfig.load({name: -1})


def test_a_number_that_does_not_fit_kafkas_type_is_refused() -> None:
    """Requests have four bytes for it."""
    with pytest.raises(
        ConfigError, match=r"request\.timeout\.ms: '2147483648' is above 2147483647"
    ):
        AdminConfig.load({"request.timeout.ms": "2147483648"})
    with pytest.raises(ConfigError, match=r"max\.block\.ms: '9{400}' is above 9223372036854775807"):
        ProducerConfig.load({"max.block.ms": "9" * 400})
    assert AdminConfig.load({"metadata.max.age.ms": 2**31}).metadata_max_age_ms == 2**31


@pytest.mark.parametrize("text", ["nan", "inf", "-inf"])
def test_what_is_not_finite_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"linger\.ms: '{text}' is not a finite number"):
        ProducerConfig.load({"linger.ms": text})


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_defaults_pass_the_checks(kind: type[CommonConfig]) -> None:
    assert kind.load({dotted(f.name): f.default for f in dataclasses.fields(kind)}) == kind.load()


STRINGS = [
    (kind, f.name)
    for kind in CONFIGS
    for f in dataclasses.fields(kind)
    if f.name in ("client_id", "client_rack", "group_id", "group_instance_id", "transactional_id")
]


@pytest.mark.parametrize(("kind", "name"), STRINGS)
def test_a_string_that_requests_cannot_carry_is_refused(
    kind: type[CommonConfig], name: str
) -> None:
    """They have two bytes for its length: with a long client.id the first request ended with a struct.error."""
    longest, written = "é" * 16_383 + "a", dotted(name)
    assert getattr(kind.load({written: longest}), name) == longest
    with pytest.raises(
        ConfigError, match=f"^{re.escape(written)}: it has 32768 bytes in UTF-8, above 32767$"
    ):
        kind.load({written: "é" * 16_384})
    with pytest.raises(
        ConfigError, match=rf"^{re.escape(written)}: '\\udcff' is no text in UTF-8$"
    ):
        kind.load({written: "\udcff"})
