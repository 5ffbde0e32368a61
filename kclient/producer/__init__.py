"""Producing: partitioner, accumulator and sequencer decide; the sender carries it out."""
