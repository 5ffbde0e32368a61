"""The common part of all commands: bootstrap servers, client settings, output format, time limit, exit codes.

Exit codes: 0 success, 1 failure, 2 usage, 3 the cluster is unreachable, 4 it is not healthy or not as wanted, 5 a part
of the command failed, 124 timeout, 130 Ctrl-C.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from kclient.arguments import config_text
from kclient.cli import colour
from kclient.cli.output import TEXT_FORMATS, show
from kclient.config import (
    CONFIGS,
    NO_EFFECT,
    CommonConfig,
    dotted,
    every_setting,
    read_properties,
    snake,
)
from kclient.contexts import VARIABLE, Context, default_file, load
from kclient.errors import BootstrapError, ConfigError, ConnectError, KafkaTimeoutError
from kclient.net.answers import has_name
from kclient.wire.errors import KafkaError

FAILED, USAGE, UNREACHABLE, UNHEALTHY, PARTLY_FAILED, TIMED_OUT, INTERRUPTED = (
    1,
    2,
    3,
    4,
    5,
    124,
    130,
)
DEFAULT_TIMEOUT_S = 10.0
_NAME_THE_BROKERS = """\
  -b HOST:PORT or KCLIENT_BOOTSTRAP_SERVERS names the brokers, --context a cluster of `kclient context list`;
  `kbroker local env` prints the brokers of a local cluster"""
_BOOTSTRAP = "bootstrap.servers"
_SERVERS_VARIABLE = "KCLIENT_BOOTSTRAP_SERVERS"
DUMP = "dump"
"""With -X: print the settings in effect, and do nothing."""
_SHOWN_PROBLEMS = 3
_PUT_AWAY_S = 5.0
"""Seconds that a command may take to end after Ctrl-C."""

K = TypeVar("K")
A = TypeVar("A")

Main = Callable[[Any], Awaitable[int | None]]
"""A command's body: reactor -> exit code (None is 0)."""


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
    extra: dict[str, Any] = field(default_factory=dict)
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

        --context counts always. Another context counts only if no option names the brokers, nor the default file,
        unless KCLIENT_CONTEXT is set.
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
        all_ms = int(self.timeout * 1000)
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

    def confirm(self, question: str) -> None:
        """Ask for confirmation of an irreversible operation; without a terminal --yes is required."""
        if self.assume_yes:
            return
        if not sys.stdin.isatty():
            click.echo(f"{question} This cannot be undone: repeat with --yes.", err=True)
            raise SystemExit(USAGE)
        if not click.confirm(question, err=True):
            print_error("nothing was changed")
            raise SystemExit(FAILED)


def chosen_context(option: str | None, *, needed: bool = True) -> Context | None:
    """Return the context that --context names, else KCLIENT_CONTEXT, else if *needed* the current one."""
    name = option or os.environ.get(VARIABLE)
    if not (name or needed):
        return None
    path = default_file()
    contexts = load(path)
    if not (name or contexts.current):
        return None
    try:
        return contexts.named(name or contexts.current or "")
    except ConfigError as problem:
        source = "--context" if option else VARIABLE if name else "current"
        raise ConfigError(f"{source} in {path}: {problem}") from None


def _explained(context: Context) -> str:
    """Return where the addresses of *context* come from, and how its cluster is started if it is a local one."""
    text = f"  context {context.name} in {default_file()} names the brokers"
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


def print_error(problem: object) -> None:
    """Write an error or a warning to stderr, also with -q."""
    click.echo(f"{colour.bad('kclient:')} {problem}", err=True)


def print_problems(problems: Counter[str]) -> None:
    """Print the most frequent errors of records, with the number of their records."""
    for problem, count in problems.most_common(_SHOWN_PROBLEMS):
        print_error(f"{problem}" + (f" ({count} records)" if count > 1 else ""))


def about(name: str, problem: KafkaError) -> str:
    """Return the text of *problem* with *name*, which is there once."""
    return str(problem) if has_name(str(problem), name) else f"{name}: {problem}"


def good_answers(
    answers: Mapping[K, A | KafkaError], named: Callable[[K], str] = str
) -> dict[K, A]:
    """Return the answers that are no errors; print each error with the name of its subject."""
    good: dict[K, A] = {}
    for subject, answer in answers.items():
        if isinstance(answer, KafkaError):
            print_error(about(named(subject), answer))
        else:
            good[subject] = answer
    return good


def print_answers(
    settings: Settings,
    answers: Mapping[str, Any],
    line: Callable[[str, Any], str],
    accepted: Mapping[type[KafkaError], str] | None = None,
) -> int:
    """Print the line of each answer, by name, or its error; return the exit code.

    The lines are for people: there are none with -q, and rows of names and errors in their place with --format. An
    *accepted* error is no failure: its value is the message for operators, with ``{name}``.
    """
    met = {
        name: next(text for kind, text in (accepted or {}).items() if isinstance(answer, kind))
        for name, answer in answers.items()
        if isinstance(answer, tuple(accepted or ()))
    }
    for name, text in met.items():
        settings.note(text.format(name=name))
    good = good_answers({name: each for name, each in answers.items() if name not in met})
    if not settings.is_text:
        errors = {name: str(answers[name]) for name in answers.keys() - good.keys() - met.keys()}
        rows = [{"name": name, "error": errors.get(name)} for name in answers]
        show(rows, ("name", "error"), settings.format)
    elif not settings.quiet:
        for name, answer in good.items():
            click.echo(line(name, answer))
    return code_for(len(good) + len(met), len(answers))


def code_for(good: int, total: int) -> int:
    """Return the exit code of a command about *total* names, *good* of which succeeded."""
    if good >= total:
        return 0
    return PARTLY_FAILED if good else FAILED


def list_settings() -> None:
    """Print every client setting with its default (-X list)."""
    for name, setting in sorted(every_setting().items()):
        click.echo(
            f"{dotted(name):<45} {config_text(setting.default):<25} {setting.metadata['doc']}"
        )
    click.echo(f"accepted, no effect: {', '.join(sorted(NO_EFFECT))}")


def run(main: Main) -> NoReturn:
    """Run *main* on a new reactor and exit with its code; an error becomes one line and an exit code."""
    from twisted.internet import reactor as imported
    from twisted.internet.defer import Deferred

    reactor: Any = imported
    reactor.seconds = time.monotonic
    _log_as_asked()
    outcome: list[Any] = []
    running: list[Deferred[int | None]] = []

    def ended(result: Any) -> None:
        outcome.append(result)
        if reactor.running:
            reactor.stop()

    def begin() -> None:
        started = Deferred.fromCoroutine(_coroutine(main, reactor))
        running.append(started)
        started.addBoth(ended)

    def interrupt() -> None:
        """Cancel the command, which may commit and leave its group, within a time limit."""
        reactor.callLater(_PUT_AWAY_S, reactor.stop)
        for started in running:
            started.cancel()

    reactor.callWhenRunning(begin)
    interrupted = _on_interrupt(lambda: reactor.callFromThread(interrupt))
    reactor.run(installSignalHandlers=False)
    if interrupted:
        raise SystemExit(INTERRUPTED)
    raise SystemExit(exit_code(outcome[0] if outcome else None))


def _log_as_asked() -> None:
    """Print what the client logs, with -v and -vv."""
    settings = _settings_of_command()
    if settings is None or not settings.verbose:
        return
    import logging

    from kclient.standard_logging import use_standard_logging

    logging.basicConfig(
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        level=logging.DEBUG if settings.verbose > 1 else logging.INFO,
        stream=sys.stderr,
    )
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    use_standard_logging()


def run_offline(main: Callable[[], int]) -> NoReturn:
    """Run *main*, which contacts no cluster, and exit with its code; an error becomes one line and an exit code."""
    try:
        code = main()
        sys.stdout.flush()
    except (KafkaError, ValueError, OSError) as problem:
        raise SystemExit(_code_of(problem)) from None
    raise SystemExit(code)


async def _coroutine(main: Main, reactor: Any) -> int | None:
    return await main(reactor)


def _on_interrupt(first: Callable[[], None]) -> list[int]:
    """Call *first* at the first Ctrl-C (or SIGTERM); the second ends the process at once."""
    import signal

    seen: list[int] = []

    def stop(number: int, _: Any) -> None:
        seen.append(number)
        if len(seen) > 1:
            os._exit(INTERRUPTED)
        first()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    return seen


def _settings_of_command() -> Settings | None:
    command = click.get_current_context(silent=True)
    return None if command is None else command.find_object(Settings)


def exit_code(result: Any) -> int:
    """Return the exit code for a command's result or Failure; print the error of a Failure."""
    problem = getattr(result, "value", None)
    if problem is None:
        return int(result or 0)
    code = _code_of(problem)
    if code is None:
        result.printTraceback()
        return FAILED
    return code


def _code_of(problem: object) -> int | None:
    """Print an expected *problem* and return its exit code; None for a bug."""
    if isinstance(problem, BrokenPipeError):
        # `| head` closed the pipe: not a failure, and nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(problem, SystemExit):
        return int(problem.code or 0)
    if isinstance(problem, click.ClickException):
        problem.show()
        return problem.exit_code
    if isinstance(problem, KafkaError | ValueError | OSError):
        longer = " (-m SECONDS waits longer)" if isinstance(problem, KafkaTimeoutError) else ""
        print_error(f"{problem}{longer}")
        if isinstance(problem, BootstrapError):
            click.echo(_NAME_THE_BROKERS, err=True)
        if isinstance(problem, BootstrapError | ConnectError | KafkaTimeoutError):
            settings = _settings_of_command()
            if settings is not None and settings.context is not None:
                click.echo(_explained(settings.context), err=True)
        if isinstance(problem, BootstrapError | ConnectError):
            return UNREACHABLE
        if isinstance(problem, KafkaTimeoutError):
            return TIMED_OUT
        return USAGE if isinstance(problem, ConfigError) else FAILED
    return None
