"""Benchmarks: kbroker and its tools beside Apache Kafka and other clients, interleaved. Not part of the tests."""
