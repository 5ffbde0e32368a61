"""The replica manager: partitions of this broker as leader or follower, fetchers, delayed requests, ISR changes."""
