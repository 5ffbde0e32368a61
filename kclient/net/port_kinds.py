"""Recognizes what listens on a port by the first bytes of its answers: TLS, HTTP, ZooKeeper, SSH. Pure.

A server may answer a request in another protocol than its own. An HTTP server answers Kafka's bytes with HTTP, and a
TLS server answers HTTP with an alert. So all answers count, in the order of the list here.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable


class PortKind(enum.Enum):
    """What listens on a port; the values appear in messages."""

    TLS = "a TLS port"
    HTTP = "an HTTP port"
    ZOOKEEPER = "a port of ZooKeeper"
    SSH = "an SSH port"
    OTHER = "a port with an unknown protocol"
    SILENT = "a port that sends nothing"


_BEGINNINGS = (
    (b"\x16\x03", PortKind.TLS),
    (b"\x15\x03", PortKind.TLS),
    (b"HTTP/", PortKind.HTTP),
    (b"Zookeeper version", PortKind.ZOOKEEPER),
    (b"srvr is not executed", PortKind.ZOOKEEPER),
    (b"This ZooKeeper instance", PortKind.ZOOKEEPER),
    (b"SSH-", PortKind.SSH),
)


def kind_of(answers: Iterable[bytes]) -> PortKind:
    """Return the kind of server that sent *answers*, each to one request."""
    found = [answer for answer in answers if answer]
    for beginning, kind in _BEGINNINGS:
        if any(answer.startswith(beginning) for answer in found):
            return kind
    return PortKind.OTHER if found else PortKind.SILENT
