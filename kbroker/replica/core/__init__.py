"""Replication as state machines: roles, high watermark, ISR, truncation, fetch sessions, purgatory. No I/O."""
