"""When log ends are read, without any broker."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from kclient.config import CommonConfig
from kclient.net.cluster import Cluster
from kclient.types import TopicPartition
from mirrormaker.locator import Locator, Timers
from mirrormaker.log_ends import TIMEOUT

TP = TopicPartition("t", 0)


@pytest.mark.parametrize("delay_of_the_removed_link", [0.5, 1.0])
def test_a_link_gets_its_answer_although_its_predecessor_asked_later(
    delay_of_the_removed_link: float,
) -> None:
    clock = Clock()
    config = CommonConfig.load({"bootstrap.servers": "127.0.0.1:1"})
    clusters = [Cluster(clock, config, dial=lambda *_, **__: Deferred()) for _ in range(2)]
    answered: list[Any] = []
    locator = Locator(
        *clusters,
        Timers(clock),
        {TP: TP},
        found=lambda tp, generation, _answer: answered.append((tp, generation)),
        all_found=lambda: None,
        defect=lambda failure: failure.raiseException(),
    )
    locator.request(TP, 0, delay_of_the_removed_link)
    locator.request(TP, 1, 0.9)
    clock.advance(1.0)  # a turn of the reactor in which both are due
    clock.pump([0.1] * int(400 * TIMEOUT))
    assert answered == [(TP, 1)]
