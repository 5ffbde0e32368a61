"""The checker: reads what clients did and saw, and decides whether Kafka's promises were kept.

Theory of operation
===================
Clients write down a history (`history`): every operation with its process, its begin and its end. A value is written
once, to one key (a topic-partition), so that every read names its write. From the history follows what each key's log
must have been (`derived`); the rules (`values`, `polls`, `sends`, `groups`, `cycles`) look for what no log explains
that keeps the promises, and name it as Jepsen's test of Kafka does. `verdict` gathers.

What a client does not know is kept apart from what failed (`outcomes`): a record without an answer may be in the
log or not, and either is right.

Keys that transactions write to have rules of their own (`transactions`, `visibility`, `decisions`): what readers of
each isolation level see (KIP-98). An offset has one value, and a value one offset, in all keys.

Everything is O(events), pure, and knows nothing of brokers. ``python -m tests.checker HISTORY.jsonl`` prints the
verdict; exit code 0: clean, 1: a promise was broken, 2: too little was read to decide.
"""

from tests.checker.history import Event, HistoryError, read_history
from tests.checker.verdict import Anomaly, Verdict, check

__all__ = ["Anomaly", "Event", "HistoryError", "Verdict", "check", "read_history"]
