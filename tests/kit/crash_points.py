"""A process that crashes at a chosen step: before or after one of its writes or requests, and sends nothing more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, fail

from kbroker.zk.errors import ConnectionLoss
from kbroker.zk.interface import Session


class CrashPoint:
    """Crashes at step *at*; *after*: the step still takes effect, but its answer is lost."""

    def __init__(self, at: int, *, after: bool) -> None:
        self.at = at
        self.after = after
        self.steps = 0
        self.has_crashed = False
        self.steps_taken: list[str] = []

    def step(self, name: str, act: Callable[[], Deferred[Any]]) -> Deferred[Any]:
        """Take a step, unless it has crashed."""
        if self.has_crashed:
            return Deferred()
        self.steps += 1
        self.steps_taken.append(name)
        if self.steps < self.at:
            return act()
        self.has_crashed = True
        if self.after:
            act().addErrback(lambda _: None)
        return Deferred()


class CrashingZooKeeper:
    """A client with writes that are steps of a `CrashPoint`; after the crash it neither answers nor calls back."""

    def __init__(self, client: Any, crash_point: CrashPoint) -> None:
        self._client = client
        self._crash_point = crash_point

    @property
    def session(self) -> Session | None:
        session: Session | None = self._client.session
        return session

    @property
    def connected(self) -> bool:
        return bool(self._client.connected)

    def in_session(self, session: Session) -> CrashingZooKeeper:
        return CrashingZooKeeper(self._client.in_session(session), self._crash_point)

    def on_session(self, callback: Callable[[Any], None]) -> None:
        self._client.on_session(self._alive(callback))

    def watch_data(self, path: str, callback: Callable[[Any], None]) -> Any:
        return self._client.watch_data(path, self._alive(callback))

    def watch_children(self, path: str, callback: Callable[[Any], None]) -> Any:
        return self._client.watch_children(path, self._alive(callback))

    def _alive(self, callback: Callable[[Any], None]) -> Callable[[Any], None]:
        return lambda value: None if self._crash_point.has_crashed else callback(value)

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._client, name)

        def call(*args: Any, **kwargs: Any) -> Deferred[Any]:
            if name in ("multi", "set", "create", "delete"):
                what = args[0][-1] if name == "multi" else args[0]
                return self._crash_point.step(
                    f"{name} {what}", lambda: self._unless_crashed(operation(*args, **kwargs))
                )
            if self._crash_point.has_crashed:
                return Deferred()
            return self._unless_crashed(operation(*args, **kwargs))

        return call

    def _unless_crashed(self, answer: Deferred[Any]) -> Deferred[Any]:
        """Pass *answer* on, unless the process has crashed meanwhile."""
        outcome: Deferred[Any] = Deferred()

        def pass_on(result: Any) -> None:
            if not self._crash_point.has_crashed:
                outcome.callback(result)

        answer.addBoth(pass_on)
        return outcome


class LossyZooKeeper(CrashingZooKeeper):
    """A client that loses the answer of one write (applied or, if not *applied*, not), and only that."""

    def __init__(self, client: Any, crash_point: CrashPoint, *, applied: bool) -> None:
        super().__init__(client, crash_point)
        self._applied = applied

    def in_session(self, session: Session) -> LossyZooKeeper:
        return LossyZooKeeper(
            self._client.in_session(session), self._crash_point, applied=self._applied
        )

    def __getattr__(self, name: str) -> Any:
        operation: Callable[..., Deferred[Any]] = getattr(self._client, name)
        if name not in ("multi", "set", "create", "delete"):
            return operation

        def call(*args: Any, **kwargs: Any) -> Deferred[Any]:
            crash_point = self._crash_point
            crash_point.steps += 1
            crash_point.steps_taken.append(f"{name} {args[0][-1] if name == 'multi' else args[0]}")
            if crash_point.steps != crash_point.at:
                return operation(*args, **kwargs)
            lost = ConnectionLoss("", "the answer was lost")
            if not self._applied:
                return fail(lost)
            outcome: Deferred[Any] = Deferred()
            operation(*args, **kwargs).addBoth(lambda _: outcome.errback(lost))
            return outcome

        return call
