"""Listeners that are added and removed while a broker runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from twisted.internet.error import CannotListenError

from kbroker.app.dynamic_listeners import DynamicListeners
from kbroker.common.endpoint import Endpoint
from kbroker.config import KafkaConfig, check_listener_changes


def config(listeners: str, advertised: str = "") -> KafkaConfig:
    return KafkaConfig.of({
        "broker.id": "1",
        "zookeeper.connect": "zk:2181",
        "listeners": listeners,
        "advertised.listeners": advertised,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,B:PLAINTEXT,C:PLAINTEXT",
    })  # fmt: skip


class Ports:
    """Records what is bound; a port 0 is bound as 40000, port 1 is taken."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def add_listener(self, endpoint: Endpoint) -> Endpoint:
        if endpoint.port == 1:
            raise CannotListenError(endpoint.host, 1, OSError("in use"))
        self.calls.append(f"+{endpoint}")
        return replace(endpoint, port=endpoint.port or 40000)

    def remove_listener(self, name: str) -> None:
        self.calls.append(f"-{name}")


def running(first: KafkaConfig) -> tuple[Ports, Callable[[KafkaConfig], list[str]]]:
    ports = Ports()
    listeners = DynamicListeners(ports, [replace(e, port=e.port or 50000) for e in first.endpoints])

    def change(to: KafkaConfig) -> list[str]:
        listeners.add(to)
        advertised = listeners.advertised(to)
        listeners.remove(to)
        return [str(endpoint) for endpoint in advertised]

    return ports, change


def test_a_new_listener_is_advertised_with_the_port_that_was_bound_and_a_removed_one_is_not() -> (
    None
):
    ports, change = running(config("PLAINTEXT://h:0"))
    assert change(config("PLAINTEXT://h:0,B://h:0")) == ["PLAINTEXT://h:50000", "B://h:40000"]
    assert change(config("PLAINTEXT://h:0,C://h:7", "PLAINTEXT://a:0,C://a:8")) == [
        "PLAINTEXT://a:50000",
        "C://a:8",
    ]
    assert ports.calls == ["+B://h:0", "+C://h:7", "-B"]


def test_a_listener_that_cannot_be_bound_is_left_out_and_tried_at_the_next_change() -> None:
    ports, change = running(config("PLAINTEXT://h:5"))
    assert change(config("PLAINTEXT://h:5,B://h:1")) == ["PLAINTEXT://h:5"]
    assert change(config("PLAINTEXT://h:5,B://h:6")) == ["PLAINTEXT://h:5", "B://h:6"]
    assert ports.calls == ["+B://h:6"]


@pytest.mark.parametrize(
    ("to", "problems"),
    [
        ("PLAINTEXT://h:5,B://h:6", 0),
        ("PLAINTEXT://h:6", 1),
        ("PLAINTEXT://other:5", 1),
    ],
)
def test_a_listener_that_stays_cannot_move(to: str, problems: int) -> None:
    assert len(check_listener_changes(config("PLAINTEXT://h:5"), config(to))) == problems
