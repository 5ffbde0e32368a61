"""The daemon that Spark's Python workers are forked from: which pyspark they have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark_jobs.worker_daemon import keep_freed_memory, without_archives

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


FAULTS = """
import resource
from spark_jobs.worker_daemon import keep_freed_memory
{call}
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def arrays():
    return [bytearray(1 << 20) for _ in range(10)]
arrays()
before = faults()
for _ in range(20):
    arrays()
print(faults() - before)
"""


def page_faults(call: str) -> int:
    """Return how many pages the system cleared for ten arrays of a megabyte, made and freed twenty times."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS.format(call=call)],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return int(done.stdout)


def test_memory_that_is_freed_is_used_again() -> None:
    if not keep_freed_memory():
        pytest.skip("the C library is not glibc")
    assert page_faults("") > 10_000
    assert page_faults("keep_freed_memory()") < 1000
