"""A switchboard in a process of its own, so that the traffic waits for no other interpreter.

A test's process may be full of clients in threads. One that spins (kafka-python does while a broker is away) has the
interpreter for 5 ms each time that the switchboard lets go of it. Pings to ZooKeeper were seconds late: sessions ended
that no fault had touched.

A call is a line of JSON on the stdin of ``python -m kbroker.testing.switchboard``, its result one on its stdout. When
stdin ends, so does the process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from kbroker.local.cluster import broker_environment

PROGRAM = "kbroker.testing.switchboard"


class RemoteSwitchboard:
    """What `Switchboard` is, in the process that *popen* starts. Its methods may be called from any thread."""

    def __init__(self, popen: Callable[..., subprocess.Popen[Any]] = subprocess.Popen) -> None:
        self._lock = threading.Lock()
        self._process = popen(
            [sys.executable, "-m", PROGRAM],
            env={**os.environ, **broker_environment()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C at a terminal is for the test
        )

    def _call(self, method: str, *arguments: Any) -> Any:
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps([method, arguments]) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def route(self, source: str | None, target: str, port: int) -> int:
        """See `Switchboard.route`."""
        return int(self._call("route", source, target, port))

    def hold(self, *directions: tuple[str, str]) -> None:
        """See `Switchboard.hold`."""
        self._call("hold", *directions)

    def cut(self, one: str, *others: str) -> None:
        """See `Switchboard.cut`."""
        self._call("cut", one, *others)

    def hold_only(self, *directions: tuple[str, str]) -> None:
        """See `Switchboard.hold_only`."""
        self._call("hold_only", *directions)

    def throttle(self, source: str, target: str, bytes_per_second: int) -> None:
        """See `Switchboard.throttle`."""
        self._call("throttle", source, target, bytes_per_second)

    def delay(self, source: str, target: str, seconds: float) -> None:
        """See `Switchboard.delay`."""
        self._call("delay", source, target, seconds)

    def delay_only(self, *delays: tuple[str, str, float]) -> None:
        """See `Switchboard.delay_only`."""
        self._call("delay_only", *delays)

    def reset(self, one: str, other: str) -> None:
        """See `Switchboard.reset`."""
        self._call("reset", one, other)

    def heal(self) -> None:
        """See `Switchboard.heal`."""
        self._call("heal")

    def settle(self) -> None:
        """See `Switchboard.settle`."""
        self._call("settle")

    def close(self) -> None:
        """See `Switchboard.close`; the process ends."""
        with self._lock:
            self._process.communicate(timeout=15)
