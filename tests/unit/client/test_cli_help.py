"""The help pages of `kclient`: every command has examples that run, and only its own options."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from kclient.cli.commands import kclient
from kclient.cli.help import GLOBAL_LINE, Command, Group
from kclient.wire.records import Record, encode_batch


def every_command(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from every_command(found, (*words, name))
        else:
            yield (*words, name), found


COMMANDS = dict(every_command(kclient))
WITHOUT_CONTACT = [("context",), ("completion",), ("log",)]
"""Groups of commands that end with their output, without a contact."""
EXAMPLES = [
    (words, line) for words, command in [((), kclient), *COMMANDS.items()] for line in command.examples
]  # fmt: skip


def page(*words: str) -> str:
    ended = CliRunner().invoke(kclient, [*words, "--help"])
    assert ended.exit_code == 0
    return ended.output


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_page_has_the_commands_own_options_and_examples(words: tuple[str, ...]) -> None:
    command = COMMANDS[words]
    assert isinstance(command, Command)
    shown = page(*words)
    for name in ("--bootstrap-server", "--command-config", "--json", "--timeout ", "--quiet"):
        assert name not in shown
    assert GLOBAL_LINE in shown
    assert 1 <= len(command.examples) <= 3
    for line in command.examples:
        assert f"\n  {line}\n" in shown
        assert f"kclient {' '.join(words)} " in f"{line} "


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_option_has_a_help_text(words: tuple[str, ...]) -> None:
    options = [each for each in COMMANDS[words].params if isinstance(each, click.Option)]
    assert [each.name for each in options if not each.help] == []


def test_the_first_page_has_the_options_of_every_command() -> None:
    shown = page()
    for name in ("-b, --bootstrap-server", "-F, --command-config", "-X NAME=VALUE", "--format", "-J",
                 "-m, --timeout SECONDS", "-q, --quiet", "-y, --yes", "-v, --verbose",
                 "--no-color", "-V, --version"):  # fmt: skip
        assert f"\n  {name}" in shown
    lines = [line.split() for line in shown.split("Commands:\n")[1].split("\n\n")[0].splitlines()]
    assert [words[0] for words in lines] == kclient.list_commands(click.Context(kclient))
    assert all(words[-1].endswith(".") and not words[-1].endswith("...") for words in lines)
    assert shown.index("-b, --bootstrap-server") < shown.index("-q, --quiet")


def test_the_page_of_a_group_names_the_first_page() -> None:
    groups = [kclient.get_command(click.Context(kclient), words[0]) for words in COMMANDS]
    names = {each.name for each in groups if isinstance(each, Group)}
    assert names == {
        "cluster",
        "context",
        "group",
        "log",
        "perf",
        "quota",
        "reassign",
        "topic",
        "txn",
    }
    for name in names:
        assert GLOBAL_LINE in page(name)


def test_the_first_page_imports_neither_twisted_nor_a_command() -> None:
    """Their imports would double its time."""
    script = (
        "import sys; from kclient.cli.commands import kclient;"
        "kclient.main(['--help'], standalone_mode=False);"
        "sys.exit(bool({'twisted', 'kclient.cli.topic', 'kclient.cli.info'} & sys.modules.keys()))"
    )
    subprocess.run(
        [sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL, timeout=30
    )


def test_a_command_of_topics_imports_no_codec_of_records_and_no_other_admin_api() -> None:
    """They were 40 % of the processor time of `kclient topic list`."""
    script = (
        "import sys, kclient.cli.topic, kclient.admin.client, kclient.admin.topics;"
        "print(*sorted(each for each in sys.modules if each.startswith(('kclient.wire.', 'kclient.admin.'))"
        " or each in ('crc32c', 'cramjam', 'scramp', 'fastavro', 'OpenSSL')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, stdout=subprocess.PIPE, text=True, timeout=30
    )
    unwanted = {
        "kclient.admin.groups", "kclient.admin.transactions", "kclient.admin.configs", "kclient.wire.fetch",
        "kclient.wire.produce", "kclient.wire.records", "kclient.wire.batches", "crc32c", "cramjam", "scramp",
        "fastavro", "OpenSSL", "kclient.wire.schema.list_offsets", "kclient.wire.schema.alter_client_quotas",
    }  # fmt: skip
    assert not unwanted & set(done.stdout.split())
    assert "kclient.admin.client" in done.stdout


class NoReactor:
    """A reactor that ends before the command's first contact with the cluster."""

    running = False

    def callWhenRunning(self, begin: Any) -> None:  # noqa: N802 - Twisted's name
        pass

    def run(self, *, installSignalHandlers: bool) -> None:  # noqa: N803 - Twisted's name
        pass


@pytest.fixture
def without_contact(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """End a command where the reactor would run, in a directory with the files of the examples."""
    monkeypatch.setattr("twisted.internet.reactor", NoReactor())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.json").write_text(
        '{"version":1,"partitions":[{"topic":"orders","partition":0,"replicas":[4]}]}'
    )
    (tmp_path / "before.csv").write_text("billing,orders,0,1\n")
    (tmp_path / "client.properties").write_text("bootstrap.servers=localhost:9092\n")
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / f"{0:020d}.log").write_bytes(encode_batch([Record(0, 0, b"k", b"v")]))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "kclient").mkdir()
    (tmp_path / "kclient" / "contexts.toml").write_text(
        'current = "staging"\n[contexts.staging]\nbootstrap.servers = "localhost:9092"\n'
    )
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("words", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_an_example_runs_up_to_its_first_contact(
    words: tuple[str, ...], line: str, without_contact: None
) -> None:
    commands = [
        shlex.split(part) for part in re.split(r" \| ", line) if part.startswith("kclient ")
    ]
    assert commands
    for command in commands:
        ended = CliRunner().invoke(kclient, [*command[1:], "--yes"])
        assert ended.exit_code == 0
        assert (ended.output == "") is (words[:1] not in WITHOUT_CONTACT)
