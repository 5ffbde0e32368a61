"""The daemon that Spark's Python workers are forked from: which pyspark they have."""

from __future__ import annotations

from pathlib import Path

from spark_jobs.worker_daemon import without_archives

SITE = "/venv/lib/python3.11/site-packages"
INSTALLED = f"{SITE}/pyspark/__init__.py"
ARCHIVES = [
    f"{SITE}/pyspark/python/lib/pyspark.zip",
    f"{SITE}/pyspark/python/lib/py4j-0.10.9.9-src.zip",
]
OTHERS = ["", "/jobs/more.zip", f"{SITE}/pyspark/jars/spark-core.jar", "/usr/lib/python3.11", SITE]


def test_the_installed_pyspark_is_imported_instead_of_its_archive() -> None:
    assert without_archives([*ARCHIVES, *OTHERS], INSTALLED) == OTHERS


def test_the_archive_of_another_spark_stays() -> None:
    path = [
        "/opt/spark/python/lib/pyspark.zip",
        "/opt/spark/python/lib/py4j-0.10.9.9-src.zip",
        *OTHERS,
    ]
    assert without_archives(path, INSTALLED) == path


def test_without_an_installed_pyspark_the_archive_stays() -> None:
    assert without_archives([*ARCHIVES, *OTHERS], None) == [*ARCHIVES, *OTHERS]


def test_the_archives_are_where_pyspark_is_installed() -> None:
    import pyspark

    folder = Path(pyspark.__file__).parent / "python" / "lib"
    assert len(list(folder.glob("*.zip"))) == 2
    paths = list(map(str, folder.glob("*.zip")))
    assert without_archives(paths, pyspark.__file__) == []
