"""Changes to the levels of a broker's loggers (KIP-412), checked before the first of them is made. Pure.

A change names a logger and its level; one without a level lets the logger follow the one above it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kbroker.common.logger_levels import ROOT, Level
from kbroker.metadata.core.config_entries import Change, ConfigOperation
from kclient.wire.errors import InvalidConfig, InvalidRequest

LEVELS = ", ".join(level.name for level in reversed(Level))


def checked_logger_changes(
    changes: Iterable[Change], loggers: Collection[str]
) -> dict[str, Level | None]:
    """Return the level of each logger in *changes*; None: none of its own. *loggers* exist.

    InvalidConfig: no such logger, or no such level. InvalidRequest: a logger twice, another operation than SET and
    DELETE, or DELETE of the root logger's level.
    """
    checked: dict[str, Level | None] = {}
    for change in changes:
        shown = f"{change.name[:200]!a}"
        if change.name in checked:
            raise InvalidRequest(f"the logger {shown} is changed twice")
        if change.name not in loggers:
            raise InvalidConfig(f"there is no logger {shown}")
        checked[change.name] = _level(change, shown)
    return checked


def _level(change: Change, logger: str) -> Level | None:
    if change.operation == ConfigOperation.SET:
        value = change.value or ""
        if value not in Level.__members__:
            raise InvalidConfig(f"{value[:40]!a} is no level of the logger {logger}: {LEVELS}")
        return Level[value]
    if change.operation != ConfigOperation.DELETE:
        raise InvalidRequest("the level of a logger can only be set and deleted")
    if change.name == ROOT:
        raise InvalidRequest("the level of the root logger cannot be deleted", hint="set another")
    return None
