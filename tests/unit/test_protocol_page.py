"""docs/protocol.md is that of the code, and every API of Kafka is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.apis.api_specs import API_SPECS
from tools import protocol_page


def test_the_page_is_that_of_the_code() -> None:
    assert protocol_page.PAGE.read_text() == protocol_page.page(), "run tools/protocol_page.py"


def test_every_api_of_kafka_is_served_or_has_the_reason_why_not() -> None:
    assert API_SPECS.keys() | protocol_page.NOT_SERVED.keys() == protocol_page.KAFKA.keys()
    assert not API_SPECS.keys() & protocol_page.NOT_SERVED.keys()
    assert API_SPECS.keys() == protocol_page.TESTS.keys()


@pytest.mark.parametrize("key", sorted(API_SPECS))
def test_no_version_is_served_that_kafka_does_not_have(key: int) -> None:
    assert API_SPECS[key].versions.max <= protocol_page.KAFKA[key][1]
    test = protocol_page.ROOT / protocol_page.TESTS[key]
    assert "def test_" in test.read_text()


def test_what_differs_is_the_paragraph_behind_its_heading(tmp_path: Path) -> None:
    module = tmp_path / "api.py"
    module.write_text('"""One.\\n\\nDiffers from Kafka: this,\\nand that.\\n\\nMore.\\n"""')
    assert protocol_page.difference(module) == "this, and that."
    module.write_text('"""One."""')
    assert protocol_page.difference(module) == ""
