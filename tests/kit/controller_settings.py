"""The settings of a controller under test: every election is one that a test asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kbroker.controller.settings import ControllerSettings

SETTINGS = ControllerSettings(
    1,
    "PLAINTEXT",
    delete_topic_enable=True,
    control_plane_listener="",
    rebalance_seconds=None,
    imbalance_percentage=10,
    unclean_leader_election=lambda: False,
    min_insync_replicas=lambda _topic: 1,
    is_extended=True,
)


def controller_settings(**changed: Any) -> ControllerSettings:
    """Return the settings of broker 1 with the *changed* ones."""
    return replace(SETTINGS, **changed)
