"""CRC-32C, the checksum of batches and snapshots: the C function of the package crc32c.

The package reads its own version and defines a command line when it is imported: 14 ms, a tenth of a short command. So
its C module is loaded by its file.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crc32c import crc32c
else:

    def _function() -> Any:
        package = find_spec("crc32c")
        places = None if package is None else package.submodule_search_locations
        spec = None if places is None else PathFinder.find_spec("crc32c._crc32c", places)
        if spec is None or spec.loader is None:
            from crc32c import crc32c as function

            return function
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.crc32c

    crc32c = _function()

__all__ = ["crc32c"]
