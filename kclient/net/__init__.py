"""Sockets of the client: one connection per broker, and the cluster that routes between them."""
