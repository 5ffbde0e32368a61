"""report.html in Chromium: readable at 500 px, in light and in dark mode."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from kclient.types import TopicPartition
from spark_jobs.report.contents import Report
from spark_jobs.report.page import render_page
from tests.kit.audit_reports import damaged_report

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LONG_NAME = TopicPartition("a-name-of-249-characters-" * 9 + "a" * 24, 0)

MEASURE = """<script>addEventListener("load", () => {
  const number = text => text.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const colour = number(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const texts = [...document.querySelectorAll("body *")].filter(e => e.namespaceURI.endsWith("xhtml")
    && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) && e.checkVisibility()
    && !["SCRIPT", "STYLE"].includes(e.tagName));
  const pale = texts.map(e => {
    const [a, b] = [number(getComputedStyle(e).color), behind(e)].map(luminance).sort((x, y) => y - x);
    return [Math.round((a + 0.05) / (b + 0.05) * 100) / 100, e.textContent.trim().slice(0, 60)];
  }).filter(([contrast]) => contrast < 4.5);
  const wide = texts.filter(e => e.getBoundingClientRect().right > innerWidth + 1)
    .map(e => e.textContent.trim().slice(0, 60));
  const result = {width: document.documentElement.scrollWidth, at: innerWidth, texts: texts.length, pale, wide,
    background: behind(document.body)};
  document.body.outerHTML = `<pre id=measured>${JSON.stringify(result).replaceAll("<", "&lt;")}</pre>`;
})</script>"""
"""Replaces the page by what was measured: texts with less contrast than WCAG's 4.5, and texts beyond the right edge."""


def worst_report() -> Report:
    """Findings, in a topic with the longest name, from a cluster with long addresses."""
    return damaged_report(LONG_NAME, ",".join(["broker.east:9092"] * 8))


def measured(page: str, directory: Path, *options: str) -> dict[str, Any]:
    file = directory / "report.html"
    file.write_text(page.replace("</body>", f"{MEASURE}</body>"))
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    window = ["--dump-dom", "--window-size=500,800", f"--user-data-dir={directory}/profile"]
    done = subprocess.run(
        [*command, *window, *options, file.as_uri()],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    found = re.search(r'<pre id="measured">(.*)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stdout[-2000:]
    result: dict[str, Any] = json.loads(unescape(found[1]))
    return result


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")
@pytest.mark.parametrize(
    ("is_dark", "options"), [(False, ()), (True, ("--blink-settings=preferredColorScheme=0",))]
)
def test_the_page_is_readable_at_500_px(
    is_dark: bool, options: tuple[str, ...], tmp_path: Path
) -> None:
    page = render_page(worst_report(), directory="/a/long/directory" * 12)
    result = measured(page.replace("<details", "<details open"), tmp_path, *options)
    assert (sum(result["background"][:3]) < 3 * 64) is is_dark
    assert result["texts"] > 80
    assert result["at"] == 500
    assert (result["width"], result["wide"]) == (500, [])
    assert result["pale"] == []
