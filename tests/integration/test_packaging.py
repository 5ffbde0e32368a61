"""The wheel in a fresh environment, with only the packages that it declares: its files, its extras, README.

The dependencies are links into the environment of the tests, so nothing is downloaded.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pure wheel: the compiled one has the same files, and needs ten times the time."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, str(ROOT / "tools/dist.py"), "--only-pure-wheel", "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    (made,) = out.iterdir()
    return made


@pytest.fixture(scope="module")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> FreshEnvironment:
    return FreshEnvironment(tmp_path_factory.mktemp("fresh"), wheel)


def test_the_wheel_has_the_tracked_files_of_four_packages_and_no_other(wheel: Path) -> None:
    packages = ("kbroker", "kclient", "mirrormaker", "spark_jobs")
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", *packages], check=True, capture_output=True, text=True
    )
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (about,) = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
        metadata = archive.read(about).decode()
    assert names == {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    assert {f"{package}/py.typed" for package in packages} < names
    assert "\nName: kbroker\n" in metadata
    assert "\nLicense-File: LICENSE\n" in metadata


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
