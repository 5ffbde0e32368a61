"""The archive of Spark's Java classes: where it is, when there is none, and the options that use it."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark
import pytest

from spark_jobs.class_archive import (
    MOST_ARCHIVES,
    OFF,
    VARIABLE,
    NoClassArchive,
    archive_file,
    archive_options,
    remove_oldest,
)
from spark_jobs.session import (
    CONF,
    JAVA_OPTIONS,
    NO_CONF,
    driver_java_options,
    lacks_class_archive,
)
from spark_jobs.spark_settings import SparkSettings


def java_in(folder: Path) -> dict[str, str]:
    """Return an environment with a Java of its own in *folder*."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.touch()
    return {"JAVA_HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}


def test_each_java_has_an_archive_of_its_own(tmp_path: Path) -> None:
    one, other = java_in(tmp_path / "one"), java_in(tmp_path / "other")
    assert archive_file(one).parent == tmp_path / "one" / "cache" / "kbroker"
    assert archive_file(one).name != archive_file(other).name
    before = archive_file(one)
    os.utime(tmp_path / "one" / "bin" / "java", (1, 1))
    assert archive_file(one) != before, "another Java was installed there"


def test_another_file_is_named(tmp_path: Path) -> None:
    environment = java_in(tmp_path)
    assert archive_file({**environment, VARIABLE: "/a/b.jsa"}) == Path("/a/b.jsa")
    with pytest.raises(NoClassArchive, match=f"{VARIABLE} is off"):
        archive_file({**environment, VARIABLE: "off"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPARK_HOME", "/opt/spark"),
        ("HADOOP_CONF_DIR", "/etc/hadoop"),
        ("SPARK_DIST_CLASSPATH", "/opt/x.jar"),
        ("JAVA_HOME", "/nowhere"),
    ],
)
def test_there_is_none_where_a_jvm_would_not_start(name: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(
        NoClassArchive, match=name if name != "JAVA_HOME" else "no Java at /nowhere"
    ):
        archive_file({**java_in(tmp_path), name: value})
    assert archive_file(
        {**java_in(tmp_path / "x"), "SPARK_HOME": os.path.dirname(pyspark.__file__)}
    )


def test_a_path_with_spaces_is_quoted_as_spark_splits_options(tmp_path: Path) -> None:
    assert archive_options(tmp_path / "a.jsa") == []
    (tmp_path / "a b").mkdir()
    archive = tmp_path / "a b" / 'c"d.jsa'
    archive.touch()
    option = archive_options(archive)[0]
    assert option == f'"-XX:SharedArchiveFile={tmp_path}/a b/c\\"d.jsa"'


def test_options_of_the_user_replace_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "a.jsa"
    archive.touch()
    monkeypatch.setenv(VARIABLE, str(archive))
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    log = f"-Dlog4j2.configurationFile=file:{CONF / 'log4j2.properties'}"
    used = f"-XX:SharedArchiveFile={archive}"
    assert driver_java_options(SparkSettings()).split()[:4] == [
        log, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", used,
    ]  # fmt: skip
    assert os.environ["SPARK_CONF_DIR"] == str(NO_CONF)
    assert not NO_CONF.exists()
    assert driver_java_options(SparkSettings("spark://a:7077")).split()[:2] == [log, used]
    given = {JAVA_OPTIONS: "-Da=b -Dlog4j2.configurationFile=mine"}
    assert driver_java_options(SparkSettings(settings=given)) == given[JAVA_OPTIONS]
    assert used not in driver_java_options(
        SparkSettings(settings={"spark.driver.extraClassPath": "/opt/classes"})
    )
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    options = driver_java_options(SparkSettings())
    assert options == "-XX:+UseSerialGC -XX:TieredStopAtLevel=1", "its log4j2.properties stands"


def test_an_archive_is_lacked_where_spark_would_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "a.jsa"))
    assert lacks_class_archive(SparkSettings())
    assert not lacks_class_archive(SparkSettings(settings={JAVA_OPTIONS: "-Da=b"}))
    assert not lacks_class_archive(
        SparkSettings(settings={"spark.driver.extraClassPath": "/opt/classes"})
    )
    (tmp_path / "a.jsa").touch()
    assert not lacks_class_archive(SparkSettings())
    monkeypatch.setenv(VARIABLE, OFF)
    assert not lacks_class_archive(SparkSettings())
    monkeypatch.setenv(VARIABLE, str(tmp_path / "b.jsa"))
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    assert not lacks_class_archive(SparkSettings())


def test_the_oldest_archives_are_removed(tmp_path: Path) -> None:
    for number in range(6):
        path = tmp_path / f"spark-classes-{number}.jsa"
        path.touch()
        os.utime(path, (number, number))
    other = tmp_path / "other.jsa"
    other.touch()
    remove_oldest(tmp_path / "spark-classes-0.jsa")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["other.jsa", *(f"spark-classes-{n}.jsa" for n in (0, 4, 5))]
    assert len(left) - 1 == MOST_ARCHIVES
