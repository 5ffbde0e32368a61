"""Stage 1 of a broker: it is configured, and has neither locked a directory nor opened a connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kbroker.app.world import World
from kbroker.config import KafkaConfig


class CannotContinueError(Exception):
    """The broker has to stop; the text has the cause."""


@dataclass(frozen=True, slots=True)
class ConfiguredBroker:
    """What a broker is made from."""

    reactor: Any
    config: KafkaConfig
    world: World
    on_fatal: Callable[[BaseException], None]
    """Receives the cause when the broker has to stop."""
