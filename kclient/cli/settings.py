"""The options of every command, and the settings of its client: where each comes from, and which wins."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from kclient.arguments import config_text
from kclient.cli.exit_codes import FAILED, USAGE
from kclient.cli.output import TEXT_FORMATS, print_error, show
from kclient.config import (
    CONFIGS,
    INT_MAX,
    NO_EFFECT,
    CommonConfig,
    dotted,
    every_setting,
    read_properties,
    snake,
)
from kclient.contexts import VARIABLE, Context, default_file, load, load_project
from kclient.errors import ConfigError

DEFAULT_TIMEOUT_S = 10.0
_BOOTSTRAP = "bootstrap.servers"
_SERVERS_VARIABLE = "KCLIENT_BOOTSTRAP_SERVERS"
DUMP = "dump"
"""With -X: print the settings in effect, and do nothing."""


@dataclass
class Settings:
    """The options of every command."""

    bootstrap: str | None = None
    files: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    format: str = "text"
    timeout: float = DEFAULT_TIMEOUT_S
    quiet: bool = False
    assume_yes: bool = False
    verbose: int = 0
    """What is logged to stderr: 0 nothing, 1 information and warnings, 2 each step."""
    context_name: str | None = None
    """The context that --context names."""
    context: Context | None = None
    """The context that names the brokers, once `client` has found it."""

    @property
    def is_text(self) -> bool:
        """Whether the output is for people: text, or wide, which shows every column of a table."""
        return self.format in TEXT_FORMATS

    def given(self) -> dict[str, Any]:
        """Return the settings of a client that options give: -F, -X, -b; the later wins. Raise ConfigError."""
        return _merged(self._given())

    def client(self, kind: type[CommonConfig]) -> dict[str, Any]:
        """Return the settings of a client of *kind*: default file, context, -F, -X, -b; the later wins.

        --context counts always. Another context counts only if no option names the brokers; the current one of
        contexts.toml only if the default file does not name them either.
        """
        return _merged(self._in_order())

    def dump(self) -> int:
        """Print every client setting, its value and where that comes from (-X dump). Raise ConfigError."""
        sources = self._in_order()
        merged = _merged(sources)
        for kind in CONFIGS:
            kind.load(merged)
        found = {
            dotted(name): (value, source)
            for source, values in sources
            for name, value in values.items()
        }
        rows = []
        for name, setting in sorted(every_setting().items()):
            value, source = found.pop(dotted(name), (setting.default, "default"))
            rows.append({"setting": dotted(name), "value": config_text(value), "source": source})
        rows += [
            {"setting": name, "value": config_text(value), "source": f"{source}; no effect"}
            for name, (value, source) in sorted(found.items())
        ]
        show(rows, ("setting", "value", "source"), self.format)
        return 0

    def _in_order(self) -> list[tuple[str, dict[str, Any]]]:
        """Return where settings come from, and those of each source; the later wins."""
        usual = [] if self.files else _of_default_file()
        given = self._given()
        named = os.environ.get(_SERVERS_VARIABLE)
        if named and not self.bootstrap and not self.context_name:
            given.append((_SERVERS_VARIABLE, {_BOOTSTRAP: named}))
        chosen = None
        names_brokers = _BOOTSTRAP in _merged(given)
        if self.context_name or not names_brokers:
            chosen = chosen_context(self.context_name, needed=_BOOTSTRAP not in _merged(usual))
        if chosen is not None:
            usual.append((f"context {chosen.name}", dict(chosen.settings)))
            self.context = None if names_brokers else chosen
        # Every address of the list is tried; all together within the timeout of -m.
        all_ms = milliseconds(self.timeout)
        addresses = str(_merged([*usual, *given]).get(_BOOTSTRAP, "")).count(",") + 1
        timeouts = {
            "default.api.timeout.ms": all_ms,
            "request.timeout.ms": min(30_000, max(1000, all_ms)),
            "socket.connection.setup.timeout.ms": min(10_000, max(100, all_ms // addresses)),
        }
        return [("kclient", {"client.id": "kclient-cli"}), ("-m", timeouts), *usual, *given]

    def _given(self) -> list[tuple[str, dict[str, Any]]]:
        found = [(f"-F {name}", _properties(name)) for name in self.files]
        for pair in self.pairs:
            name, given, value = pair.partition("=")
            if pair == DUMP:
                continue
            if not given:
                raise ConfigError(f"-X {pair}: expected name=value")
            found.append(("-X", {name.strip(): value.strip()}))
        if self.bootstrap:
            found.append(("-b", {_BOOTSTRAP: self.bootstrap}))
        return found

    def note(self, text: str) -> None:
        """Write a line beside the data, to stderr; none with -q."""
        if not self.quiet:
            click.echo(text, err=True)

    def confirm(self, prompt: str) -> None:
        """Ask for confirmation of an irreversible operation; without a terminal --yes is required."""
        if self.assume_yes:
            return
        if not sys.stdin.isatty():
            click.echo(f"{prompt} This cannot be undone: repeat with --yes.", err=True)
            raise SystemExit(USAGE)
        if not click.confirm(prompt, err=True):
            print_error("nothing was changed")
            raise SystemExit(FAILED)


def milliseconds(seconds: float) -> int:
    """Return a timeout in ms, at most what Kafka's type INT holds: 24 days, which is for ever."""
    return int(min(seconds * 1000, INT_MAX))


def chosen_context(option: str | None, *, needed: bool = True) -> Context | None:
    """Return the context that --context names, else KCLIENT_CONTEXT, else the current one of the project.

    Else, if *needed*, return the current one of contexts.toml. Return None if there is none. Raise ConfigError.
    """
    name = option or os.environ.get(VARIABLE)
    project = load_project()
    if not (name or needed or project.current):
        return None
    contexts = project.over(load(default_file()))
    if not (name or contexts.current):
        return None
    try:
        return contexts.named(name or contexts.current or "")
    except ConfigError as problem:
        source = "--context" if option else VARIABLE if name else "current"
        files = [project.file, default_file()] if project.file else [default_file()]
        raise ConfigError(f"{source} in {', '.join(map(str, files))}: {problem}") from None


def explained(context: Context) -> str:
    """Return where the addresses of *context* come from, and how its cluster is started if it is a local one."""
    text = f"  context {context.name} in {context.file} names the brokers"
    if context.directory is None:
        return text
    command = ["kbroker", "local", "up", "--dir", context.directory]
    if context.name != "local":
        command += ["--name", context.name]
    return f"{text}; if they are down:\n    {shlex.join(command)}"


def _of_default_file() -> list[tuple[str, dict[str, Any]]]:
    named = os.environ.get("KCLIENT_CONFIG")
    usual = Path.home() / ".config" / "kclient.conf"
    if not named and not usual.exists():
        return []
    name = named or str(usual)
    return [(name, _properties(name))]


def _merged(sources: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return the settings of all sources, the later ones over the earlier ones; linger_ms is linger.ms."""
    known = every_setting()
    return {
        dotted(name) if snake(name) in known else name: value
        for _, values in sources
        for name, value in values.items()
    }


def _properties(name: str) -> dict[str, Any]:
    try:
        return dict(read_properties(Path(name).read_text(encoding="utf-8")))
    except OSError as problem:
        raise ConfigError(f"{name}: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise ConfigError(f"{name}: it is no text in UTF-8") from problem


def admin_client(settings: Settings, reactor: Any) -> Any:
    """Return an admin client with the command's settings, not yet started.

    Untyped on purpose: commands let errors be raised, so results are never errors.
    """
    # Imported here, so that `kclient --help` does not import Twisted.
    from kclient.admin.client import AdminClient
    from kclient.config import AdminConfig

    return AdminClient(settings.client(AdminConfig), reactor=reactor)


def list_settings() -> None:
    """Print every client setting with its default (-X list)."""
    for name, setting in sorted(every_setting().items()):
        click.echo(
            f"{dotted(name):<45} {config_text(setting.default):<25} {setting.metadata['doc']}"
        )
    click.echo(f"accepted, no effect: {', '.join(sorted(NO_EFFECT))}")
