"""Coordinators: of consumer groups, of transactions, and of producer ids."""
