"""Measurements: ours beside Apache Kafka and other clients, interleaved in one run. Never part of the tests."""
