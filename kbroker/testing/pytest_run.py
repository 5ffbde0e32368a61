"""What all clusters of one pytest run share. The plugin loads this module in every run: it imports nothing."""

from __future__ import annotations

session: tuple[int, str] | None = None
"""The process and the directory of the run, which the plugin sets; None outside of pytest. All clusters of the run, in
all workers of pytest-xdist, use one ZooKeeper server."""
