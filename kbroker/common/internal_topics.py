"""The topics that belong to Kafka itself: clients cannot write to them or trim them."""

from __future__ import annotations

from typing import Final

OFFSETS_TOPIC: Final = "__consumer_offsets"
"""The leaders of its partitions are the group coordinators. Its log stays empty: ZooKeeper stores the groups."""

TRANSACTIONS_TOPIC: Final = "__transaction_state"
"""The leaders of its partitions will be the transaction coordinators."""

INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
