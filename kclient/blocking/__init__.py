"""The blocking face: the same clients for plain threads: scripts, notebooks, Spark executors.

One reactor runs in one daemon thread of the process, started by the first client and started anew
after a fork. Calls wait for it, bounded by their timeouts, and end at Ctrl-C. All classes may be
used from several threads, except that one thread at a time polls a consumer.
"""

from kclient.blocking.admin import AdminClient
from kclient.blocking.consumer import Consumer
from kclient.blocking.producer import Producer

__all__ = ["AdminClient", "Consumer", "Producer"]
