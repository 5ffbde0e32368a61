"""Command lines of the tools that Kafka parses with argparse4j, a copy of Python's argparse.

A usage error ends with exit code 1, as in Kafka; argparse would end with 2.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from kclient.cli.kafka_tools.tool import FAILED, Row, UsageError, print_error, print_version


class Arguments(argparse.ArgumentParser):
    """A parser that ends with exit code 1."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and *message* to stderr, and end."""
        self.print_usage(sys.stderr)
        raise SystemExit(print_error(f"{self.prog}: error: {message}"))


class _Refused(argparse.Action):
    """An option that is refused with the reason."""

    def __call__(
        self, parser: argparse.ArgumentParser, *_: Any, option_string: str | None = None
    ) -> None:
        parser.error(f"{option_string} is not supported: {self.const}")


def finite(text: str) -> float:
    """Return *text* as a number, for argparse; raise ArgumentTypeError if it is none, or not finite."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return number


@dataclass(frozen=True)
class ArgparseTool:
    """A tool with a command line that is parsed as by argparse4j.

    *build* adds the options. *main* returns the exit code, or runs the reactor, which ends the process. *refused* are
    options of Kafka that are not honoured, with the reason. *differs*: what is not as in Kafka. *program* is the name
    that Kafka's usage has.
    """

    name: str
    program: str
    title: str
    build: Callable[[Arguments], None]
    main: Callable[[argparse.Namespace], int | None]
    refused: Mapping[str, str] = field(default_factory=dict)
    differs: tuple[str, ...] = ()
    help_without_words: bool = False

    def __call__(self, words: Sequence[str]) -> int:
        """Run the tool; return its exit code."""
        parser = self._parser()
        if not words and self.help_without_words:
            parser.print_help()
            return 0
        try:
            given = parser.parse_args(list(words))
            if getattr(given, "version", False):
                return print_version(self.name)
            return self.main(given) or 0
        except UsageError as problem:
            return self.print_usage(problem)
        except SystemExit as end:
            return int(end.code or 0) if isinstance(end.code, int | None) else FAILED

    def print_usage(self, problem: object) -> int:
        """Print the usage and *problem* to stderr; return the exit code."""
        parser = self._parser()
        parser.print_usage(sys.stderr)
        return print_error(f"{self.program}: error: {problem}")

    def _parser(self) -> Arguments:
        parser = Arguments(prog=self.program, description=self.title)
        self.build(parser)
        for name, reason in self.refused.items():
            parser.add_argument(
                name, action=_Refused, const=reason, nargs="?", help=argparse.SUPPRESS
            )
        return parser

    def rows(self) -> list[Row]:
        """Return the lines about its options for docs/kafka-tools.md."""
        return _rows(self._parser(), "")

    def names(self) -> list[str]:
        """Return the options and commands that a shell completes."""
        return sorted({each.option.split()[-1] for each in self.rows() if not each.refused})


def _rows(parser: argparse.ArgumentParser, before: str) -> list[Row]:
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                rows += [Row(f"{before}{name}", ""), *_rows(sub, f"{before}{name} ")]
        elif action.dest != "help":
            name = max(action.option_strings, key=len)
            rows.append(
                Row(f"{before}{name}", action.const if isinstance(action, _Refused) else "")
            )
    return rows
