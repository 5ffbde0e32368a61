"""No module of the packages imports itself through others: imports in functions and for type checking count, too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("kbroker", "kclient", "mirrormaker", "spark_jobs")


def modules(root: Path) -> dict[str, Path]:
    """Return the modules below *root* by their dotted names."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
    }


def imported(source: str) -> Iterator[tuple[str, str]]:
    """Yield what *source* imports, wherever it does: module, and the name from it or ""."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)


def cycle(root: Path) -> list[str] | None:
    """Return a cycle of modules below *root*, None without one."""
    known = modules(root)
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        found = imported(path.read_text())
        targets = {
            full if (full := f"{module}.{item}") in known else module for module, item in found
        }
        graph[name] = (targets & known.keys()) - {name}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


def test_no_module_imports_itself_through_others():
    assert cycle(ROOT) is None


@pytest.mark.parametrize(
    "back",
    [
        "from kbroker import a",
        "def later():\n    from kbroker.a import f\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import kbroker.a\n",
    ],
)
def test_a_cycle_is_found_in_whatever_form_it_is_imported(tmp_path, back):
    package = tmp_path / "kbroker"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("from kbroker.b import g\n")
    (package / "b.py").write_text(back)
    assert cycle(tmp_path) == ["kbroker.a", "kbroker.b", "kbroker.a"] or cycle(tmp_path) == [
        "kbroker.b",
        "kbroker.a",
        "kbroker.b",
    ]
