"""The value of `listeners` and `advertised.listeners`: NAME://host:port, comma separated.

Hosts may be names, IPv4 or bracketed IPv6 addresses, or empty: every address of the machine. An advertised address must
be one that others can dial, so the wildcard is refused there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kbroker.common.endpoint import Endpoint
from kclient.host_names import is_host

_ENDPOINT = re.compile(
    r"([A-Za-z0-9._-]{1,100})://(\[[0-9A-Fa-f:.%a-z]{0,64}\]|[^:/\[\]\s]{0,253}):([0-9]{1,6})"
)
WILDCARDS = ("", "0.0.0.0", "::")
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SUPPORTED_PROTOCOLS = ("PLAINTEXT",)


def parse_protocol_map(text: str) -> tuple[dict[str, str], list[str]]:
    """Parse listener.security.protocol.map: (listener name -> protocol, problems)."""
    protocols: dict[str, str] = {}
    problems = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = item.partition(":")
        protocol = protocol.strip().upper()
        if not colon or protocol not in PROTOCOLS:
            problems.append(
                f"listener.security.protocol.map: {item!r} is not NAME:PROTOCOL with a protocol of "
                + ", ".join(PROTOCOLS)
            )
            continue
        protocols[name.strip().upper()] = protocol
    return protocols, problems


def parse_endpoints(
    key: str, text: str, protocols: Mapping[str, str]
) -> tuple[tuple[Endpoint, ...], list[str]]:
    """Parse *text*, the value of *key*: (endpoints, problems). Names and ports occur once each."""
    endpoints: list[Endpoint] = []
    problems: list[str] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        match = _ENDPOINT.fullmatch(item)
        if match is None:
            problems.append(f"{key}: {item!r} is not NAME://host:port")
            continue
        name, host, port = match[1].upper(), match[2].strip("[]"), int(match[3])
        if port > 65535:
            problems.append(f"{key}: {item!r}: ports end at 65535")
        elif name not in protocols:
            problems.append(
                f"{key}: listener {name} has no protocol: add {name}:PLAINTEXT to"
                " listener.security.protocol.map"
            )
        elif any(other.listener == name for other in endpoints):
            problems.append(f"{key}: listener {name} is named twice")
        elif port and any(other.port == port and _overlap(other.host, host) for other in endpoints):
            problems.append(f"{key}: port {port} is used twice")
        elif host and not is_host(host):
            problems.append(f"{key}: {item!r} has no valid host name")
        else:
            endpoints.append(Endpoint(name, protocols[name], host, port))
    return tuple(endpoints), problems


def _overlap(one: str, other: str) -> bool:
    """Whether two hosts cannot both listen on one port."""
    return one == other or one in WILDCARDS or other in WILDCARDS
