"""The producer: partitioner, accumulator and sequencer decide; the sender performs."""
