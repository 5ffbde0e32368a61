"""Searches for wrong verdicts of the audit: seeded faults in encoded logs, judged by a join of its own."""
