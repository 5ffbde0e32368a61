"""Work in a process that is killed before one of its renames, as a machine that loses power stops between two files."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing import get_context


def killed(work: Callable[[], object], at: int) -> bool:
    """Do *work*, which is pickled, in a process that is killed before its rename number *at*; return whether it was.

    The process is forked from a server that has one thread. A process that is forked from the test has none of its
    threads (the reactor, Spark, Arrow) and can wait for ever for a lock that one of them held.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__, "spark_jobs.report.files"])
    process = context.Process(target=_work_until_killed, args=(work, at))
    process.start()
    process.join(60)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError("the process did not end within 60 s")
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def in_turn(*works: Callable[[], object]) -> None:
    """Do each of *works*, as one work that can be pickled."""
    for work in works:
        work()


def _work_until_killed(work: Callable[[], object], at: int) -> None:
    left = itertools.count(at, -1)

    def kill(event: str, _: tuple[object, ...]) -> None:
        if event == "os.rename" and next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)
    work()
