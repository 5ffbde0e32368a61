"""The help pages: a command shows its own options and examples; the options of every command are on the first page."""

from __future__ import annotations

from typing import Any

import click

GLOBAL_LINE = "Options of every command, such as -b HOST:PORT and -J: kclient --help"


class GlobalOption(click.Option):
    """An option of every command: only the first page of the help shows it."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option's line for the page of *ctx*, None if the page does not show it."""
        return super().get_help_record(ctx) if ctx.parent is None else None


class Command(click.Command):
    """A command with *examples*: lines for a shell. A test runs them, up to the first contact with a cluster."""

    def __init__(self, *arguments: Any, examples: tuple[str, ...] = (), **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, and where the other options are."""
        _write_end(self.examples, ctx, formatter)


class Group(click.Group):
    """A group of such commands."""

    command_class = Command

    def __init__(self, *arguments: Any, examples: tuple[str, ...] = (), **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, and where the other options are."""
        _write_end(self.examples, ctx, formatter)


def _write_end(
    examples: tuple[str, ...], ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    if examples:
        with formatter.section("Examples"):
            for line in examples:
                # Not wrapped: a line is for copying.
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
    formatter.write_paragraph()
    formatter.write_text(
        GLOBAL_LINE
        if ctx.parent
        else "Options may also follow the command; its page: kclient COMMAND --help"
    )
