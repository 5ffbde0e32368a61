"""Runs the tests of a foreign suite by pytest, with stand-ins for what would start Apache Kafka."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kbroker.local.zookeeper import free_ports

HERE: Final = Path(__file__).parent
REPOSITORY: Final = HERE.parents[2]
KAFKA_VERSION: Final = "3.9.1"


@dataclass(frozen=True)
class Suite:
    """What of a checkout is run, and how."""

    copied: tuple[str, ...]
    """Folders: tests first, then what they read; not the client, because the installed one is tested."""
    tests: str
    """The folder of integration tests."""
    mark: str
    """A regular expression for what the files of integration tests contain."""
    options: tuple[str, ...] = ()
    """Of pytest."""


SUITES: Final[Mapping[str, Suite]] = {
    "kafka-python": Suite(("test", "servers"), "test/integration", "def test_"),
    "aiokafka": Suite(
        ("tests",),
        "tests",
        r"KafkaIntegrationTestCase|setup_test_class\b",
        ("--docker-image", f"kbroker:2.13_{KAFKA_VERSION}", "--no-pull"),
    ),
}


def run(
    suite: Suite, checkout: Path, home: Path, left_out: Iterable[str], words: Sequence[str]
) -> Path:
    """Run the suite, or the tests in *words*, in *home*; return pytest's JUnit report, which may be missing."""
    for name in suite.copied:
        shutil.copytree(checkout / name, home / name)
    # aiokafka's conftest.py makes no certificates if this folder is there; tests with TLS are not run.
    (home / suite.copied[0] / "ssl_cert").mkdir(exist_ok=True)
    (home / "pytest.ini").write_text("[pytest]\nmarkers =\n    ssl: needs certificates\n")
    report = home / "report.xml"
    command = [
        *(sys.executable, "-m", "pytest", "-q", "--tb=short", "--show-capture=no"),
        *("-p", "no:randomly", "-p", "no:twisted", "-p", "no:cacheprovider"),
        *("--timeout=240", f"--junitxml={report}", "-o", "junit_logging=no"),
        *suite.options,
        *(word for name in left_out for word in ("--deselect", name)),
        *(words or integration_tests(suite, home)),
    ]
    subprocess.run(command, cwd=home, env=environment(home), check=False)
    return report


def integration_tests(suite: Suite, home: Path) -> list[str]:
    """Return the files with tests that need a broker."""
    return [
        str(path.relative_to(home))
        for path in sorted((home / suite.tests).rglob("test_*.py"))
        if re.search(suite.mark, path.read_text())
    ]


def environment(home: Path) -> dict[str, str]:
    """Return the environment in which the fixtures of a suite find the stand-ins."""
    programs = home / "programs"
    _script(
        programs / "ktutil",
        "exit 0  # it makes a keytab for tests with Kerberos, which are not run",
    )
    return {
        **os.environ,
        "KAFKA_VERSION": KAFKA_VERSION,
        "KAFKA_ROOT": str(_kafka_root(home)),
        "KBROKER_SUITES_HOME": str(home),
        "KBROKER_SUITES_ZOOKEEPER_PORT": str(free_ports(1)[0]),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(HERE / "stand_ins"),
    }


def _kafka_root(home: Path) -> Path:
    """Write the scripts of Apache Kafka's archive that kafka-python's fixtures run."""
    root = home / "kafka-bin"
    _script(
        root / "bin" / "kafka-run-class.sh",
        'case "$1" in kafka.Kafka) kind=broker;; *) kind=zookeeper;; esac',
        f'cd {REPOSITORY} && exec {sys.executable} -m tests.compat.suites.server "$kind" "$2"',
    )
    _script(
        root / "bin" / "zookeeper-shell.sh",
        "exit 0  # it creates the chroot, which the broker creates itself",
    )
    return root


def _script(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
