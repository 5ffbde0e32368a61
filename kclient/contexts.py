"""Contexts: clusters that `kclient` knows by name, in contexts.toml.

    current = "local"

    [contexts.local]
    "bootstrap.servers" = "127.0.0.1:19092,127.0.0.1:19093"
    local_directory = "/home/ada/kbroker-local"

A context has settings of clients. `kclient --context NAME` uses it. Without that option `kclient` uses one if neither
another option nor KCLIENT_BOOTSTRAP_SERVERS names brokers: that of KCLIENT_CONTEXT, else the current one.

`kclient context` changes the file, and so does `kbroker local`: `up` adds a context with `local_directory`, and `down`
removes it. It changes no other contexts, and a current one of the user stays current. A change keeps the comments of
the other contexts. It is whole: writers wait for each other, readers see the file before it or after it. Only its owner
can read the file (mode 0600), because settings can be secrets.

A project has contexts of its own in a file of the same form, kclient.toml, which is in its repository. They come before
those of contexts.toml, as does its current one. No command changes that file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kclient.errors import ConfigError

VARIABLE = "KCLIENT_CONTEXT"
PROJECT_FILE = "kclient.toml"
_DIRECTORY = "local_directory"
_HEAD = "# Clusters that kclient knows by name. `kclient context` and `kbroker local` change them; comments stay.\n"
_SECRET_WORDS = ("password", "secret", "jaas", "token")


@dataclass(frozen=True, slots=True)
class Context:
    """One cluster: settings of clients, and for a cluster of `kbroker local` its directory."""

    name: str
    settings: Mapping[str, Any]
    directory: str | None = None
    file: Path | None = field(default=None, compare=False)
    """The file that it was read from."""

    @property
    def entries(self) -> Mapping[str, Any]:
        """The entries of its table in the file."""
        if self.directory is None:
            return self.settings
        return {**self.settings, _DIRECTORY: self.directory}


def is_secret(setting: str) -> bool:
    """Return whether the value of *setting* is not for a screen."""
    return any(word in setting.lower() for word in _SECRET_WORDS)


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts by name, the last written last, and the name of the current one."""

    by_name: Mapping[str, Context] = field(default_factory=dict)
    current: str | None = None
    file: Path | None = field(default=None, compare=False)
    """The file that they were read from, if it exists."""

    def named(self, name: str) -> Context:
        """Return the context *name*; raise ConfigError if there is none."""
        found = self.by_name.get(name)
        if found is None:
            raise ConfigError(
                f"there is no context {name!r}, but: {', '.join(self.by_name) or 'none'}"
            )
        return found

    def over(self, others: Contexts) -> Contexts:
        """Return *others* with these: of two contexts with one name, that of these counts."""
        return Contexts({**others.by_name, **self.by_name}, self.current or others.current)

    def with_user(self, context: Context, *, replacing: bool, use: bool) -> Contexts:
        """Return these with *context* of the user, current if *use* or if there is no current one.

        Raise ConfigError if there is one of that name, unless *replacing*.
        """
        old = self.by_name.get(context.name)
        if old is not None and not replacing:
            raise ConfigError(f"there is a context {context.name!r}: --replace replaces it")
        others = {name: each for name, each in self.by_name.items() if name != context.name}
        is_current = use or self.current is None
        return Contexts(
            {**others, context.name: context}, context.name if is_current else self.current
        )

    def with_current(self, name: str) -> Contexts:
        """Return these with *name* as the current one; raise ConfigError if there is none of that name."""
        return replace(self, current=self.named(name).name)

    def without(self, names: Collection[str]) -> Contexts:
        """Return these without *names*; there is no current one if it was among them. Raise ConfigError."""
        for name in names:
            self.named(name)
        others = {name: each for name, each in self.by_name.items() if name not in names}
        return Contexts(others, None if self.current in names else self.current)

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


def project_file(start: Path) -> Path | None:
    """Return the nearest kclient.toml, from *start* up to the root of its repository (.git); None without one.

    Without a repository only *start* counts: a file in a shared folder above it is not the project's.
    """
    folders = [start, *start.parents]
    root = next((n for n, folder in enumerate(folders) if (folder / ".git").exists()), 0)
    files = [folder / PROJECT_FILE for folder in folders[: root + 1]]
    return next((file for file in files if file.is_file()), None)


def load_project() -> Contexts:
    """Read the project's file of the current directory; there are no contexts without it.

    Raise ConfigError if it cannot be read, or belongs to another user: it decides where records go.
    """
    try:
        path = project_file(Path.cwd())
        owner = None if path is None else path.stat().st_uid
    except OSError:  # the current directory was removed, or cannot be searched
        return Contexts()
    if path is None:
        return Contexts()
    if os.geteuid() not in (0, owner):
        raise ConfigError(
            f"{path} belongs to another user (uid {owner}), so its contexts are not used: "
            "name the brokers with -b, or change the owner of the file"
        )
    return load(path)


def load_all() -> Contexts:
    """Read the project's file and the user's: of two contexts with one name, the project's counts."""
    return load_project().over(load(default_file()))


def load(path: Path) -> Contexts:
    """Read the file; there are no contexts without it. Raise ConfigError if it cannot be read."""
    text = _read(path)
    return Contexts() if text is None else _parse(path, text)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as problem:
        raise ConfigError(f"{path} cannot be read: {problem}") from None


def _parse(path: Path, text: str) -> Contexts:
    # Imported here: most commands have no such file, and start faster.
    import tomllib

    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(f"{path} is no TOML: {problem}") from None
    current, contexts = tables.pop("current", None), tables.pop("contexts", {})
    if tables or not isinstance(current, str | None) or not isinstance(contexts, dict):
        met = f", and not {', '.join(tables)}" if tables else ""
        raise ConfigError(f'{path}: expected current = "NAME" and tables [contexts.NAME]{met}')
    by_name = {}
    for name, table in contexts.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: contexts.{name} is no table")
        settings = dict(_flat(table))
        directory = settings.pop(_DIRECTORY, None)
        by_name[name] = Context(name, settings, None if directory is None else str(directory), path)
    return Contexts(by_name, current, path)


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
        text = _read(path)
        before = Contexts() if text is None else _parse(path, text)
        versions = [before]
        yield versions
        if versions[-1] != before:
            _save(path, text or "", before, versions[-1])
    finally:
        os.close(directory)


def _save(path: Path, text: str, before: Contexts, after: Contexts) -> None:
    changed = changed_text(path, text, before, after)
    # A file that is a link to one elsewhere stays a link.
    path = path.resolve()
    if changed is None:
        path.unlink(missing_ok=True)
        return
    new = path.with_suffix(".tmp")
    new.unlink(missing_ok=True)
    with open(
        os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
    ) as f:
        f.write(changed)
        f.flush()
        os.fsync(f.fileno())
    new.replace(path)


def changed_text(path: Path, text: str, before: Contexts, after: Contexts) -> str | None:
    """Return *text*, which has the contexts *before*, with those *after*; None if nothing is left.

    Raise ConfigError if the layout of *text* is one that cannot be changed without its comments.
    """
    from kclient.contexts_text import with_current, with_table, without_table

    if not text:
        return text_of(after)
    changed = text
    for name, each in before.by_name.items():
        if after.by_name.get(name) != each:
            changed = without_table(changed, name)
    for name, each in after.by_name.items():
        if before.by_name.get(name) != each:
            changed = with_table(changed, name, each.entries)
    if after.current != before.current:
        changed = with_current(changed, after.current)
    try:
        is_right = _parse(path, changed) == after
    except ConfigError:
        is_right = False
    if not is_right:
        if "#" in text.removeprefix(_HEAD):
            raise ConfigError(
                f"{path} has comments, and contexts that are no tables [contexts.NAME]: "
                "edit it by hand, or write each context as such a table"
            )
        changed = text_of(after)
    is_empty = not after.by_name and not changed.removeprefix(_HEAD).strip()
    return None if is_empty else changed


def text_of(contexts: Contexts) -> str:
    """Return the text of a new file with *contexts*."""
    from kclient.contexts_text import table_of, toml

    current = "" if contexts.current is None else f"current = {toml(contexts.current)}\n"
    tables = [table_of(name, each.entries) for name, each in contexts.by_name.items()]
    return "".join([_HEAD, current, *tables])


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings with dotted names: TOML reads a name with dots as nested tables."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            yield f"{prefix}{key}", ",".join(map(str, value))
        else:
            yield f"{prefix}{key}", value if isinstance(value, str | int | float) else str(value)
