"""The accounting of request memory, without I/O."""
