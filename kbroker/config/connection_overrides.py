"""The value of max.connections.per.ip.overrides: address:count, comma separated."""

from __future__ import annotations

from kbroker.common.ip_address import plain_address

NAME = "max.connections.per.ip.overrides"


def parse_connection_overrides(text: str) -> tuple[dict[str, int], list[str]]:
    """Return the connections that each address may have, and what is wrong.

    >>> parse_connection_overrides("127.0.0.1:5, [::1]:7")
    ({'127.0.0.1': 5, '::1': 7}, [])
    """
    found: dict[str, int] = {}
    problems = []
    for item in filter(None, map(str.strip, text.split(","))):
        host, _, count = item.rpartition(":")
        try:
            address = plain_address(host.removeprefix("[").removesuffix("]"))
        except ValueError:
            problems.append(f"{NAME}: {item!r} is not address:count; names are not resolved")
            continue
        if not count.isdecimal():
            problems.append(f"{NAME}: {count!r} of {item!r} is not a number of connections")
        found[address] = int(count) if count.isdecimal() else 0
    return found, problems
