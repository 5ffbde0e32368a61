"""The module `kclient.wire.record_cursor` as brokers run it, and from its source where that is compiled."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import kclient
from kclient.wire import record_cursor


def interpreted() -> ModuleType:
    """The module from its source."""
    if not record_cursor.IS_COMPILED:
        return record_cursor
    # Not by its own __file__: mypyc sets a wrong one in a module that another compiled one imports first.
    source = Path(kclient.__file__).parent / "wire" / "record_cursor.py"
    spec = importlib.util.spec_from_file_location("record_cursor_interpreted", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BOTH = [interpreted(), *([record_cursor] if record_cursor.IS_COMPILED else [])]
"""Interpreted, and compiled where it is."""
