"""Every public class has an example in its docstring; those of doctest are executed here, the others on a cluster.

tests/integration/test_examples.py executes the programs.
"""

from __future__ import annotations

import doctest
import sys

import pytest

from tests.kit.examples import PUBLIC, programs


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_class_has_an_example_that_is_right(name: str) -> None:
    member = PUBLIC[name]
    space = dict(vars(sys.modules[member.__module__]))
    (found,) = doctest.DocTestFinder(recurse=False).find(member, name, globs=space)
    assert found.examples or programs(member), f"{name}: no example"
    printed: list[str] = []
    results = doctest.DocTestRunner().run(found, out=printed.append)
    assert not results.failed, "".join(printed)
