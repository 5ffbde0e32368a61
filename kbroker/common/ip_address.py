"""IP addresses as limits, logs and the addresses of brokers name them: an IPv4 address in IPv6 is that IPv4 address.

A listener at ``[::]`` has IPv4 clients, too. The kernel gives their addresses as ``::ffff:192.0.2.1``.
"""

from __future__ import annotations

import ipaddress


def plain_address(text: str) -> str:
    """Return the address *text* in its shortest form, and as IPv4 if it is one in IPv6. Raise ValueError if it is none.

    >>> plain_address("::ffff:192.0.2.1"), plain_address("0:0::1"), plain_address("192.0.2.1")
    ('192.0.2.1', '::1', '192.0.2.1')
    """
    address = ipaddress.ip_address(text)
    return str(getattr(address, "ipv4_mapped", None) or address)
