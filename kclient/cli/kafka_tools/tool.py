"""What Kafka's tools have in common: options, usage errors, exit codes, and the way to the cluster.

A usage error is a line on stderr, the options, and exit code 1, as for --help and without any option. A tool takes
Kafka's options only: neither the options before its name nor the KCLIENT_ variables count. So an alias of kafka-topics
depends on nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from kclient.cli.kafka_tools.java_errors import message_of
from kclient.cli.kafka_tools.options import (
    COMMON,
    FLAG,
    OPTIONAL,
    Given,
    Option,
    OptionError,
    parse,
)

KAFKA_VERSION = "3.9.1"
"""The version of Kafka with these options, lines and exit codes."""

BOOTSTRAP = "bootstrap.servers"
FAILED = 1

_WIDTH, _LEFT = 80, 40


class UsageError(Exception):
    """A command line that the tool refuses: the text and the options are printed."""


class Failure(Exception):
    """The tool has failed; the text is its last line."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of docs/kafka-tools.md: an option, and why it is *refused* ("" if it is honoured)."""

    option: str
    refused: str
    is_from_kafka: bool = True


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool with a command line that is parsed as by joptsimple.

    *main* returns the exit code, or runs the reactor, which ends the process. *differs*: what is not as in Kafka.
    *has_usage_in_option_errors*: an option that cannot be parsed leads to the list of options, too.
    """

    name: str
    title: str
    options: tuple[Option, ...]
    main: Callable[[Given], int | None]
    differs: tuple[str, ...] = ()
    has_usage_in_option_errors: bool = False
    before_option_errors: str = ""

    def __call__(self, words: Sequence[str]) -> int:
        """Run the tool; return its exit code."""
        known = (*COMMON, *self.options)
        try:
            if not words:
                raise UsageError(self.title)
            given = parse(known, words)
            if given.has("help"):
                raise UsageError(self.title)
            if given.has("version"):
                return print_version(self.name)
            return self.main(given) or 0
        except UsageError as problem:
            return self.print_usage(problem)
        except OptionError as problem:
            if self.has_usage_in_option_errors:
                return self.print_usage(problem)
            return print_error(f"{self.before_option_errors}{problem}")

    def print_usage(self, problem: object) -> int:
        """Print *problem* and the options to stderr; return the exit code."""
        print_error(problem)
        return print_error("\n".join(help_lines((*COMMON, *self.options))))

    def rows(self) -> list[Row]:
        """Return the lines about its options for docs/kafka-tools.md."""
        return [
            Row(f"--{o.name}", o.refused, o.is_from_kafka)
            for o in sorted(self.options, key=lambda each: each.name)
        ]

    def names(self) -> list[str]:
        """Return the options that a shell completes."""
        return sorted(f"--{o.name}" for o in (*COMMON, *self.options) if not o.refused)


def print_error(problem: object) -> int:
    """Print *problem* to stderr; return the exit code of a failure."""
    print(problem, file=sys.stderr)
    return FAILED


def print_message(problem: BaseException) -> int:
    """Print the message of *problem*, as Java words it, to stderr; return the exit code of a failure."""
    return print_error(message_of(problem))


def print_version(name: str) -> int:
    """Print the version of Kafka, and what prints it; return the exit code."""
    from importlib.metadata import version

    print(f"{KAFKA_VERSION} (kclient {name}, kbroker {version('kbroker')})")
    return 0


def help_lines(options: Sequence[Option]) -> list[str]:
    """Return the table of options, in two columns, without those that are refused."""
    import textwrap

    lines = ["Option".ljust(_LEFT) + " Description", "------".ljust(_LEFT) + " -----------"]
    for option in sorted(options, key=lambda each: each.name):
        if option.refused:
            continue
        kind = {int: "Integer", float: "Double"}.get(option.kind, "String")
        left = f"--{option.name}"
        if option.argument != FLAG:
            shown = f"{kind}: {option.value}" if option.value else kind
            left += f" [{shown}]" if option.argument == OPTIONAL else f" <{shown}>"
        text = option.text
        if option.default is not None:
            text += f" (default: {option.default})"
        lefts = textwrap.wrap(left, _LEFT, subsequent_indent="  ")
        rights = textwrap.wrap(text, _WIDTH - _LEFT - 1, subsequent_indent="  ")
        for n in range(max(len(lefts), len(rights))):
            row = (lefts[n] if n < len(lefts) else "").ljust(_LEFT)
            lines.append(f"{row} {rights[n] if n < len(rights) else ''}".rstrip())
    return lines


# --- checks of command lines


def require(given: Given, *names: str) -> None:
    """Raise UsageError for the first of *names* that is missing."""
    for name in names:
        if not given.has(name):
            raise UsageError(f'Missing required argument "[{name}]"')


def forbid(given: Given, used: str, *others: str) -> None:
    """Raise UsageError if *used* is given together with one of *others*."""
    for other in others if given.has(used) else ():
        if given.has(other):
            raise UsageError(f'Option "[{used}]" can\'t be used with option "[{other}]"')


def one_action(given: Given, names: Sequence[str], message: str) -> str:
    """Return which of *names* is given; raise UsageError with *message* if it is not exactly one."""
    found = [name for name in names if given.has(name)]
    if len(found) != 1:
        raise UsageError(message)
    return found[0]


def pairs_of(texts: Sequence[str]) -> dict[str, str]:
    """Return the settings of ``name=value`` texts; one without a value is empty."""
    found = {}
    for text in texts:
        name, _equals, value = text.partition("=")
        found[name] = value
    return found


def settings_of(texts: Sequence[str]) -> dict[str, str]:
    """Return the settings of a client in ``name=value`` texts; warn of those without an effect."""
    return _warned(pairs_of(texts), "")


def properties_of(path: str | None) -> dict[str, Any]:
    """Read a properties file of a client, if one is given; warn of settings without an effect; raise `Failure`."""
    return {} if path is None else _warned(properties_in(path), f"{path}: ")


def texts_in(path: str | None) -> dict[str, str]:
    """Read a properties file of a formatter or a line reader, if one is given; raise `Failure`."""
    return {} if path is None else {k: str(v) for k, v in properties_in(path).items()}


def properties_in(path: str) -> dict[str, Any]:
    """Read any properties file; raise `Failure` if that is not possible."""
    from kclient.config import read_properties

    try:
        return dict(read_properties(_read(path)))
    except OSError as problem:
        # Java's text of a file that is missing has the same form.
        raise Failure(f"{path} ({problem.strerror})") from None


def _warned(settings: dict[str, Any], where: str) -> dict[str, Any]:
    from kclient.config import NO_EFFECT

    for name in sorted(settings.keys() & NO_EFFECT):
        print_error(f"WARN {where}{name} has no effect in kclient")
    return settings


def warn_of_socket_buffer(given: Given) -> None:
    """Warn if --socket-buffer-size is given."""
    if given.has("socket-buffer-size"):
        print_error(
            "WARN --socket-buffer-size has no effect: the system sets the sizes of the buffers"
        )


def text_of(path: str) -> str:
    """Read a file; raise `Failure` if that is not possible."""
    try:
        return _read(path)
    except OSError:
        raise Failure(f"Unable to read file {path}") from None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise Failure(f"{path} is no text in UTF-8") from None


def check_bootstrap(text: str | None) -> None:
    """Raise UsageError if *text* is no list of host:port."""
    parts = [part.strip() for part in (text or "").split(",")]
    if not text or not text.strip():
        raise UsageError("Error while validating the bootstrap address\n")
    for part in parts:
        host, _colon, port = part.rpartition(":")
        if not host or not port.isdecimal():
            raise UsageError("Please provide valid host:port like host1:9091,host2:9092\n")


def admin_settings(
    given: Given, usual: Mapping[str, Any] | None = None, option: str = "command-config"
) -> dict[str, Any]:
    """Return the settings of the admin client: *usual*, those of the file of *option*, the brokers; the later wins.

    Raise `Failure` if the file cannot be read.
    """
    of_file = properties_of(given.value(option))
    return {**(usual or {}), **of_file, BOOTSTRAP: given.value("bootstrap-server")}


# --- the cluster


Body = Callable[[Any], Awaitable[int | None]]
"""What a tool does with a started client: client -> exit code (None is 0)."""

Failed = Callable[[BaseException], int]
"""Prints an error as the tool does; returns the exit code."""


def run_admin(
    print_usage: Callable[[object], int], settings: Mapping[str, Any], body: Body, failed: Failed
) -> NoReturn:
    """Run *body* with an admin client, and end the process with its exit code."""

    def make(reactor: Any) -> Any:
        from kclient.admin.client import AdminClient

        return AdminClient({"client.id": "adminclient-1", **settings}, reactor=reactor)

    run_client(print_usage, make, body, failed)


def run_client(
    print_usage: Callable[[object], int], make: Callable[[Any], Any], body: Body, failed: Failed
) -> NoReturn:
    """Run *body* with the client that *make* returns for a reactor, and end the process with its exit code.

    The first contact is tried for default.api.timeout.ms, as Kafka's clients do: scripts start a broker, and the tool
    right behind it.
    """
    from kclient.cli.run import run
    from kclient.errors import KafkaError

    async def main(reactor: Any) -> int:
        try:
            client = make(reactor)
            try:
                await start(client.cluster)
                return await body(client) or 0
            finally:
                await client.close()
        except UsageError as problem:
            return print_usage(problem)
        except (Failure, KafkaError, OptionError, ValueError, OSError) as problem:
            if isinstance(problem, BrokenPipeError):
                raise
            sys.stdout.flush()
            return failed(problem)

    run(main)


async def know_topic(producer: Any, topic: str) -> None:
    """Fetch the metadata of *topic* before the first record, so that no record waits for them.

    Brokers create it if auto.create.topics.enable is set. Raise KafkaError after max.block.ms.
    """
    await producer.cluster.partitions(topic, timeout=producer.config.max_block_ms / 1000)


async def start(cluster: Any) -> None:
    """Connect to *cluster*; a note on stderr, if no broker answers, names the addresses and their causes."""
    from kclient.errors import BootstrapError, Cause
    from kclient.net.waiting import sleep

    seconds = cluster.config.default_api_timeout_ms / 1000
    give_up_at = cluster.reactor.seconds() + seconds
    noted = False
    while True:
        try:
            await cluster.start()
            return
        except BootstrapError as problem:
            unknown = all(each.cause is Cause.DNS for each in problem.attempts)
            if unknown or cluster.reactor.seconds() >= give_up_at:
                raise
            if not noted:
                print(f"WARN {problem}\n  trying for {seconds:g} s", file=sys.stderr, flush=True)
                noted = True
        await sleep(cluster.reactor, min(0.5, max(0.0, give_up_at - cluster.reactor.seconds())))
