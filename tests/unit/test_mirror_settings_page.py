"""docs/mirror-settings.md is that of the code."""

from __future__ import annotations

from mirrormaker.settings import link_settings
from tools import mirror_settings_page


def test_the_page_is_that_of_the_code() -> None:
    written = mirror_settings_page.PAGE.read_text()
    assert written == mirror_settings_page.page(), "run tools/mirror_settings_page.py"


def test_every_setting_of_a_direction_has_a_row() -> None:
    rows = [line for line in mirror_settings_page.page().splitlines() if line.startswith("| `")]
    assert {*link_settings()} <= {row.split("`")[1] for row in rows}
