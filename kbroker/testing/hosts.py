"""Where a process of a test runs: its address, and the command prefix that starts it there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Host:
    """An IPv4 address and the words that go before a command, for example ``ip netns exec NAME``."""

    address: str
    prefix: tuple[str, ...] = ()


LOOPBACK = Host("127.0.0.1")
