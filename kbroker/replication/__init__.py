"""Replication as machines: a partition's role, its leader's high watermark, requests that wait. No I/O."""
