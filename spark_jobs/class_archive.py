"""The archive of the Java classes of Spark's driver, with which a run starts in half of the processor time (JEP 350).

Half of Spark's start is to read, check and link some ten thousand classes. `kaudit class-archive` runs the self-test
once, with a JVM that writes the classes that it loaded to a file. The JVMs of later runs map that file. They compare it
with their Java, options and jars themselves, and do without one that does not fit. With a damaged one they abort.

The file has 160 MB, below XDG_CACHE_HOME or ~/.cache, one for each Java and PySpark. KAUDIT_CLASS_ARCHIVE names another
file, or is `off`. It is not written by an ordinary run. That run would take a third longer, and its JVM would compute
for as long again after it.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

VARIABLE = "KAUDIT_CLASS_ARCHIVE"
OFF = "off"
MOST_ARCHIVES = 3
"""Archives in one directory; the oldest are removed first."""

OTHER_CLASS_PATHS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH", "SPARK_CLASSPATH")
"""Environment variables that put directories on the class path: with those, no JVM that writes an archive starts."""

SHARED_ARCHIVE = "-XX:SharedArchiveFile="
_QUIET = "-Xlog:cds*=off"
"""A JVM prints which classes it leaves out of the archive, and that an archive does not fit."""


class NoClassArchive(Exception):
    """There is no archive here; the text names the cause."""


def archive_options(archive: Path) -> list[str]:
    """Return the JVM's options that use *archive*; none if it does not exist."""
    return [_quoted(f"{SHARED_ARCHIVE}{archive}"), _QUIET] if archive.exists() else []


def writing_options(archive: Path) -> list[str]:
    """Return the options of a JVM that writes *archive* when it ends."""
    return [_quoted(f"-XX:ArchiveClassesAtExit={archive}"), _QUIET]


def _quoted(option: str) -> str:
    """Return *option* as Spark splits options."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"' if set(option) & set(" \t'\"\\") else option


def _is_complete(archive: Path) -> bool:
    """Whether *archive* has its head, which the JVM writes last."""
    try:
        with archive.open("rb") as stream:
            return any(stream.read(4))
    except OSError:
        return False


def archive_file(environment: Mapping[str, str]) -> Path:
    """Return the archive for Spark as *environment* starts it; NoClassArchive if there is to be none."""
    import pyspark

    named = environment.get(VARIABLE, "")
    spark = Path(pyspark.__file__).parent
    if named == OFF:
        raise NoClassArchive(f"{VARIABLE} is {OFF}")
    if Path(environment.get("SPARK_HOME") or spark).resolve() != spark.resolve():
        raise NoClassArchive(f"SPARK_HOME is not the installed PySpark, {spark}")
    for name in OTHER_CLASS_PATHS:
        if environment.get(name):
            raise NoClassArchive(f"{name} is set: an archive allows no directory on the class path")
    java = _java(environment)
    if named:
        return Path(named).absolute()
    facts = [str(java), str(java.stat().st_mtime_ns), pyspark.__version__]
    facts += [str(spark / "jars"), str((spark / "jars").stat().st_mtime_ns)]
    key = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "kbroker" / f"spark-classes-{key}.jsa"


def _java(environment: Mapping[str, str]) -> Path:
    """Return the program that Spark starts."""
    home = environment.get("JAVA_HOME")
    found = f"{home}/bin/java" if home else shutil.which("java", path=environment.get("PATH"))
    if found is None or not Path(found).exists():
        raise NoClassArchive(
            f"there is no Java at {found}" if found else "there is no Java on the PATH"
        )
    return Path(found).resolve()


def remove_oldest(archive: Path) -> None:
    """Keep *archive*, and the newest others of its directory, `MOST_ARCHIVES` together."""
    others = [path for path in archive.parent.glob("spark-classes-*.jsa") if path != archive]
    with suppress(OSError):
        others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in others[MOST_ARCHIVES - 1 :]:
            path.unlink()
