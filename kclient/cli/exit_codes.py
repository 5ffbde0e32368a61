"""Exit codes of kclient; 0 is success."""

from __future__ import annotations

FAILED = 1
USAGE = 2
UNREACHABLE = 3
UNHEALTHY = 4
"""The cluster answers, but is not healthy or not as wanted."""
PARTLY_FAILED = 5
TIMED_OUT = 124
INTERRUPTED = 130
"""Ctrl-C."""
