"""Consumers: partition assignment by hand or by group, fetch positions, group membership."""
