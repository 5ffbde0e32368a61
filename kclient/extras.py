"""The extras of the distribution: what to install for a command with missing modules."""

from __future__ import annotations

OURS = ("kbroker", "kclient", "mirrormaker", "spark_jobs", "tests")


def what_to_install(problem: ModuleNotFoundError, command: str, extra: str) -> str | None:
    """Return one line for an import that failed, None if the missing module is one of the distribution itself."""
    module = (problem.name or "").partition(".")[0]
    if not module or module in OURS:
        return None
    return f"{command} needs {module}, which is not installed: pip install 'kbroker[{extra}]'"
