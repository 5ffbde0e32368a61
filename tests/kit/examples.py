"""The examples in docstrings of public classes: which there are, and what of them is a program."""

from __future__ import annotations

import ast
import inspect
from types import ModuleType

import kclient
from kclient import aio, tx

PUBLIC: dict[str, type] = {
    f"{module.__name__}.{name}": member
    for module in (kclient, aio, tx)
    for name in module.__all__
    if inspect.isclass(member := getattr(module, name))
}
"""Every public class by its name."""


def programs(member: type | ModuleType) -> list[str]:
    """Return the paragraphs of a docstring that are programs, without those of doctest."""
    found = []
    for paragraph in (inspect.getdoc(member) or "").split("\n\n")[1:]:
        text = inspect.cleandoc("\n" + paragraph)
        if text.startswith(">>>"):
            continue
        try:
            tree = compile(text, "<example>", "exec", ast.PyCF_ONLY_AST | FLAGS)
        except SyntaxError:
            continue
        if any(not _is_name(each) for each in tree.body):
            found.append(text)
    return found


def _is_name(statement: ast.stmt) -> bool:
    """Return whether a line is a word or two of prose."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Name)


FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
"""How examples are compiled: those of asyncio and of Twisted await outside of a function."""
