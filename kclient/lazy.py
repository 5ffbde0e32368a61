"""Modules that are imported when they are first used: a command of the command line pays for what it needs.

A type checker, and import-linter, see a plain import::

    if TYPE_CHECKING:
        from kclient.admin import quotas
    else:
        quotas = LazyModule("kclient.admin.quotas")
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class LazyModule:
    """Stands for the module *name*; what was used of it once is found as fast as in a module."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        found = getattr(import_module(self.__name__), name)
        self.__dict__[name] = found
        return found


def defer_import(name: str) -> None:
    """Have the module *name*, of a package, be imported when something of it is used, also where it is imported.

    For a module of the standard library that a package imports and a command does not need.
    """
    if name not in sys.modules:
        package, _, child = name.rpartition(".")
        sys.modules[name] = stand_in = _StandIn(name)
        setattr(import_module(package), child, stand_in)


class _StandIn(ModuleType):
    """Is in `sys.modules` until the module is imported; a variable that still has it finds all of the module."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)
