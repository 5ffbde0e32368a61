"""What several parts of the broker share: work in turns of the reactor, topic partitions, log-directory integrity."""
