"""Fixtures that every test may ask for; they live in tests/kit."""

import pytest

pytest_plugins = ["tests.kit.zookeeper", "tests.kit.brokers"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests of real processes one second chance, which CI counts and prints.

    Their deadlines are those of a person, and these machines are shared: a minute in which somebody
    else needs the processor is no defect. A test that fails twice is. Nothing else is ever repeated, nor
    what says so itself: a record that was lost once is lost.
    """
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("flaky"):
            item.add_marker(pytest.mark.flaky(reruns=1))
