"""What the versions show of the build: which modules are compiled."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
from click.testing import CliRunner

from kbroker.cli import kbroker
from kclient import build
from kclient.cli.commands import kclient

ROOT = Path(build.__file__).parents[1]
TESTS = (
    "tests/unit/client/test_accumulator.py",
    "tests/unit/client/test_arguments.py",
    "tests/unit/client/test_build.py::test_the_version_shows_which_build_runs",
    "tests/unit/client/test_consumer_records.py",
    "tests/unit/client/test_partitioner.py",
    "tests/unit/client/test_producer.py",
    "tests/unit/client/test_producer_columns.py",
    "tests/unit/client/test_transactional_producer.py",
    "tests/unit/log/test_log_validator.py",
    "tests/unit/log/test_record_filter.py",
    "tests/unit/wire/test_record_cursor.py",
    "tests/unit/wire/test_record_search.py",
    "tests/unit/wire/test_records.py",
    "tests/unit/wire/test_records_and_other_clients.py",
    "tests/property/test_consumer_columns.py",
    "tests/property/test_producer_columns.py",
    "tests/property/test_record_arrays_properties.py",
    "tests/property/test_record_batches.py",
    "tests/property/test_record_validation.py",
    "tests/property/test_sender.py",
    "tests/property/test_source_rows_properties.py",
)


def test_the_modules_are_those_that_the_package_compiles() -> None:
    tree = ast.parse((ROOT / "setup.py").read_text())
    (listed,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "COMPILED"
    ]
    assert [name.removesuffix(".py").replace("/", ".") for name in listed] == list(build.MODULES)


@pytest.mark.parametrize("name", build.MODULES)
def test_a_compiled_module_is_not_older_than_its_source(name: str) -> None:
    """Python prefers the compiled module: `make` builds it again after each change of the source."""
    # Not by find_spec: of a module that a compiled one has imported, mypyc states another directory.
    package = importlib.import_module(name.rpartition(".")[0])
    found = PathFinder.find_spec(name, package.__path__)
    assert found is not None
    assert found.origin is not None
    used = Path(found.origin)
    source = used.with_name(f"{used.name.partition('.')[0]}.py")
    assert used.stat().st_mtime >= source.stat().st_mtime


@pytest.mark.parametrize("command", [kclient, kbroker], ids=["kclient", "kbroker"])
def test_the_version_shows_which_build_runs(command: object) -> None:
    printed = CliRunner().invoke(command, ["--version"]).output
    files = [importlib.import_module(name).__file__ or "" for name in build.MODULES]
    compiled = [not each.endswith(".py") for each in files]
    expected = (
        "compiled)" if all(compiled) else "compiled in part" if any(compiled) else "interpreted"
    )
    assert f"(record codec: {expected}" in printed


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_is_compiled_passes_its_tests_interpreted_too() -> None:
    """Each worker of pytest runs one build; the other one runs here, in a process of its own."""
    if build.description() != "compiled":
        pytest.skip("this build is interpreted: the tests themselves run it")
    command = [sys.executable, "-m", "pytest", "-p", "tests.kit.interpreted", *TESTS]
    options = ["-q", "-x", "-n", "0", "-p", "no:randomly", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_the_compiled_modules_are_found_from_any_directory(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", f"import {', '.join(build.MODULES)}"]
    subprocess.run(command, cwd=tmp_path, check=True)
