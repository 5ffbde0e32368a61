"""Spark jobs that prove that a mirror holds the records of its source."""
