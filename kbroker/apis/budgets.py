"""The budget of a request: the bytes and the elements that it may have (docs/design/large-requests.md).

A request uses the reactor's time before anything is known about its sender. So `api_specs` gives each API a budget. It
is what an honest client of a cluster with 10,000 topics and partitions may need, with room. It bounds the decoding to
about 50 ms. Elements are the values of all arrays, and the tagged fields (`kclient.wire.codec`); in Produce and Fetch,
which have their own codecs, topics and partitions. Bytes are those of the whole request. `socket.request.max.bytes`
holds besides.

A request above its budget is not decoded further. It gets INVALID_REQUEST where the response has an error code for the
whole, with a message that names the limit where there is one. Else the connection is closed with one log line.

A request of more than `at_once` bytes is decoded in a turn of its own (`common/turns.py`).

Differs from Kafka: there only `socket.request.max.bytes` limits a request (100 MiB).
"""

from __future__ import annotations

from typing import Final, NamedTuple

KIB: Final = 1024
MIB: Final = 1024 * KIB
UNBOUNDED: Final = 1 << 31
"""No limit but that of every frame."""

FEW: Final = 100
MANY: Final = 20_000
"""10,000 partitions of as many topics."""


class RequestBudget(NamedTuple):
    """The limits of one request; *max_bytes* is at least *at_once*."""

    max_bytes: int
    max_elements: int
    at_once: int = 4 * KIB
    """Bytes up to which a request is decoded in the turn in which it arrived."""
    answers_in_steps: bool = False
    """Whether a small request may have an answer that takes several turns to encode; that of a large one always may."""
