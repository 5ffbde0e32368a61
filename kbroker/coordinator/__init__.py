"""Coordinators: of consumer groups, and of producer ids."""
