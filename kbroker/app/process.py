"""The process around a broker: configuration, reactor, signals, exit code.

Exit codes: 0 after a requested shutdown; 1 if the broker could not start or could not continue. The cause is the last
line on stderr.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from kbroker.app import allocator, collector
from kbroker.config import ConfigError, KafkaConfig

if TYPE_CHECKING:
    from kbroker.apis.pipeline import RequestPipeline
    from kbroker.app.running import RunningBroker
    from kbroker.app.world import World
    from kbroker.common.logger_levels import LoggerLevels

SHUTDOWN_SECONDS = 25.0
"""Longest shutdown; then the process exits, which is safe because every start recovers."""

SETTLING_SECONDS = 1.0
"""Time from ready to the import of the handlers without a request; then the package may be replaced on disk."""


def run(
    file: Path,
    overrides: Sequence[str],
    *,
    make_world: Callable[[LoggerLevels], World] | None = None,
) -> int:
    """Run one broker until it has to stop; return the exit code. *make_world* is called with the reactor installed."""
    try:
        config = KafkaConfig.load(file, overrides)
    except ConfigError as error:
        many = len(error.problems)
        print(f"kbroker: {file}: {many} problem{'s' * (many > 1)}", file=sys.stderr)  # noqa: T201
        for problem in error.problems:
            print(f"    {problem}", file=sys.stderr)  # noqa: T201
        return 1
    allocator.limit_kept_memory()
    reactor = install_reactor(with_tls=_has_tls_listener(config))
    from kbroker.app.logs import BrokerLog, level_from_environment
    from kbroker.app.world import World
    from kbroker.common.logger_levels import LoggerLevels

    levels = LoggerLevels(level_from_environment())
    BrokerLog(levels).begin()
    world = World(logger_levels=levels) if make_world is None else make_world(levels)
    return Process(reactor, config, world).run()


def exit_with(code: int) -> NoReturn:
    """End the process, flushed. Threads that are still busy must not hold it.

    A recovery that SIGTERM cut short is one; the lock of its directory is given up with the process, not before.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _has_tls_listener(config: KafkaConfig) -> bool:
    return any(endpoint.security_protocol.endswith("SSL") for endpoint in config.endpoints)


def install_reactor(*, with_tls: bool) -> Any:
    """Install and return the reactor of this process, on a monotonic clock.

    Twisted imports OpenSSL where it is installed, a fifth of the start time. Without a TLS listener the import is
    blocked.
    """
    if not with_tls:
        sys.modules.setdefault("OpenSSL", None)  # type: ignore[arg-type]
    if sys.platform == "linux":
        from twisted.internet import epollreactor

        epollreactor.install()
    from twisted.internet import reactor

    # Twisted's own clock is the wall clock: a step of it would fire or freeze every timer.
    reactor.seconds = time.monotonic  # type: ignore[method-assign]
    return reactor


class Process:
    """Starts one broker, waits for a reason to stop, and stops it within a bounded time."""

    def __init__(self, reactor: Any, config: KafkaConfig, world: World) -> None:
        from kbroker.app.broker import Broker

        self._reactor = reactor
        self._exit_code = 0
        self._stopping = False
        self._broker = Broker(
            reactor, config, world=world, on_fatal=self._fatal, before_listening=collector.settle
        )

    def run(self) -> int:
        """Run the reactor until the broker has stopped."""
        self._reactor.callWhenRunning(self._start)
        self._reactor.run(installSignalHandlers=False)
        return self._exit_code

    def _start(self) -> None:
        from twisted.internet.defer import Deferred

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        # A terminal that closes sends it: a JVM, and so Apache Kafka, shuts down. Under nohup it is ignored.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._signalled)
        started = Deferred.fromCoroutine(self._broker.start())
        started.addCallbacks(self._started, self._start_failed)

    def _started(self, broker: RunningBroker) -> None:
        if not self._stopping:
            with suppress(OSError):  # stdout is closed: the broker serves all the same
                print(broker.ready_line, flush=True)  # noqa: T201
            collector.begin()
            self._reactor.callLater(SETTLING_SECONDS, self._make_handlers, broker.pipeline)

    def _make_handlers(self, pipeline: RequestPipeline) -> None:
        from twisted.internet.defer import Deferred

        from kbroker.common.turns import in_turns

        if not self._stopping:
            Deferred.fromCoroutine(in_turns(self._reactor, pipeline.make_handlers()))

    def _start_failed(self, failure: Any) -> None:
        from kbroker.app.broker import CannotStartError

        if self._stopping:
            return
        if isinstance(failure.value, CannotStartError):
            self._fatal(failure.value)
        else:
            from twisted.logger import Logger

            Logger().failure("the broker could not start", failure)
            self._fatal(failure.value)

    def _fatal(self, error: BaseException) -> None:
        if not self._stopping:
            self._exit_code = 1
            self._stop(f"kbroker: {error}")

    def _signalled(self, number: int, _frame: Any) -> None:
        if self._stopping and number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a third Ctrl-C kills the process
        self._reactor.callFromThread(self._stop, "")

    def _stop(self, last_words: str) -> None:
        if self._stopping:
            return
        self._stopping = True
        from twisted.internet.defer import Deferred

        timer = self._reactor.callLater(SHUTDOWN_SECONDS, self._end, last_words)

        def stopped(result: Any) -> None:
            if timer.active():
                timer.cancel()
                self._end(last_words)

        Deferred.fromCoroutine(self._broker.stop()).addErrback(self._stop_failed).addBoth(stopped)

    def _stop_failed(self, failure: Any) -> None:
        from twisted.logger import Logger

        Logger().failure("the shutdown was not clean", failure)

    def _end(self, last_words: str) -> None:
        if last_words:
            print(last_words, file=sys.stderr, flush=True)  # noqa: T201
        if self._reactor.running:
            self._reactor.stop()
