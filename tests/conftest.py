"""Fixtures that every test may ask for; they live in tests/kit."""

import atexit
import functools
import gc
import importlib.metadata
import os
import re
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_timeout
from hypothesis import settings

from tests.kit.property_tests import examples

if TYPE_CHECKING:
    from kbroker.testing import KafkaCluster

# Not the user's: a test must not depend on a self-test that passed before (spark_jobs/passed_self_tests.py).
# The workers of a run share the directory of its controller: one self-test of Spark is enough for all.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="kbroker-tests-cache-")
    atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
# Nor on the user's clusters; and `kbroker local` in a test must not become their current context (kclient/contexts.py).
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="kbroker-tests-config-")
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)
# tools/setup.sh wrote it. Without it Spark starts in twice the time.
os.environ.setdefault("KAUDIT_CLASS_ARCHIVE", str(Path(sys.prefix) / "spark-classes.jsa"))

# pytest parses Twisted's metadata before each of 10,000 tests, for its version: a millisecond each time.
pytest.MonkeyPatch().setattr(
    importlib.metadata, "version", functools.cache(importlib.metadata.version)
)

settings.register_profile("share", settings(), max_examples=examples(settings().max_examples))
settings.load_profile("share")

LOCATION = re.compile(r"\S+\.py:\d+: ")
"""A line of a traceback that names the file and line of a frame."""

pytest_plugins = [
    "tests.kit.zookeeper",
    "tests.kit.brokers",
    "tests.kit.coordinators",
    "tests.kit.mirrored_clusters",
]


@pytest.fixture
def kafka_cluster(kafka_cluster: "KafkaCluster") -> Iterator["KafkaCluster"]:
    """Give the plugin's cluster of the test's own; none of its brokers may complain."""
    from tests.kit.brokers import complaints_of

    yield kafka_cluster
    kafka_cluster.kill()
    assert complaints_of(kafka_cluster) == []


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests of real processes one second chance, which CI counts and prints.

    Their deadlines are those of a user, and these machines are shared: a minute in which another
    process needs the processor is no defect. A test that fails twice is. A test with the marker is never repeated: a
    record that was lost once is lost.

    CI, where one failure keeps a whole session's work from landing, also repeats a quick test during which
    the garbage collector found what another one had left behind (`make check` does not: it fails), and one that reached
    its time limit: a test that hangs once in a thousand runs is a defect to mend, and CI prints it.
    """
    for item in items:
        if item.get_closest_marker("flaky"):
            continue
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.flaky(reruns=1))
        elif os.environ.get("CI"):
            item.add_marker(
                pytest.mark.flaky(
                    reruns=1,
                    only_rerun=["[uU]nraisable ?[eE]xception ?[wW]arning", r"Timeout \(>"],
                )
            )

    # The longest files begin first (Makefile: no reordering by xdist), so that no worker is left alone with one at the
    # end. The time limits of its tests show how long a file is; of processes only the greatest count, which are
    # Spark's: the others take turns by chance, so that those with deadlines do not all run beside Spark.
    limits: dict[Path, float] = defaultdict(float)
    for item in items:
        if limit := item.get_closest_marker("timeout"):
            limits[item.path] = max(limits[item.path], limit.args[0])
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}

    def place(item: pytest.Item) -> tuple[bool, bool, float]:
        is_slow, limit = item.path in slow_files, limits[item.path]
        return limit < 900, not is_slow, 0 if is_slow else -limit

    items.sort(key=place)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give a test that is repeated its time limit again: that of pytest-timeout is for all runs together."""
    if getattr(item, "execution_count", 1) > 1:
        hooks = item.config.pluginmanager.hook
        settings = pytest_timeout._get_item_settings(item)
        hooks.pytest_timeout_cancel_timer(item=item)
        if settings.timeout:
            hooks.pytest_timeout_set_timer(item=item, settings=settings)


def pytest_collection_finish() -> None:
    """Leave modules and collected tests out of every later garbage collection: they stay until the end."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print why each repeated test failed the first time: a test that needs its second chance often has a cause."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.write_line(f"{report.nodeid} failed first, with:")
        lines = report.longreprtext.splitlines()
        # The line of every frame: the last one may be deep in a library.
        frames = [line for line in lines[:-25] if line.startswith(">") or LOCATION.match(line)]
        for line in [*frames, *lines[-25:]]:
            terminalreporter.write_line(f"    {line}")
