"""`--conf` and the archive of `--environment`: what is taken, what is refused, and why."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_jobs.cli import kaudit
from spark_jobs.packed_environment import (
    FACTS,
    NotAnEnvironment,
    check,
    facts,
    required,
    write_archive,
)
from spark_jobs.spark_settings import FEW_OFFSETS, SparkSettings, parse_settings


def test_the_last_setting_of_a_name_holds_and_a_value_may_have_an_equals_sign() -> None:
    texts = ["spark.a=1", "spark.driver.extraJavaOptions=-Dx=y", "spark.a=2", "spark.b="]
    assert parse_settings(texts) == {
        "spark.a": "2",
        "spark.driver.extraJavaOptions": "-Dx=y",
        "spark.b": "",
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("spark.executor.memory", "is not NAME=VALUE"),
        ("=2g", "is not NAME=VALUE"),
        ("executor.memory=2g", "begin with 'spark.'"),
        ("spark.master=local", "use --master"),
        ("spark.submit.deployMode=cluster", "client mode"),
        ("spark.sql.session.timeZone=CET", "UTC"),
    ],
)
def test_a_setting_that_is_no_setting_or_not_the_users_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_settings([text])
    words = ("profile", "--cluster", "127.0.0.1:1", "--topics", "t", "--conf", text)
    done = CliRunner().invoke(kaudit, words)
    assert done.exit_code == 2
    assert reason in " ".join(done.output.split())


def test_settings_that_an_environment_needs_are_the_users_without_one() -> None:
    assert parse_settings(["spark.archives=x.zip"]) == {"spark.archives": "x.zip"}
    with pytest.raises(ValueError, match="--environment is the archive"):
        parse_settings(["spark.archives=x.zip"], with_environment=True)


@pytest.mark.parametrize(
    ("master", "is_local"),
    [
        ("local", True),
        ("local[*]", True),
        ("local-cluster[2,1,900]", False),
        ("spark://h:1", False),
    ],
)
def test_only_threads_of_the_driver_are_local(master: str, is_local: bool) -> None:
    assert SparkSettings(master).is_local is is_local


def archive(path: Path, content: Mapping[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as made:
        text = json.dumps(content).encode()
        entry = tarfile.TarInfo(FACTS)
        entry.size = len(text)
        made.addfile(entry, io.BytesIO(text))
    return path


def test_an_environment_of_the_same_version_python_and_platform_is_taken(tmp_path: Path) -> None:
    check(archive(tmp_path / "e.tar.gz", facts()))


@pytest.mark.parametrize("name", ["kbroker", "python", "platform"])
def test_an_environment_of_another_version_python_or_platform_is_refused(
    tmp_path: Path, name: str
) -> None:
    other = archive(tmp_path / "e.tar.gz", {**facts(), name: "another"})
    with pytest.raises(NotAnEnvironment, match=f"packed with {name} another.*kaudit pack. again"):
        check(other)


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08\x00cut"])
def test_a_file_that_is_no_environment_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "e.tar.gz"
    path.write_bytes(content)
    with pytest.raises(NotAnEnvironment, match=r"e\.tar\.gz is no archive of .kaudit pack."):
        check(path)
    with tarfile.open(path, "w:gz"):
        pass
    with pytest.raises(NotAnEnvironment, match=r"e\.tar\.gz is no archive of .kaudit pack."):
        check(path)


def test_an_environment_has_what_kaudit_requires_and_all_that_these_require() -> None:
    names = required("kbroker", "audit")
    # cramjam is the client's, numpy pandas' and the audit's, tzdata only pandas'.
    assert {"cramjam", "pyarrow", "numpy", "pandas", "tzdata", "jinja2", "markupsafe"} <= names
    # kazoo is of the brokers, pytest of the tests, py4j of Spark itself.
    assert not {"kazoo", "pytest", "py4j"} & names


@pytest.mark.parametrize(
    ("master", "offsets", "few"),
    [
        ("local[*]", FEW_OFFSETS, True),
        ("local[*]", FEW_OFFSETS + 1, False),
        ("local[*]", None, False),
        ("spark://a:7077", 1, False),
        ("local-cluster[1,1,1024]", 1, False),
    ],
)
def test_only_a_local_run_that_is_known_to_be_short_has_settings_for_few_offsets(
    master: str, offsets: int | None, *, few: bool
) -> None:
    assert SparkSettings(master, offsets=offsets).reads_few_offsets is few


def installed(home: Path, name: str, files: Mapping[str, str]) -> None:
    """Install a version of a required package in *home* that hides the real one."""
    about = home / f"{name}-99.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 99.0\n")
    for file, text in files.items():
        (about / file).write_text(text)


@pytest.mark.parametrize(
    ("files", "cause"),
    [
        ({}, "has no list of its files (RECORD)"),
        (
            {
                "RECORD": "cramjam.pth,,\n",
                "direct_url.json": '{"url": "file:///x", "dir_info": {"editable": true}}',
            },
            "is an editable installation",
        ),
    ],
)
def test_a_package_of_which_the_files_are_not_known_is_not_left_out_of_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Mapping[str, str], cause: str
) -> None:
    """It was left out, and named as packed."""
    installed(tmp_path, "cramjam", files)
    monkeypatch.syspath_prepend(str(tmp_path))
    done = CliRunner().invoke(kaudit, ["pack", str(tmp_path / "e.tar.gz")])
    assert done.exit_code == 70
    assert f"cramjam 99.0 {cause}: workers would lack it" in done.output
    assert not (tmp_path / "e.tar.gz").exists()


def test_links_are_packed_as_the_files_to_which_they_lead(tmp_path: Path) -> None:
    (tmp_path / "cache.py").write_text("x = 1\n")
    link, again = tmp_path / "a.py", tmp_path / "b.py"
    link.symlink_to(tmp_path / "cache.py")
    again.hardlink_to(tmp_path / "cache.py")
    places = {"a.py": link, "b.py": again, "c.py": tmp_path / "cache.py"}
    write_archive(tmp_path / "e.tar.gz", places)
    check(tmp_path / "e.tar.gz")
    with tarfile.open(tmp_path / "e.tar.gz") as packed:
        for name in places:
            entry = packed.getmember(f"lib/{name}")
            assert entry.isfile()
            content = packed.extractfile(entry)
            assert content is not None
            assert content.read() == b"x = 1\n"
