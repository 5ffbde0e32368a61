"""The command tree: global options here, each group of commands in its own module."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from kclient.cli import colour
from kclient.cli.finite_range import FiniteRange
from kclient.cli.help import GlobalOption, Group
from kclient.cli.named_path import NamedPath
from kclient.cli.names import CONTEXT, SERVERS
from kclient.cli.output import FORMATS
from kclient.cli.run import run_offline
from kclient.cli.settings import DEFAULT_TIMEOUT_S, DUMP, Settings, list_settings
from kclient.extras import what_to_install


def _list_if_asked(
    context: click.Context, _option: click.Parameter, pairs: tuple[str, ...]
) -> tuple[str, ...]:
    """Print all settings for ``-X list``, or ``-X help`` as rpk has it, and exit, with or without a command."""
    if {"list", "help"}.intersection(pairs) and not context.resilient_parsing:
        list_settings()
        context.exit()
    return pairs


_GLOBAL: list[Callable[[Any], Any]] = [
    click.option(
        "-b",
        "--bootstrap-server",
        "--bootstrap-servers",
        "--brokers",
        "bootstrap",
        type=SERVERS,
        cls=GlobalOption,
        help="Bootstrap servers: host:port,... (or KCLIENT_BOOTSTRAP_SERVERS).",
    ),
    click.option(
        "--context",
        "context_name",
        metavar="NAME",
        type=CONTEXT,
        cls=GlobalOption,
        help="A cluster of `kclient context list` (or KCLIENT_CONTEXT).",
    ),
    click.option(
        "-F",
        "--command-config",
        "files",
        type=NamedPath(dir_okay=False),
        multiple=True,
        cls=GlobalOption,
        help="Client properties file (Java names).",
    ),
    click.option(
        "-X",
        "pairs",
        multiple=True,
        metavar="NAME=VALUE",
        callback=_list_if_asked,
        cls=GlobalOption,
        help="A client setting; -X list shows all, -X dump those in effect.",
    ),
    click.option(
        "--format",
        "row_format",
        type=click.Choice(FORMATS),
        default=None,
        cls=GlobalOption,
        help="Format of rows; wide is text with every column.",
    ),
    click.option(
        "-J", "--json", "as_json", is_flag=True, cls=GlobalOption, help="The same as --format json."
    ),
    click.option(
        "-m",
        "--timeout",
        type=FiniteRange(0),
        default=None,
        metavar="SECONDS",
        cls=GlobalOption,
        help=f"Timeout of the contact with the cluster (default {DEFAULT_TIMEOUT_S:g}).",
    ),
    click.option(
        "-q",
        "--quiet",
        is_flag=True,
        cls=GlobalOption,
        help="Print only data, warnings and errors.",
    ),
    click.option(
        "-v",
        "--verbose",
        count=True,
        cls=GlobalOption,
        help="Print what the client logs to stderr; -vv prints more.",
    ),
    click.option(
        "--no-color",
        is_flag=True,
        cls=GlobalOption,
        help="Print no colours (or NO_COLOR); they are for terminals only.",
    ),
    click.option(
        "-y",
        "--yes",
        "assume_yes",
        is_flag=True,
        cls=GlobalOption,
        help="Do not ask for confirmation.",
    ),
]


def with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give *command* the global options, as one `Settings` before its own."""

    @functools.wraps(command)
    @click.pass_context
    def wrapped(context: click.Context, /, **options: Any) -> Any:
        settings = context.find_object(Settings) or Settings()
        _apply(settings, options, context)
        return command(settings, **options)

    for option in reversed(_GLOBAL):
        wrapped = option(wrapped)
    return wrapped


def _apply(settings: Settings, options: dict[str, Any], context: click.Context) -> None:
    settings.bootstrap = options.pop("bootstrap") or settings.bootstrap
    settings.context_name = options.pop("context_name") or settings.context_name
    settings.files += options.pop("files")
    settings.pairs += options.pop("pairs")
    row_format, as_json = options.pop("row_format"), options.pop("as_json")
    settings.format = row_format or ("json" if as_json else settings.format)
    if settings.format == "yaml":
        _require_yaml()
    timeout = options.pop("timeout")
    settings.timeout = settings.timeout if timeout is None else timeout
    settings.quiet = options.pop("quiet") or settings.quiet
    settings.assume_yes = options.pop("assume_yes") or settings.assume_yes
    settings.verbose = max(settings.verbose, options.pop("verbose"))
    if options.pop("no_color") or colour.is_unwanted():
        colour.off(context)
    if DUMP in settings.pairs and not context.invoked_subcommand:
        run_offline(settings.dump)


def _require_yaml() -> None:
    try:
        import yaml  # noqa: F401
    except ModuleNotFoundError as problem:
        line = what_to_install(problem, "--format yaml", "yaml")
        raise click.UsageError(line or str(problem)) from None


_COMMANDS = {
    "cluster": ("kclient.cli.cluster:cluster", "Inspect the cluster as a whole; elect leaders."),
    "completion": (
        "kclient.cli.completion:completion",
        "Print a script for completion in a shell.",
    ),
    "consume": ("kclient.cli.consume:consume", "Print the records of topics."),
    "context": (
        "kclient.cli.context_command:context",
        "Name clusters; choose one for commands without -b.",
    ),
    "doctor": (
        "kclient.cli.doctor:doctor",
        "Look for what is wrong with a cluster, or the way to it.",
    ),
    "group": ("kclient.cli.group:group", "Inspect consumer groups and their lag; change offsets."),
    "info": ("kclient.cli.info:info", "Show the cluster's id, brokers and topics."),
    "log": ("kclient.cli.log:log", "Dump or verify files of a log directory, without a broker."),
    "perf": ("kclient.cli.perf:perf", "Measure produce and consume rates, and latencies."),
    "produce": ("kclient.cli.produce:produce", "Send lines or files to a topic as records."),
    "quota": ("kclient.cli.quota:quota", "Show and change quotas of users and client ids."),
    "reassign": ("kclient.cli.reassign:reassign", "Move partitions to other brokers."),
    "topic": ("kclient.cli.topic:topic", "Create, inspect, change and delete topics."),
    "txn": ("kclient.cli.txn:txn", "Inspect transactions; end those that hang."),
}
"""The place of each command, and its line on the first page: the page imports no command, for a fast start."""


class _Lazy(Group):
    """Imports a module of commands only when one of its commands is used, for a fast start."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name.startswith(("kafka-", "connect-")):
            from kclient.cli.kafka_tools.command import command_of

            return command_of(cmd_name)
        if cmd_name not in _COMMANDS:
            return None
        place, _text = _COMMANDS[cmd_name]
        from importlib import import_module

        module, _colon, attribute = place.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their lines."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])
        with formatter.section(
            "Kafka's own tools, with their options and lines (docs/kafka-tools.md)"
        ):
            import textwrap

            from kclient.cli.kafka_tools.command import TOOLS

            width = formatter.width - formatter.current_indent
            for line in textwrap.wrap(", ".join(TOOLS), width, break_on_hyphens=False):
                formatter.write_text(line)


def _print_version(context: click.Context, _option: click.Parameter, asked: bool) -> None:
    if not asked or context.resilient_parsing:
        return
    from importlib.metadata import version

    from kclient.build import description

    click.echo(f"kclient, version {version('kbroker')} (record codec: {description()})")
    context.exit()


@click.group(
    cls=_Lazy,
    examples=(
        "kclient -b localhost:9092 topic list",
        "kclient consume orders -o start -e --bootstrap-server localhost:9092",
    ),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,  # For -X dump.
    no_args_is_help=True,
    subcommand_metavar="COMMAND [ARGS]...",
)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version, and whether the record codec is compiled.",
)
@click.pass_context
def kclient(context: click.Context, /, **options: Any) -> None:
    """Work with a Kafka cluster: topics, records, consumer groups."""
    context.obj = Settings()
    _apply(context.obj, options, context)
    if context.invoked_subcommand is None:
        context.fail("Missing command.")


for _option in _GLOBAL:
    _option(kclient)
