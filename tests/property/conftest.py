"""Property tests run without a reactor.

pytest-twisted wraps a hypothesis test so that every example takes a turn of the reactor, and wraps
the cases of a parametrised one into each other, which fails. Nothing here is asynchronous.
"""

from typing import Any

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    """Call hypothesis tests directly; leave the others to the plugins."""
    if not hasattr(pyfuncitem.obj, "hypothesis"):
        return None
    arguments: dict[str, Any] = {
        name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames
    }
    pyfuncitem.obj(**arguments)
    return True
