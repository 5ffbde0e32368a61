"""Packaging entry point. setup.cfg declares everything but the modules that are compiled.

`COMPILED` are typed modules that mypyc compiles as they stand, for loops over records. Without mypyc or a C compiler
the same sources are interpreted: slower, with the same results. tools/compile.py compiles them in this tree, where
Python then prefers the compiled module to its source.
"""

import os
import shutil
import sys

from setuptools import setup

COMPILED = ("kclient/wire/record_cursor.py",)


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
    extensions = mypycify(list(COMPILED), opt_level="3", debug_level="0")
    for each in extensions:
        each.optional = True
    return extensions


setup(ext_modules=compiled_modules())
