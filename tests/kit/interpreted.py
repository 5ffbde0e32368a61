"""A plugin of pytest (`-p tests.kit.interpreted`): what is compiled runs from its sources instead."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

from kclient.build import MODULES

_ROOT = Path(__file__).parents[2]


class _SourceFinder:
    """Finds the modules that the package compiles, and only their sources."""

    @staticmethod
    def find_spec(
        name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in MODULES:
            return None
        source = str(_ROOT / f"{name.replace('.', '/')}.py")
        return importlib.util.spec_from_loader(name, SourceFileLoader(name, source))


early = sorted(set(MODULES) & set(sys.modules))
if early:
    raise RuntimeError(f"imported before this plugin: {', '.join(early)}")
sys.meta_path.insert(0, _SourceFinder)
