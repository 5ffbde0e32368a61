"""Spark jobs that prove a mirror holds what was written."""
