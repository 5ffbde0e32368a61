"""The socket server: acceptor, connections, transport, request memory, connections to other brokers.

Knows no API: a `Service` handles the frames.
"""
