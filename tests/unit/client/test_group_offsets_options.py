"""Options of the commands for committed offsets that contradict each other, and files that are refused: no cluster."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from kclient.admin.offset_resets import Scenario, Target
from kclient.cli.group import group
from kclient.cli.group_offsets import _target

RESET = ("reset-offsets", "g", "-t", "t")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((*RESET,), "give one of --to-earliest, --to-latest, --to-current, --to-offset,"),
        ((*RESET, "--to-earliest", "--to-offset", "0"), "found --to-earliest and --to-offset"),
        ((*RESET, "--shift-by", "0", "--from-file", "-"), "found --shift-by and --from-file"),
        ((*RESET, "--from-file", "-"), "leave --topic and --all-topics out"),
        ((*RESET, "--to-latest", "--all-topics"), "give either --topic or --all-topics"),
        (("reset-offsets", "g", "--to-latest"), "give either --topic or --all-topics"),
        (("reset-offsets", "--all-topics", "--to-latest"), "give either GROUP... or --all-groups"),
        ((*RESET, "--all-groups", "--to-latest"), "give either GROUP... or --all-groups"),
        ((*RESET, "--to-latest", "--dry-run", "--execute"), "give one of --dry-run and --execute"),
        (("import", "-", "--dry-run", "--execute"), "give one of --dry-run and --execute"),
        (("reset-offsets", "g", "-t", "t:x", "--to-latest"), "--topic 't:x': expected topic or"),
        ((*RESET, "--to-offset", "many"), "'many' is not a valid integer"),
        ((*RESET, "--to-datetime", "yesterday"), "--to-datetime: Invalid isoformat string"),
        ((*RESET, "--by-duration", "1h"), "--by-duration: '1h' is not a duration"),
        ((*RESET, "--to", "47:99"), "--to 47:99: a reset has one offset, not a range"),
        ((*RESET, "--to", "soon"), "--to: 'soon' is not an offset"),
        ((*RESET, "--to", "end", "--to-latest"), "found --to and --to-latest"),
        (("seek", "g", "--to", "@t1:t2"), "--to: 't1:t2' is not a time"),
        (("seek", "g", "--to", "end", "--dry-run", "--execute"), "give one of --dry-run and"),
        (("import", "/nonexistent"), "/nonexistent: No such file or directory"),
        (("delete-offsets", "g"), "Missing option '-t' / '--topic'"),
        (("export",), "give either GROUP... or --all-groups"),
        (("export", "g", "-J"), "export writes CSV; `kclient group describe -J`"),
    ],
)  # fmt: skip
def test_options_that_contradict_each_other(words, problem):
    done = CliRunner().invoke(group, words)
    assert done.exit_code == 2
    assert problem in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("content", "words", "problem"),
    [
        (b"", ("import", "-"), "-: there are no offsets"),
        (b"g,t,0,1\ng,t,x,1\n", ("import", "-"), "-: line 2: 'x' is not a partition"),
        (b"t,0,1\n", ("import", "-"), "-: line 1 is topic,partition,offset without a group"),
        (b"t,0,1\n", ("import", "-", "g", "h"), "name exactly one GROUP"),
        (b"t,0,1\n", ("reset-offsets", "--all-groups", "--from-file", "-"), "without a group"),
        (b"\xff\xfe", ("import", "-"), "-: 'utf-8' codec can't decode"),
    ],
)
def test_a_file_that_is_refused(content, words, problem):
    done = CliRunner().invoke(group, words, input=content)
    assert done.exit_code == 2
    assert problem in done.output


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("start", Target(Scenario.EARLIEST)),
        ("+2", Target(Scenario.EARLIEST, 2)),
        ("-3", Target(Scenario.LATEST, -3)),
        ("stored", Target(Scenario.CURRENT)),
        ("47", Target(Scenario.OFFSET, 47)),
        ("@1600000000000", Target(Scenario.TIME, 1_600_000_000_000)),
    ],
)
def test_to_takes_the_offsets_of_consume(text, target):
    assert _target("to", text) == target
