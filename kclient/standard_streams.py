"""The standard streams of a process that its caller started without some of them (`>&-`)."""

from __future__ import annotations

import os
import sys


def open_standard_streams() -> None:
    """Open what the caller has closed, as /dev/null: the next file or connection would get its number.

    That holds for the processes that this one starts, too, such as Spark's JVM: they inherit the streams. Python has
    None for a closed stream, which no `isatty` or `flush` expects.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # It gets the lowest free number.
            os.set_inheritable(opened, True)
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            stream = os.fdopen(
                number, mode, encoding="utf-8", errors="backslashreplace", closefd=False
            )
            setattr(sys, name, stream)
