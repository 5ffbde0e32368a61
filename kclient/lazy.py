"""Modules that are imported when they are first used: a command of the command line pays for what it needs.

A type checker, and import-linter, see a plain import::

    if TYPE_CHECKING:
        from kclient.admin import quotas
    else:
        quotas = LazyModule("kclient.admin.quotas")
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LazyModule:
    """Stands for the module *name*; what was used of it once is found as fast as in a module."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        found = getattr(import_module(self.__name__), name)
        self.__dict__[name] = found
        return found
