"""Consumers: assignment by hand or by group, fetch positions, membership."""
