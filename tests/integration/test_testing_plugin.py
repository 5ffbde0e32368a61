"""The pytest plugin as users run it: the page docs/testing.md as it stands, xdist, what is missing, what is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.integration.test_testing_cluster import processes_of
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
TESTS = re.findall(r"^ *def (test_\w+)", "\n".join(BLOCKS), re.MULTILINE)

# Notes where each test found its ZooKeeper, and in which worker.
CONFTEST = """
import os
import pytest

@pytest.fixture(scope="module", autouse=True)
def zookeeper_of_a_cluster_without_the_plugin():
    from kbroker.testing.cluster import session_zookeeper
    with open(os.environ["NOTES"] + "-sessions", "a") as notes:
        print(session_zookeeper().directory, file=notes)

def pytest_runtest_teardown(item):
    cluster = item.funcargs.get("kafka_observer")
    if cluster is not None:
        with open(os.environ["NOTES"], "a") as notes:
            worker = os.environ.get("PYTEST_XDIST_WORKER", "none")
            print(worker, cluster.zookeeper_connect.split("/")[0], cluster.bootstrap, file=notes)
"""


class Project:
    """A directory of tests of a user. It names its *plugins*: to load all of our environment takes a second."""

    def __init__(self, home: Path, *plugins: str) -> None:
        self.home = home
        self.temporary = home / "tmp"
        self.temporary.mkdir()
        self.notes = home / "notes"
        # CI makes pytest repeat whole messages in its summary.
        self.environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if name != "CI" and not name.startswith("PYTEST")
            },
            "TMPDIR": str(self.temporary),
            "NOTES": str(self.notes),
        }
        (home / "pytest.ini").write_text("[pytest]\npython_functions = test_* check_*\n")
        self.command = [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly"),
            *("--junit-xml", str(home / "report.xml")),
        ]
        if plugins:
            self.environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
            self.command += [word for name in plugins for word in ("-p", name)]

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *options],
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=200,
        )

    def outcomes(self) -> dict[str, str]:
        """Return the outcome of each test of the last run."""
        cases = ElementTree.parse(self.home / "report.xml").getroot().iter("testcase")
        return {case.attrib["name"]: next((c.tag for c in case), "passed") for case in cases}

    @property
    def left(self) -> list[str]:
        """The files and processes of the session that are still there."""
        return [*map(str, self.temporary.glob("kbroker-*")), *processes_of(str(self.temporary))]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path, "kbroker.testing.plugin", "xdist")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Run the blocks of the page in two workers, with all plugins that pytest finds: ours is one of them."""
    assert entry_points(group="pytest11", name="kbroker"), "`make venv` installs the entry point"
    project = Project(tmp_path_factory.mktemp("page"))
    (project.home / "conftest.py").write_text(CONFTEST)
    for number, block in enumerate(BLOCKS):
        (project.home / f"test_block_{number}.py").write_text(block)
    done = project.run("-n", "2", "--dist", "worksteal")
    (project.home / "output").write_text(done.stdout + done.stderr)
    yield project
    eventually("everything of the session to be gone", lambda: not project.left, 15)


@pytest.mark.parametrize("name", TESTS)
def test_every_test_of_the_page_passes(page: Project, name: str) -> None:
    assert page.outcomes().get(name) == "passed", (page.home / "output").read_text()


def test_the_page_has_the_five_commonest_tests() -> None:
    assert len(TESTS) == 10, (
        "with three for clients of other libraries, two for faults of requests, one without pytest"
    )


def test_all_workers_and_clusters_of_a_run_use_one_zookeeper_server(page: Project) -> None:
    workers, servers, clusters = map(
        set, zip(*(line.split() for line in page.notes.read_text().splitlines()), strict=True)
    )
    assert workers == {"gw0", "gw1"}
    assert len(servers) == 1
    sessions = Path(f"{page.notes}-sessions").read_text().split()
    assert (len(sessions), len(set(sessions))) == (len(BLOCKS), 1), (
        "of a KafkaCluster without fixtures"
    )
    assert 6 <= len(clusters) <= 7, "one of each worker, and four or five of tests of their own"


FAILING = """
import pytest

def check_that_fails(kafka_cluster):
    assert 0

@pytest.mark.kafka(broker=1)
def check_unknown_argument(kafka):
    pass

@pytest.mark.kafka(3)
def check_positional(kafka):
    pass

@pytest.mark.kafka(brokers=99)
def check_too_many(kafka):
    pass

@pytest.mark.kafka(settings={"log.retention.hours": "many"})
def check_setting(kafka):
    pass
"""


def test_a_failure_shows_the_brokers_logs_and_a_mistake_is_one_line(project: Project) -> None:
    (project.home / "test_failing.py").write_text(FAILING)
    done = project.run("--tb", "short", "-o", "kafka_brokers=1")
    assert project.outcomes() == {
        "check_that_fails": "failure",
        "check_unknown_argument": "error",
        "check_positional": "error",
        "check_too_many": "error",
        "check_setting": "error",
    }, done.stdout
    for line in (
        "the marker kafka has no argument broker; it has brokers, settings, racks, partitions, "
        "replication_factor, config",
        "the marker kafka has keyword arguments only",
        "the marker kafka: brokers=99: a cluster for tests has 1 to 20",
        "the Kafka cluster does not start: broker 1 ended with 1:",
    ):
        assert f"\n{line}\n" in done.stdout
    assert re.search(r"--- broker 1 \(running\): .*broker.log\n.* ZooKeeper session", done.stdout)
    assert re.search(r"log\.retention\.hours.*many", done.stdout)
    assert "Traceback" not in done.stdout
    eventually("everything of the session to be gone", lambda: not project.left, 15)


DELETED = """
def check_that_deletes_its_topic(kafka_topic, kafka_observer):
    kafka_observer.delete_topic(kafka_topic)
"""


def test_a_test_may_delete_its_topic(project: Project) -> None:
    (project.home / "test_deleted.py").write_text(DELETED)
    done = project.run("-o", "kafka_brokers=1")
    assert project.outcomes() == {"check_that_deletes_its_topic": "passed"}, done.stdout


WITHOUT_EXTRA = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("kazoo", "click"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


def test_without_the_extra_other_tests_run_and_ours_name_what_to_install(project: Project) -> None:
    (project.home / "sitecustomize.py").write_text(WITHOUT_EXTRA)
    (project.home / "test_any.py").write_text(
        "def test_other(): pass\ndef test_kafka(kafka): pass\n"
    )
    project.environment["PYTHONPATH"] = str(project.home)
    done = project.run()
    assert project.outcomes() == {"test_other": "passed", "test_kafka": "error"}, done.stdout
    assert (
        "\nthis fixture needs kazoo, which is not installed: pip install 'kbroker[testing]'\n"
        in done.stdout
    )
    eventually("everything of the session to be gone", lambda: not project.left, 15)


def test_without_java_the_reason_is_one_line_for_every_test(project: Project) -> None:
    (project.home / "test_any.py").write_text(
        "def test_one(kafka): pass\ndef test_two(kafka_cluster): pass\n"
    )
    project.environment |= {"PATH": "/nowhere", "JAVA_HOME": ""}
    done = project.run()
    assert project.outcomes() == {"test_one": "error", "test_two": "error"}, done.stdout
    assert done.stdout.count("does not start: There is no java on the PATH.") == 2
    eventually("everything of the session to be gone", lambda: not project.left, 15)


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["one process", "xdist"])
def test_a_run_that_is_killed_leaves_nothing(project: Project, options: tuple[str, ...]) -> None:
    (project.home / "test_long.py").write_text(
        "import pathlib, time\n"
        "def test_long(kafka):\n"
        "    pathlib.Path('begun').touch()\n"
        "    time.sleep(100)\n"
    )
    with subprocess.Popen(
        [*project.command, "-o", "kafka_brokers=2", *options],
        cwd=project.home,
        env=project.environment,
        stdout=subprocess.DEVNULL,
    ) as process:
        eventually("the test to begin", (project.home / "begun").exists, 60)
        assert len(project.left) >= 5, "a directory, two brokers, ZooKeeper and its keeper"
        process.send_signal(signal.SIGKILL)
    eventually("everything of the session to be gone", lambda: not project.left, 30)
