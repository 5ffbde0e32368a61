"""The signals that stop a broker."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from kbroker.app.process import Process


class WaitingBroker:
    """A broker that starts for ever."""

    def __init__(self) -> None:
        self.stops = 0

    async def start(self) -> None:
        """Wait."""
        await Deferred()

    async def stop(self) -> None:
        """Count the stop."""
        self.stops += 1


class OneTurn(Clock):
    """A reactor that runs what was scheduled for the start, then *meanwhile*, and ends."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self.running = False
        self._meanwhile = meanwhile
        self._start: Callable[[], None] = lambda: None

    def callWhenRunning(self, call: Callable[[], None]) -> None:  # noqa: N802
        """Keep the start."""
        self._start = call

    def callFromThread(self, call: Callable[..., None], *args: Any) -> None:  # noqa: N802
        """Call within the turn."""
        self.callLater(0, call, *args)

    def run(self, *, installSignalHandlers: bool) -> None:  # noqa: N803
        """Run the turn."""
        self._start()
        self._meanwhile()
        self.advance(0)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[WaitingBroker]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    broker = WaitingBroker()
    monkeypatch.setattr("kbroker.app.broker.Broker", lambda *_args, **_settings: broker)
    yield broker
    for number, handler in before.items():
        signal.signal(number, handler)


def run(meanwhile: Callable[[], None]) -> int:
    nothing: Any = None
    return Process(OneTurn(meanwhile), nothing, nothing).run()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_the_broker_as_it_stops_a_jvm(
    broker: WaitingBroker, number: signal.Signals
) -> None:
    def arrives() -> None:
        handler = signal.getsignal(number)
        assert callable(handler)
        handler(number, None)

    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert run(arrives) == 0
    assert broker.stops == 1


def test_a_hangup_that_nohup_ignores_is_ignored(broker: WaitingBroker) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    run(lambda: None)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
