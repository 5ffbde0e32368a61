"""Arguments that name topics, groups or contexts: a shell completes them with the names that exist.

The names come from the cluster that the options on the line choose, so a shell waits for them: for 1.5 s at most. A
cluster that does not answer has no names, and no message, because a shell would show it inside of the line.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from kclient.cli.settings import Settings

WAIT_S = 1.5


class _Name(click.ParamType[str]):
    """A text that a shell completes with the result of *lookup*, which contacts the cluster."""

    name = "text"

    def __init__(self, lookup: Callable[[Any], Awaitable[Iterable[str]]]) -> None:
        self._lookup = lookup

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Return the names that begin with *incomplete*; none if the cluster does not answer."""
        return _items(_from_cluster(_settings_on_line(ctx), self._lookup), incomplete)


class _ClusterName(click.ParamType[str]):
    """What chooses a cluster. An empty text, as of a variable that is not set, would choose another one in silence."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return *value*; fail if it is empty."""
        if not value.strip():
            self.fail("it is empty: leave the option out for the usual cluster", param, ctx)
        return value


class _ContextName(_ClusterName):
    """The name of a context (kclient/contexts.py)."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Return the names that begin with *incomplete*."""
        from kclient.contexts import load_all
        from kclient.errors import ConfigError

        try:
            return _items(load_all().by_name, incomplete)
        except ConfigError:
            return []


def _items(names: Iterable[str], incomplete: str) -> list[CompletionItem[str]]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


async def _topics(admin: Any) -> Iterable[str]:
    return await admin.list_topics()  # type: ignore[no-any-return]


async def _groups(admin: Any) -> Iterable[str]:
    return [each.group_id for each in await admin.list_groups()]


TOPIC = _Name(_topics)
GROUP = _Name(_groups)
CONTEXT = _ContextName()
SERVERS = _ClusterName()
"""Bootstrap servers."""


def _settings_on_line(ctx: click.Context) -> Settings:
    """Return the settings of the options before the cursor: while a shell completes, no command fills them in."""
    from kclient.cli.settings import Settings

    settings = Settings(timeout=WAIT_S)
    levels = [ctx]
    while levels[0].parent is not None:
        levels.insert(0, levels[0].parent)
    for level in levels:
        given = level.params
        settings.bootstrap = given.get("bootstrap") or settings.bootstrap
        settings.context_name = given.get("context_name") or settings.context_name
        settings.files += tuple(given.get("files") or ())
        settings.pairs += tuple(given.get("pairs") or ())
    return settings


def _from_cluster(
    settings: Settings, lookup: Callable[[Any], Awaitable[Iterable[str]]]
) -> list[str]:
    from twisted.internet import reactor as imported
    from twisted.internet.defer import Deferred

    from kclient.cli.settings import admin_client

    reactor: Any = imported
    names: list[str] = []

    async def main() -> None:
        async with admin_client(settings, reactor) as admin:
            names.extend(await lookup(admin))

    def begin() -> None:
        started = Deferred.fromCoroutine(main())
        # Any error: the shell has no place for its message.
        started.addErrback(lambda _: None)
        limit = reactor.callLater(WAIT_S, reactor.stop)
        started.addBoth(lambda _: limit.reset(0) if limit.active() else None)

    reactor.callWhenRunning(begin)
    reactor.run(installSignalHandlers=False)
    return names
