"""The composition root: one broker is one process with one reactor.

`process` owns what belongs to the process: reactor, signals, exit code, log. `broker` makes the parts of a broker and
knows every concrete class.
"""

from kbroker.app.process import exit_with, run

__all__ = ["exit_with", "run"]
