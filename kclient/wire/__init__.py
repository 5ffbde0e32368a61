"""Bytes <-> values of the Kafka protocol. This package does no I/O."""
