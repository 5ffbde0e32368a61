"""Brokers for tests: processes that a test starts, kills and pauses, and a proxy that cuts their connections."""
