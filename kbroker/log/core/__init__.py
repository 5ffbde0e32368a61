"""Log compaction as pure functions: what is dirty, the offset map, which records stay. No I/O."""
