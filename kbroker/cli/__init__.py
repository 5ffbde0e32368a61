"""The `kbroker` command. Data goes to stdout, everything else to stderr.

Exit codes: 0 done; 1 failed; 2 usage; 4 unhealthy; 130 interrupted.
"""

from __future__ import annotations

from typing import ClassVar

import click

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class LazyGroup(click.Group):
    """A group that imports a command when it is used: `kbroker start` must not pay for the others."""

    lazy: ClassVar[dict[str, str]] = {
        "start": "kbroker.cli.start:start",
        "stop": "kbroker.cli.stop:stop",
        "check-config": "kbroker.cli.start:check_config",
        "local": "kbroker.cli.local:local",
        "demo": "kbroker.demo.cli:demo",
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name all commands."""
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        from importlib import import_module

        module, _, name = self.lazy[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command


def _print_version(ctx: click.Context, _option: click.Parameter, asked: bool) -> None:
    if not asked or ctx.resilient_parsing:
        return
    from importlib.metadata import version

    from kclient.build import description

    click.echo(f"kbroker, version {version('kbroker')} (record codec: {description()})")
    ctx.exit()


@click.group(cls=LazyGroup, context_settings=SETTINGS)
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
def kbroker(context: click.Context) -> None:
    """Run and look after classic Kafka brokers, coordinated by ZooKeeper."""
    from kclient.cli import colour

    if colour.is_unwanted():
        colour.off(context)
