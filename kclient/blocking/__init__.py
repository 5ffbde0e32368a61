"""The blocking API: the same clients for threads, in scripts, notebooks and Spark executors.

One reactor runs in one daemon thread of the process. The first client starts it, and starts another one after a fork.
Calls wait for it up to their timeouts, or until Ctrl-C. All classes are thread-safe, except that only one thread at a
time may poll a consumer.
"""

from kclient.blocking.admin import AdminClient
from kclient.blocking.consumer import Consumer
from kclient.blocking.producer import Producer

__all__ = ["AdminClient", "Consumer", "Producer"]
