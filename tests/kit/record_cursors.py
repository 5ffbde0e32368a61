"""The module `kclient.wire.record_cursor` as brokers run it, and from its source where that is compiled."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from kclient.wire import record_cursor


def interpreted() -> ModuleType:
    """The module from its source."""
    if not record_cursor.IS_COMPILED:
        return record_cursor
    source = Path(record_cursor.__file__).with_name("record_cursor.py")
    spec = importlib.util.spec_from_file_location("record_cursor_interpreted", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BOTH = [interpreted(), *([record_cursor] if record_cursor.IS_COMPILED else [])]
"""Interpreted, and compiled where it is."""
