"""docs/kafka-tools.md is that of the code, and every tool has a command line of Kafka that it is compared with."""

from __future__ import annotations

import pytest

from kclient.cli.kafka_tools.command import NOT_HERE, TOOLS, tool_of
from tests.kit.kafka_tools import CLASSES
from tools import kafka_tools_page


def test_the_page_is_that_of_the_code() -> None:
    assert kafka_tools_page.PAGE.read_text() == kafka_tools_page.page(), (
        "run python -m tools.kafka_tools_page"
    )


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_has_its_name_its_options_and_a_reason_for_each_that_is_refused(name: str) -> None:
    tool = tool_of(name)
    assert tool.name == name
    assert name in CLASSES
    assert name not in NOT_HERE
    rows = tool.rows()
    assert len({row.option for row in rows}) == len(rows)
    assert any(not row.refused for row in rows)
