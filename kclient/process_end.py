"""The end of a short process: as `sys.exit`, without taking every module apart, which is a fifth of a short command."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable


def run_and_end(main: Callable[[], object]) -> None:
    """Run *main*, and end the process with the code of its SystemExit, or 0 if it returns.

    Functions of `atexit` run, and the output is flushed. Python ends the process itself if that fails, if another
    thread than a daemon is left, or after any other exception.
    """
    try:
        main()
        code: object = 0
    except SystemExit as ending:
        code = 0 if ending.code is None else ending.code
    others = (each for each in threading.enumerate() if each is not threading.main_thread())
    if not isinstance(code, int) or not all(each.daemon for each in others):
        sys.exit(code)  # type: ignore[arg-type]
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # None if its descriptor was closed at the start
                stream.flush()
    except (OSError, ValueError):
        sys.exit(code)
    os._exit(code & 0xFF)
