"""A broker with faults of requests: ``python -m kbroker.testing.request_faults PLAN start server.properties``."""

from __future__ import annotations

import gc
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbroker.app.world import World
    from kbroker.common.logger_levels import LoggerLevels
    from kbroker.config import KafkaConfig
    from kbroker.network.service import Service
    from kbroker.network.socket_server import SocketServer


def main() -> None:
    """Run the broker; its requests have the faults of the plan in the file PLAN."""
    gc.disable()  # as `kbroker start` does
    from kbroker.app import exit_with, run

    plan, _start, properties = map(Path, sys.argv[1:4])
    exit_with(run(properties, (), make_world=partial(_world, plan)))


def _world(path: Path, levels: LoggerLevels) -> World:
    from kbroker.app.world import World
    from kbroker.network.socket_server import SocketServer
    from kbroker.testing.request_faults.plan import FaultPlan
    from kbroker.testing.request_faults.service import FaultyService

    plan = FaultPlan(path)

    def socket_server(reactor: Any, config: KafkaConfig, service: Service) -> SocketServer:
        faulty = FaultyService(
            service, plan, reactor, config.broker_id, config.inter_broker_listener
        )
        return SocketServer(reactor, config, faulty)

    return World(logger_levels=levels, socket_server=socket_server)


if __name__ == "__main__":
    main()
