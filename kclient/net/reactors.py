"""What a reactor of a client of its own needs, beside Twisted's global reactor."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any


def prepare(reactor: Any) -> None:
    """Give *reactor* a monotonic clock, and daemon threads."""
    # Twisted's clock is the wall clock, which may jump.
    reactor.seconds = time.monotonic
    # Name resolution runs in the reactor's pool; daemon threads do not delay the end of the process.
    reactor.getThreadPool().threadFactory = partial(threading.Thread, daemon=True)
