"""The decorator that informs mypyc about a class; without effect where the class is interpreted.

mypy_extensions has it, and is not required at run time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["mypyc_attr"]

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**_):
        """Return a decorator without effect."""
        return lambda decorated: decorated
