"""The broker proof as pure functions."""
