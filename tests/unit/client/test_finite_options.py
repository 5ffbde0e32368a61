"""Numbers on command lines: NaN and infinity are in no range. Each comparison with NaN is false: a wait has no end."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import click
import pytest

from kbroker.cli import kbroker
from kclient.cli.commands import kclient
from kclient.cli.kafka_tools.arguments import ArgparseTool, finite
from kclient.cli.kafka_tools.command import TOOLS, tool_of
from kclient.cli.settings import Settings, milliseconds
from kclient.config import AdminConfig
from mirrormaker.__main__ import main as kmirror
from spark_jobs.cli import kaudit
from tests.kit.fork_server import run

NOT_FINITE = ("nan", "inf", "-inf", "NaN", "Infinity", "1e999")


def options(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, click.Parameter]]:
    for each in command.params:
        if isinstance(each.type, click.types.FloatParamType):
            yield " ".join((*words, each.opts[-1])), each
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from options(command.get_command(context, name), (*words, name))


OPTIONS = {
    label: option
    for name, group in (("kbroker", kbroker), ("kclient", kclient), ("kmirror", kmirror), ("kaudit", kaudit))
    for label, option in options(group, (name,))
}  # fmt: skip


def test_the_options_are_found() -> None:
    assert {
        "kbroker stop --timeout",
        "kclient --timeout",
        "kclient consume --timeout",
        "kclient consume --idle-timeout",
        "kclient perf consume --idle-timeout",
        "kclient group watch --interval",
        "kclient produce --delivery-timeout",
        "kclient produce --rate",
        "kclient quota set --producer-byte-rate",
        "kclient txn find-hanging --max-transaction-timeout",
        "kaudit diff --timeout",
    } <= set(OPTIONS)


@pytest.mark.parametrize("label", OPTIONS)
def test_what_is_not_finite_is_a_usage_error(label: str) -> None:
    for text in NOT_FINITE:
        with pytest.raises(click.BadParameter):
            OPTIONS[label].type.convert(text, OPTIONS[label], None)


@pytest.mark.parametrize("label", OPTIONS)
def test_no_option_takes_a_negative_number(label: str) -> None:
    with pytest.raises(click.BadParameter):
        OPTIONS[label].type.convert("-1", OPTIONS[label], None)


@pytest.mark.parametrize("name", TOOLS)
def test_numbers_of_kafkas_tools_are_finite(name: str) -> None:
    tool = tool_of(name)
    if isinstance(tool, ArgparseTool):
        parser = tool._parser()
        assert [each.dest for each in parser._actions if each.type is float] == []


def test_a_number_of_a_tool_is_finite() -> None:
    assert finite("-1") == -1.0
    for text in NOT_FINITE:
        with pytest.raises(argparse.ArgumentTypeError, match="is not a finite number"):
            finite(text)
    with pytest.raises(argparse.ArgumentTypeError, match="'fast' is not a number"):
        finite("fast")


def test_a_long_timeout_is_the_longest_that_kafkas_type_has() -> None:
    assert [milliseconds(each) for each in (0, 0.5, 1e300)] == [0, 500, 2**31 - 1]
    values = Settings(bootstrap="127.0.0.1:1", timeout=1e300).client(AdminConfig)
    assert AdminConfig.load(values).default_api_timeout_ms == 2**31 - 1


@pytest.mark.parametrize("option", ["-m", "--delivery-timeout"])
@pytest.mark.parametrize("text", ["inf", "nan", "-1"])
def test_a_command_refuses_it_before_the_contact(option: str, text: str) -> None:
    done = run("kclient", "-b", "127.0.0.1:1", "produce", "t", option, text, stdin=b"x\n")
    assert (done.returncode, done.stdout) == (2, b"")
    assert option in done.stderr.decode()
