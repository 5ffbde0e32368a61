"""The async/await API: the same clients, for coroutines of Twisted and of asyncio.

    async with Producer(bootstrap_servers="localhost:9092") as producer:
        metadata = await producer.send("topic", b"value")

It does not need asyncio: `run` runs such a coroutine on Twisted's reactor. Inside a running asyncio loop, as under
``asyncio.run``, the first client installs Twisted's asyncio reactor on that loop. Nothing may have imported another
reactor before.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from twisted.internet.defer import Deferred

from kclient.producer.transaction import Transaction
from kclient.standard_logging import use_standard_logging

T = TypeVar("T")

__all__ = ["AdminClient", "Consumer", "Producer", "run"]


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the coroutine main() on Twisted's reactor until it ends; return its result or raise its error.

    Call it once per process, from the main thread: a reactor cannot be started twice.
    """
    from twisted.internet import reactor

    outcome: list[Any] = []

    def start() -> None:
        done = Deferred.fromCoroutine(main())
        done.addBoth(outcome.append)
        done.addBoth(lambda _: reactor.stop())

    reactor.callWhenRunning(start)
    reactor.run()
    if not outcome:
        raise KeyboardInterrupt
    result = outcome[0]
    if hasattr(result, "raiseException"):
        result.raiseException()
    return result  # type: ignore[no-any-return]


def _asyncio_loop() -> Any:
    """Return the running asyncio loop, None if there is none."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return None
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _reactor() -> Any:
    """Return the reactor to use; install one on the running asyncio loop if there is none yet."""
    loop = _asyncio_loop()
    if loop is not None and "twisted.internet.reactor" not in sys.modules:
        from twisted.internet import asyncioreactor

        asyncioreactor.install(loop)
        from twisted.internet import reactor as installed

        ours: Any = installed
        ours.startRunning(installSignalHandlers=False)
        # No caller stops this reactor: its threads for name resolution must not outlive the process.
        ours.getThreadPool().threadFactory = partial(threading.Thread, daemon=True)
    from twisted.internet import reactor
    from twisted.internet.asyncioreactor import AsyncioSelectorReactor

    if loop is not None and not isinstance(reactor, AsyncioSelectorReactor):
        raise RuntimeError(
            "asyncio is running, but Twisted has another reactor: install "
            "twisted.internet.asyncioreactor before anything imports twisted.internet.reactor"
        )
    return reactor


def _answer(value: Any) -> Any:
    """Return *value*; a Deferred becomes an asyncio Future inside an asyncio task."""
    if not isinstance(value, Deferred):
        return value
    loop = _asyncio_loop()
    if loop is None or sys.modules["asyncio"].current_task(loop) is None:
        return value
    return value.asFuture(loop)


class _AwaitableClient:
    """Delegates to a client of `kclient.tx` and makes its results awaitable."""

    _kind: Callable[..., Any]

    def __init__(self, *args: Any, **keywords: Any) -> None:
        keywords.setdefault("reactor", _reactor())
        use_standard_logging()
        self._client = type(self)._kind(*args, **keywords)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not callable(found):
            return found
        return lambda *args, **keywords: _answer(found(*args, **keywords))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


if TYPE_CHECKING:
    from kclient.tx import AdminClient, Consumer, Producer
else:
    from kclient import tx

    class AdminClient(_AwaitableClient):
        """Administers one cluster: see `kclient.admin.client.AdminClient`."""

        _kind = tx.AdminClient

    class Producer(_AwaitableClient):
        """Sends records: see `kclient.producer.producer.Producer`."""

        _kind = tx.Producer

        def transaction(self) -> Any:
            """Return a transaction as a block of ``async with``: committed at its end, aborted by an exception."""
            self._client.transaction()
            return Transaction(self)

    class Consumer(_AwaitableClient):
        """Consumes records: see `kclient.consumer.client.Consumer`."""

        _kind = tx.Consumer

        async def __aexit__(self, kind: object, *exc: object) -> None:
            await self.close(failed=kind is not None)

        async def __aiter__(self) -> AsyncIterator[Any]:
            """Yield records forever. A record that was not yielded is not committed; the next iteration yields it."""
            while True:
                while (record := self._client.polling.next_record()) is not None:
                    yield record
                self._client.polling.iterate(await self.poll(timeout=1))
