"""Packaging entry point. setup.cfg declares everything but the modules that are compiled.

`COMPILED` are typed modules that mypyc compiles as they stand, for work on every record. They are one group: a call
from one to another is a C call, and their code is one library beside thin modules. Without mypyc or a C compiler, or
with KBROKER_PURE_PYTHON=1, the same sources are interpreted: slower, with the same results. tools/compile.py compiles
them in this tree, where Python then prefers the compiled module to its source. `kclient --version` shows which runs.
"""

import os
import shutil
import sys

from setuptools import setup

COMPILED = (
    "kclient/producer/accumulator.py",
    "kclient/producer/append.py",
    "kclient/producer/batch.py",
    "kclient/producer/columns.py",
    "kclient/producer/partitioner.py",
    "kclient/producer/record_serializer.py",
    "kclient/producer/topics.py",
    "kclient/wire/record_cursor.py",
    "kclient/wire/record_places.py",
    "kclient/wire/record_reader.py",
    "kclient/wire/record_writer.py",
)

# Their library is in the package: an editable installation finds nothing beside the packages.
GROUP = "kclient.compiled"


def compiled_modules():
    """Return the extension modules, or none where they cannot be built."""
    if os.environ.get("KBROKER_PURE_PYTHON") or not {"build_ext", "bdist_wheel"} & set(sys.argv):
        return []
    if not (shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")):
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        return []
    extensions = mypycify(list(COMPILED), opt_level="3", debug_level="0", group_name=GROUP)
    for each in extensions:
        each.optional = True
    return extensions


setup(ext_modules=compiled_modules())
