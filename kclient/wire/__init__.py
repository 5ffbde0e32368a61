"""Bytes <-> values of the Kafka protocol. No I/O anywhere in this package."""
