"""Contexts: clusters that `kclient` knows by name, in contexts.toml.

    current = "local"

    [contexts.local]
    "bootstrap.servers" = "127.0.0.1:19092,127.0.0.1:19093"
    local_directory = "/home/ada/kbroker-local"

A context has settings of clients. `kclient` uses one if neither an option nor KCLIENT_BOOTSTRAP_SERVERS names brokers:
that of KCLIENT_CONTEXT, else the current one. `kbroker local up` adds a context with `local_directory`, and `down`
removes it. It changes no other contexts, and a current one of the user stays current.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kclient.errors import ConfigError

VARIABLE = "KCLIENT_CONTEXT"
_DIRECTORY = "local_directory"
_HEAD = "# Clusters that kclient knows by name. `kbroker local` adds and removes its own; it keeps no comments.\n"


@dataclass(frozen=True, slots=True)
class Context:
    """One cluster: settings of clients, and for a cluster of `kbroker local` its directory."""

    name: str
    settings: Mapping[str, Any]
    directory: str | None = None


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts by name, the last written last, and the name of the current one."""

    by_name: Mapping[str, Context] = field(default_factory=dict)
    current: str | None = None

    def named(self, name: str) -> Context:
        """Return the context *name*; raise ConfigError if there is none."""
        found = self.by_name.get(name)
        if found is None:
            raise ConfigError(
                f"there is no context {name!r}, but: {', '.join(self.by_name) or 'none'}"
            )
        return found

    def with_local(self, context: Context) -> Contexts:
        """Return these with *context* of `kbroker local`, current unless the current one is the user's.

        Raise ConfigError if the user has a context of that name.
        """
        old = self.by_name.get(context.name)
        if old is not None and old.directory is None:
            raise ConfigError(
                f"the context {context.name!r} was not made by kbroker local; it is kept"
            )
        others = {name: each for name, each in self.by_name.items() if name != context.name}
        current = self.by_name.get(self.current or "")
        is_of_user = current is not None and current.directory is None
        return Contexts(
            {**others, context.name: context}, self.current if is_of_user else context.name
        )

    def without_local(self, name: str, directory: str) -> Contexts:
        """Return these without the context of the local cluster *name* in *directory*.

        If it was the current one, the last remaining one of `kbroker local` becomes current.
        """
        old = self.by_name.get(name)
        if old is None or old.directory != directory:
            return self
        others = {each: context for each, context in self.by_name.items() if each != name}
        if self.current != name:
            return replace(self, by_name=others)
        local = [each for each, context in others.items() if context.directory is not None]
        return Contexts(others, local[-1] if local else None)


def default_file() -> Path:
    """Return the file below XDG_CONFIG_HOME, or ~/.config."""
    config = os.environ.get("XDG_CONFIG_HOME", "")
    return (
        (Path(config) if config else Path("~/.config").expanduser()) / "kclient" / "contexts.toml"
    )


def load(path: Path) -> Contexts:
    """Read the file; there are no contexts without it. Raise ConfigError if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except (OSError, ValueError) as problem:
        raise ConfigError(f"{path} cannot be read: {problem}") from None
    # Imported here: most commands have no such file, and start faster.
    import tomllib

    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(f"{path} is no TOML: {problem}") from None
    current, contexts = tables.pop("current", None), tables.pop("contexts", {})
    if tables or not isinstance(current, str | None) or not isinstance(contexts, dict):
        raise ConfigError(f'{path}: expected current = "NAME" and tables [contexts.NAME] only')
    by_name = {}
    for name, table in contexts.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: contexts.{name} is no table")
        settings = dict(_flat(table))
        directory = settings.pop(_DIRECTORY, None)
        by_name[name] = Context(name, settings, None if directory is None else str(directory))
    return Contexts(by_name, current)


@contextlib.contextmanager
def changing(path: Path) -> Iterator[list[Contexts]]:
    """Give the contexts of the file in a list of one; write the list's last item if it differs.

    Other processes that change the file wait meanwhile. Raise ConfigError or OSError.
    """
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        before = load(path)
        versions = [before]
        yield versions
        if versions[-1] != before:
            _save(path, versions[-1])
    finally:
        os.close(directory)


def _save(path: Path, contexts: Contexts) -> None:
    if not contexts.by_name:
        path.unlink(missing_ok=True)
        return
    new = path.with_suffix(".tmp")
    new.write_text(text_of(contexts), encoding="utf-8")
    new.replace(path)


def text_of(contexts: Contexts) -> str:
    """Return the text of the file with *contexts*."""
    lines = [_HEAD]
    if contexts.current is not None:
        lines.append(f"current = {_toml(contexts.current)}\n")
    for context in contexts.by_name.values():
        lines.append(f"\n[contexts.{_toml(context.name)}]\n")
        lines += [f"{_toml(key)} = {_toml(value)}\n" for key, value in context.settings.items()]
        if context.directory is not None:
            lines.append(f"{_DIRECTORY} = {_toml(context.directory)}\n")
    return "".join(lines)


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings with dotted names: TOML reads a name with dots as nested tables."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _toml(value: object) -> str:
    """Return *value* in TOML: a string of JSON is one, except for DEL."""
    import json

    if not isinstance(value, str | int | float):
        value = str(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
