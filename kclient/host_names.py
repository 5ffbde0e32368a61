"""Hosts of addresses: IP literals, and names that a resolver takes."""

from __future__ import annotations

import socket

_LONGEST_LABEL = 63


def is_ip_literal(host: str) -> bool:
    """Return whether *host* is an IPv4 or IPv6 address rather than a name."""
    return _is_literal(socket.AF_INET, host) or _is_literal(socket.AF_INET6, host)


def is_ipv6_literal(host: str) -> bool:
    """Return whether *host* is an IPv6 address, with a zone (`fe80::1%eth0`) or without."""
    address, percent, zone = host.partition("%")
    return _is_literal(socket.AF_INET6, address) and bool(zone) == bool(percent)


def is_host(host: str) -> bool:
    """Return whether *host* is an IP address, or may be a name."""
    return is_ip_literal(host) or is_ipv6_literal(host) or is_host_name(host)


def is_host_name(host: str) -> bool:
    """Return whether *host* may be a name: each part has 1 to 63 characters, as IDNA encodes it.

    The resolver encodes a name in a thread of Twisted. Where that fails, Twisted never gets an answer.
    """
    try:
        encoded = host if host.isascii() else host.encode("idna").decode()
    except UnicodeError:
        return False
    labels = encoded.removesuffix(".").split(".")
    return host.isprintable() and all(0 < len(label) <= _LONGEST_LABEL for label in labels)


def _is_literal(family: int, host: str) -> bool:
    try:
        socket.inet_pton(family, host)
    except (OSError, ValueError):
        return False
    return True
