"""The drain gives up if nothing is copied, and waits for the limit of bytes per second."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from kclient.types import TopicPartition
from mirrormaker.bandwidth import Bandwidth
from mirrormaker.command_exit import Refused
from mirrormaker.drain import drain
from mirrormaker.topics import Topic

TP = TopicPartition("t", 0)


@pytest.mark.parametrize(("rate", "given_up_after"), [(0, 60), (16_000, 122)])
def test_a_limit_of_bytes_per_second_is_no_stall(rate: int, given_up_after: int) -> None:
    """With 16,000 bytes per second, a batch of 1 MB lets the next fetch wait for 62 s: promote was refused."""
    clock, links = Clock(), {}
    bandwidth = Bandwidth(rate, now=0.0)
    bandwidth.fetched(1_000_000, now=0.0)
    flow = SimpleNamespace(
        reactor=clock,
        bandwidth=bandwidth,
        progress=SimpleNamespace(changed_at=0.0),
        marks=SimpleNamespace(known=lambda *_: None),
        links=links,
        settled=False,
        add=lambda link, copy: links.update({copy: link}),
    )
    mirror: Any = SimpleNamespace(flow=flow)
    results: list[Any] = []
    draining = drain(mirror, {"t": Topic(1, None)}, {TP: 5}, stall=60.0)
    Deferred.fromCoroutine(draining).addBoth(results.append)
    for _ in range(2 * given_up_after - 2):
        clock.advance(0.5)
    assert results == []
    for _ in range(10):
        clock.advance(0.5)
    assert isinstance(results[0].value, Refused)
