"""Build the sdist, the pure wheel and the compiled wheel of this clone: `make dist`.

They are built from the files that git tracks, in a directory of their own: what an earlier build or a test has left is
not part of them. A wheel without one of the tracked files of the packages is an error. The compiled wheel is for this
Python and this kind of machine; without a C compiler there is only the pure one, which runs everywhere.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("kbroker", "kclient", "mirrormaker", "spark_jobs")
PURE = "KBROKER_PURE_PYTHON"

BUILD = "import sys; from setuptools import build_meta as b; b.build_{}(sys.argv[1])"


def tracked():
    """Return the names of the files that git tracks here, without those that were removed."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=False
    )
    if listed.returncode:
        raise SystemExit(f"dist: {ROOT} is no clone: {listed.stderr.strip()}")
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def build(source, kind, out, *, pure=True):
    """Build a kind ("sdist" or "wheel") of *source* into *out*; return its path."""
    environment = {name: value for name, value in os.environ.items() if name != PURE}
    if pure:
        environment[PURE] = "1"
    with tempfile.TemporaryDirectory(prefix="kbroker-dist-") as made:
        done = subprocess.run(
            [sys.executable, "-c", BUILD.format(kind), made],
            cwd=source, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"dist: the {kind} was not built:\n{done.stdout}{done.stderr}")
        shutil.rmtree(source / "build", ignore_errors=True)
        (built,) = Path(made).iterdir()
        return Path(shutil.copy(built, out))


def check(wheel, names):
    """Fail if the wheel lacks a tracked file of the packages."""
    with zipfile.ZipFile(wheel) as archive:
        missing = set(names) - set(archive.namelist())
    if missing:
        raise SystemExit(f"dist: {wheel.name} lacks {', '.join(sorted(missing))}")


def main():
    """Build what was asked for, and print the paths."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="default: dist")
    options = parser.parse_args()
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise SystemExit(f"dist: {options.out} cannot be made: {problem.strerror}") from None
    names = tracked()
    packaged = [name for name in names if name.split("/")[0] in PACKAGES]
    with tempfile.TemporaryDirectory(prefix="kbroker-dist-") as directory:
        source = Path(directory)
        for name in names:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
        results = [build(source, "wheel", options.out), build(source, "sdist", options.out)]
        compiled = build(source, "wheel", options.out, pure=False)
        if compiled in results:
            print("dist: no compiled wheel: no C compiler, or no mypyc", file=sys.stderr)  # noqa: T201
        else:
            results.append(compiled)
    for each in results:
        if each.suffix == ".whl":
            check(each, packaged)
        print(each)  # noqa: T201


main()
