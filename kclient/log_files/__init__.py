"""Kafka's files of a log directory, read without a broker: segments, indexes, snapshots, checkpoints."""
