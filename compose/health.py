"""Exit with 0 if the broker at HOST:PORT answers Metadata with live brokers and a controller, otherwise with 1.

The health check of the compose files: the standard library alone, 20 ms of processor time. A connection proves less:
the kernel accepts it for a broker that is stopped.
"""

import socket
import struct
import sys

TIMEOUT_SECONDS = 4
METADATA, VERSION = 3, 1


# Client id "health"; of version 1, no topics asks for the brokers alone.
REQUEST = struct.pack(">hhih6si", METADATA, VERSION, 1, 6, b"health", 0)


def problem_in(response: bytes) -> str:
    """Return what a response to `REQUEST` lacks, or an empty string."""
    (brokers,) = struct.unpack_from(">i", response, 4)
    position = 8
    for _ in range(brokers):  # node id, host, port, rack
        (length,) = struct.unpack_from(">h", response, position + 4)
        position += 10 + length
        (length,) = struct.unpack_from(">h", response, position)
        position += 2 + max(length, 0)
    (controller,) = struct.unpack_from(">i", response, position)
    if not brokers:
        return "the broker knows no live broker: it has no UpdateMetadata yet"
    return "" if controller >= 0 else "the broker knows no controller"


def ask(host: str, port: int) -> bytes:
    """Send `REQUEST` and return the response. Raises OSError or struct.error if there is none in 4 s."""
    with socket.create_connection((host, port), TIMEOUT_SECONDS) as connection:
        connection.sendall(struct.pack(">i", len(REQUEST)) + REQUEST)
        with connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            return stream.read(size)


if __name__ == "__main__":
    address = sys.argv[1]
    host, _, port = address.rpartition(":")
    try:
        problem = problem_in(ask(host, int(port)))
    except (OSError, struct.error) as error:
        problem = f"no response: {error}"
    if problem:
        sys.exit(f"{address}: {problem}")
