"""One broker: its stages, started in order and stopped in the opposite one.

Theory of operation
===================
Each stage is a frozen value with all that the stage has; the function that makes it takes the stage before:

    ConfiguredBroker -> identify -> IdentifiedBroker -> bootstrap -> BootstrappedBroker -> listen, join -> RunningBroker

Every step of the start adds to `Undo` what undoes it. The stop runs that in the opposite order. Leadership is handed
over (controlled shutdown, bounded), and the registration is given up. Members of groups are answered, connections
close, and the ZooKeeper session ends. The logs are closed last, cleanly, with a few syncs for all of them
(`kbroker.log.log_manager`). A line of the log has the time of each step.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.error import CannotListenError
from twisted.logger import Logger

from kbroker.app.bootstrapped import BootstrappedBroker, bootstrap
from kbroker.app.configured import ConfiguredBroker
from kbroker.app.identified import IdentifiedBroker, identify
from kbroker.app.running import RunningBroker, join, listen
from kbroker.app.undo import Undo
from kbroker.app.world import World
from kbroker.config import KafkaConfig
from kbroker.metadata.broker_registration import DuplicateBrokerError
from kbroker.zk.errors import ZooKeeperError
from kclient.wire.errors import KafkaError
from kclient.wire.record_cursor import IS_COMPILED

log = Logger(namespace="kbroker.broker")

Stage = ConfiguredBroker | IdentifiedBroker | BootstrappedBroker | RunningBroker


class CannotStartError(Exception):
    """The broker cannot start; the text has the cause, and what to do about it."""


class Broker:
    """A broker from its configuration to its stop. *on_fatal* receives the cause when it has to stop.

    *before_listening* is called when the logs are loaded and no client can connect yet.
    """

    def __init__(
        self,
        reactor: Any,
        config: KafkaConfig,
        *,
        on_fatal: Callable[[BaseException], None],
        world: World | None = None,
        before_listening: Callable[[], None] = lambda: None,
    ) -> None:
        self._configured = ConfiguredBroker(reactor, config, world or World(), on_fatal)
        self._before_listening = before_listening
        self._undo = Undo(reactor.seconds)
        self.stage: Stage = self._configured
        """What the start has reached."""

    @property
    def bootstrapped(self) -> BootstrappedBroker | None:
        """The parts of the broker, once its logs are loaded."""
        stage = self.stage
        if isinstance(stage, RunningBroker):
            return stage.bootstrapped
        return stage if isinstance(stage, BootstrappedBroker) else None

    async def start(self) -> RunningBroker:
        """Start everything; raise CannotStartError."""
        try:
            return await self._start()
        except (KafkaError, ZooKeeperError, DuplicateBrokerError, OSError) as error:
            raise CannotStartError(_with_hint(error)) from error
        except CannotListenError as error:
            raise CannotStartError(
                f"cannot listen at {error.interface or '*'}:{error.port}: {error.socketError}. "
                "Is another broker or program using that port? See `listeners`."
            ) from error

    async def _start(self) -> RunningBroker:
        for warning in self._configured.config.warnings:
            log.warn("configuration: {warning}", warning=warning)
        if not IS_COMPILED:
            log.warn(
                "the check of produced records is interpreted and costs 70 times as much CPU as compiled;"
                " install a C compiler and mypy, and run tools/compile.py"
            )
        identified = self.stage = await identify(self._configured, self._undo)
        bootstrapped = self.stage = await bootstrap(identified, self._undo)
        self._before_listening()
        running = self.stage = listen(bootstrapped, self._undo)
        await join(running, self._undo)
        return running

    async def stop(self) -> None:
        """Undo the start; a step that fails does not stop the others."""
        await self._undo.run()


def _with_hint(error: BaseException) -> str:
    hint = getattr(error, "hint", None)
    return f"{error}" if not hint or hint in str(error) else f"{error}\n    {hint}"
