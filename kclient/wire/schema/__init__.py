"""The messages as plain dataclasses, one module per API (generated)."""
