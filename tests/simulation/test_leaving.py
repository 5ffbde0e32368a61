"""The controller's own broker during its controlled shutdown."""

from __future__ import annotations

from kbroker.common.topic_partition import TopicPartition
from tests.simulation.node import Node
from tests.simulation.script import parse
from tests.simulation.simulation import Simulation

SCRIPT = """# seed 1, brokers 3, disks 1
1.000 create a 6
4.000 pause 2
4.100 stop 3
9.000 resume 2
12.000 start 3
"""
"""Broker 3 is the controller. Broker 2 acknowledges nothing meanwhile, so that the shutdown takes seconds."""


class Watched(Simulation):
    """Measures how long a partition is led from two brokers."""

    def __init__(self) -> None:
        super().__init__(parse(SCRIPT))
        self.longest = 0.0
        self.moved: set[TopicPartition] = set()
        self._since: dict[TopicPartition, float] = {}
        look = self._after

        def after(node: Node) -> None:
            look(node)
            leaders: dict[TopicPartition, int] = {}
            for each in self.nodes.values():
                if each.running and not each.paused and each.broker is not None:
                    for key, partition in each.partitions.items():
                        leaders[key] = leaders.get(key, 0) + (partition.leader_state is not None)
            for key, count in leaders.items():
                if count > 1:
                    self.moved.add(key)
                    since = self._since.setdefault(key, self.scheduler.now)
                    self.longest = max(self.longest, self.scheduler.now - since)
                else:
                    self._since.pop(key, None)

        self._after = after


def test_a_controller_that_leaves_steps_down_while_its_shutdown_waits_for_another_broker() -> None:
    cluster = Watched()
    result = cluster.run()
    assert result.failure is None, result.failure
    assert cluster.moved
    assert cluster.longest < 0.5
