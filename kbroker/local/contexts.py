"""The contexts of local clusters: `kclient` finds a cluster that runs without -b (kclient/contexts.py).

A context is a convenience: a file that cannot be read or written is one line, and the command goes on.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker.local.state import ClusterState, Directory
from kclient.contexts import VARIABLE, Context, Contexts, changing, default_file, load_project
from kclient.errors import ConfigError

Progress = Callable[[str], None]


def add(directory: Directory, cluster: ClusterState, progress: Progress) -> None:
    """Add the context of *cluster*, and print how `kclient` finds the cluster."""
    settings = {"bootstrap.servers": cluster.bootstrap}
    context = Context(cluster.name, settings, str(directory.path))
    after = _change(lambda contexts: contexts.with_local(context), progress)
    if after is None:
        return
    try:
        current = load_project().current or after.current
    except ConfigError as problem:
        progress(str(problem))
        return
    if current == cluster.name:
        progress(f"{cluster.name}: kclient finds it without -b")
    else:
        progress(
            f"{cluster.name}: kclient finds it with {VARIABLE}={cluster.name}; "
            f"its current context is {current}"
        )


def remove(directory: Directory, name: str, progress: Progress) -> None:
    """Remove the context of the cluster *name* in *directory*, if there is one."""
    if default_file().exists():
        _change(lambda contexts: contexts.without_local(name, str(directory.path)), progress)


def _change(change: Callable[[Contexts], Contexts], progress: Progress) -> Contexts | None:
    try:
        with changing(default_file()) as versions:
            versions.append(change(versions[0]))
            return versions[-1]
    except (ConfigError, OSError) as problem:
        progress(f"kclient's contexts are not changed: {problem}")
        return None
