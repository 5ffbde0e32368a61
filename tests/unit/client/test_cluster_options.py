"""Options that choose a cluster: the empty text of a variable that is not set is refused, and chooses no other."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from kclient.cli.commands import kclient


@pytest.mark.parametrize(
    "words",
    [
        ["-b", "", "topic", "list"],
        ["topic", "list", "-b", ""],
        ["topic", "list", "--bootstrap-server", " "],
        ["topic", "delete", "orders", "--brokers="],
        ["topic", "list", "--context", ""],
        ["topic", "cp", "a", "b", "--dst-context", ""],
        ["topic", "cp", "a", "b", "--dst-bootstrap-server", ""],
    ],
)
def test_an_empty_choice_of_a_cluster_is_a_usage_error(words: list[str]) -> None:
    ended = CliRunner().invoke(kclient, [*words, "-m", "0.1"])
    assert ended.exit_code == 2
    assert "it is empty: leave the option out" in ended.output
