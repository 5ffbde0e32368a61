"""How a command runs and ends: on a reactor or offline, with -v, Ctrl-C, one line for an error, and its exit code."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import click

from kclient.cli.exit_codes import FAILED, INTERRUPTED, TIMED_OUT, UNREACHABLE, USAGE
from kclient.cli.output import print_error
from kclient.cli.settings import Settings, explained
from kclient.cli.waiting_line import WaitingLine
from kclient.errors import BootstrapError, ConfigError, ConnectError, KafkaTimeoutError
from kclient.wire.errors import KafkaError

_NAME_THE_BROKERS = """\
  -b HOST:PORT or KCLIENT_BOOTSTRAP_SERVERS names the brokers, --context a cluster of `kclient context list`;
  `kbroker local env` prints the brokers of a local cluster"""
_PUT_AWAY_S = 5.0
"""Seconds that a command may take to end after Ctrl-C."""

Main = Callable[[Any], Awaitable[int | None]]
"""A command's body: reactor -> exit code (None is 0)."""


def run(main: Main, *, reads_stdin: bool = False) -> NoReturn:
    """Run *main* on a new reactor and exit with its code; an error becomes one line and an exit code.

    While it waits for the cluster and has written nothing, a terminal shows that. It does not if *reads_stdin* and
    stdin is a terminal: then a person types there.
    """
    from twisted.internet import reactor as imported
    from twisted.internet.defer import Deferred

    reactor: Any = imported
    reactor.seconds = time.monotonic
    _log_as_asked()
    outcome: list[Any] = []
    running: list[Deferred[int | None]] = []
    waiting = None if reads_stdin and sys.stdin.isatty() else _waiting_line(reactor)

    def ended(result: Any) -> None:
        outcome.append(result)
        if reactor.running:
            reactor.stop()

    def begin() -> None:
        if waiting is not None:
            waiting.start()
        started = Deferred.fromCoroutine(_coroutine(main, reactor))
        if not gc.isenabled():  # see `kclient.__main__`; *main* has imported what it needs
            gc.freeze()
            gc.enable()
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
    if waiting is not None:
        waiting.end()  # also of a command that Ctrl-C has ended
    if interrupted:
        raise SystemExit(INTERRUPTED)
    raise SystemExit(exit_code(outcome[0] if outcome else None))


def _waiting_line(reactor: Any) -> WaitingLine | None:
    settings = _settings_of_command()
    if settings is None or settings.quiet or settings.verbose or not sys.stderr.isatty():
        return None
    return WaitingLine(reactor)


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
        result.printTraceback(file=sys.stderr)  # by default to Twisted's log, which is not started
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
                click.echo(explained(settings.context), err=True)
        if isinstance(problem, BootstrapError | ConnectError):
            return UNREACHABLE
        if isinstance(problem, KafkaTimeoutError):
            return TIMED_OUT
        return USAGE if isinstance(problem, ConfigError) else FAILED
    return None
