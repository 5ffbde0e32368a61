"""Pages of documentation are executed line by line, on clusters that they start themselves (tests/kit/pages.py).

A new page is one line in `PAGES`. A page that starts no cluster gets one of three brokers. README is executed in
a fresh environment (test_packaging.py).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.pages import reading
from tests.kit.prose import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

PAGES: dict[str, tuple[str, ...]] = {
    "docs/tutorial.md": (),
}
"""The pages that are executed, with the sections that are; none stands for all."""


@pytest.fixture(scope="module")
def cluster(module_clusters: MakeCluster) -> Cluster:
    return module_clusters(3)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_what_happens(
    page: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = ROOT / page
    ports: list[int] = []
    if "kbroker local up" not in path.read_text():
        brokers = request.getfixturevalue("cluster").brokers.values()
        ports = [broker.port for broker in brokers]
    with reading(tmp_path, Path(sys.prefix) / "bin", ports) as reader:
        assert reader.read(path, PAGES[page]) > 0
