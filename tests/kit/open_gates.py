"""Gates of the request pipeline that are always open: no request waits for a registration or for metadata."""

from __future__ import annotations

from typing import Any

from kbroker.apis.gates import Gate


class OpenGates:
    """Stands for `BrokerGates` where there is no cluster."""

    def wait(self, _gate: Gate, _request: Any) -> None:
        """Return None: the gate is open."""
