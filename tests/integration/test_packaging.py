"""The wheels and the sdist in a fresh environment, with only the packages that they declare: files, extras, README.

The dependencies are links into the environment of the tests, so nothing is downloaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kclient.build import MODULES
from tests.kit.fresh_environment import FreshEnvironment
from tests.kit.pages import reading
from tests.kit.prose import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MIRROR = """clusters = east, west
east.bootstrap.servers = 127.0.0.1:1
west.bootstrap.servers = 127.0.0.1:1
west.zookeeper.connect = 127.0.0.1:1
east->west.enabled = true
"""


class Made(NamedTuple):
    """What `make dist` makes."""

    pure: Path
    sdist: Path
    compiled: Path | None
    """None without a C compiler."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, str(ROOT / "tools/dist.py"), "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    (pure,) = out.glob("*-none-any.whl")
    (sdist,) = out.glob("*.tar.gz")
    return Made(pure, sdist, next((each for each in out.glob("*.whl") if each != pure), None))


@pytest.fixture(scope="module")
def wheel(made: Made) -> Path:
    return made.pure


def files_of(wheel: Path) -> set[str]:
    """Return the names of the files that a wheel installs into the packages."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> FreshEnvironment:
    return FreshEnvironment(tmp_path_factory.mktemp("fresh"), wheel)


def test_the_wheel_has_the_tracked_files_of_four_packages_and_no_other(wheel: Path) -> None:
    packages = ("kbroker", "kclient", "mirrormaker", "spark_jobs")
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", *packages], check=True, capture_output=True, text=True
    )
    names = files_of(wheel)
    with zipfile.ZipFile(wheel) as archive:
        (about,) = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
        metadata = archive.read(about).decode()
    assert names == {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    assert {f"{package}/py.typed" for package in packages} < names
    assert "\nName: kbroker\n" in metadata
    assert "\nLicense-File: LICENSE\n" in metadata


def test_the_compiled_wheel_has_the_same_files_and_runs_compiled(
    made: Made, tmp_path: Path
) -> None:
    if made.compiled is None:
        pytest.skip("there is no C compiler here, so there is no compiled wheel")
    added = files_of(made.compiled) - files_of(made.pure)
    assert files_of(made.pure) <= files_of(made.compiled)
    assert {name.rpartition(".")[2] for name in added} == {"so"}
    modules = {name.partition(".")[0].replace("/", ".") for name in added}
    assert modules >= set(MODULES)
    fresh = FreshEnvironment(tmp_path / "fresh", made.compiled)
    version = fresh.run("kclient", "--version", directory=tmp_path)
    assert "(record codec: compiled)" in version.stdout, version


def test_a_wheel_that_is_built_of_the_sdist_is_the_pure_wheel(made: Made, tmp_path: Path) -> None:
    with tarfile.open(made.sdist) as archive:
        # Python 3.11 before its patch release 4 has no filters.
        safely: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(tmp_path, **safely)
    (source,) = tmp_path.iterdir()
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(
        [sys.executable, "-c", "from setuptools import build_meta as b; b.build_wheel('../out')"],
        cwd=source,
        env={**os.environ, "KBROKER_PURE_PYTHON": "1"},
        check=True,
        capture_output=True,
    )
    (built,) = out.iterdir()
    assert built.name == made.pure.name
    assert files_of(built) == files_of(made.pure)


@pytest.mark.parametrize(
    ("command", "needs", "code"),
    [
        ("kbroker start server.properties", "kazoo: kbroker[broker]", 1),
        ("kbroker local up --dir clusters", "PySpark: kbroker[local]", 1),
        ("kbroker demo", "kazoo: kbroker[demo]", 1),
        (
            "kclient -b 127.0.0.1:1 consume t -s value=avro --avro a.avsc",
            "fastavro: kbroker[avro]",
            1,
        ),
        ("kmirror run mirror.properties", "kazoo: kbroker[broker]", 1),
        (
            "kaudit reconcile --source a:1 --target b:1 --topics t --out r",
            "numpy: kbroker[audit]",
            70,
        ),
        ("kaudit pack a.tar.gz", "pyarrow: kbroker[audit]", 70),
    ],
)
def test_a_command_without_its_extra_names_it_in_one_line(
    command: str, needs: str, code: int, fresh: FreshEnvironment, tmp_path: Path
) -> None:
    (tmp_path / "server.properties").write_text("broker.id=1\nzookeeper.connect=127.0.0.1:1\n")
    (tmp_path / "mirror.properties").write_text(MIRROR)
    (tmp_path / "a.avsc").write_text('"string"')
    done = fresh.run(*command.split(), directory=tmp_path)
    *before, last = (done.stdout + done.stderr).splitlines()
    assert done.returncode == code, done
    missing, _, extra = needs.partition(": ")
    assert missing in last
    assert last.rstrip(")").endswith(f"pip install '{extra}'")
    assert before in ([], ["ZooKeeper: starting 1 of 1 server"])


def test_readme_is_what_happens_in_a_fresh_environment(
    fresh: FreshEnvironment, tmp_path: Path
) -> None:
    version = fresh.run("kbroker", "--version", directory=tmp_path)
    assert version.stdout.startswith("kbroker, version "), version
    assert "interpreted" in version.stdout
    assert "\n  produce " in fresh.run("kclient", "--help", directory=tmp_path).stdout
    with fresh.extra("local"), reading(tmp_path, fresh.programs) as reader:
        assert reader.read(ROOT / "README.md", ["Use it"]) > 5
