"""What kafka-verifiable-producer and -consumer have in common: events as lines of JSON."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import Any

from kclient.cli.kafka_tools.arguments import Arguments
from kclient.cli.kafka_tools.json_files import compact
from kclient.cli.kafka_tools.tool import UsageError


def print_event(name: str, **fields: Any) -> None:
    """Print an event with the time and *fields*."""
    event = {"timestamp": time.time_ns() // 1_000_000, "name": name, **fields}
    print(compact(event), flush=True)


def add_connection(parser: Arguments) -> None:
    """Add the two names of the option with the bootstrap servers."""
    connection = parser.add_mutually_exclusive_group()
    connection.add_argument("--bootstrap-server", help="The brokers to connect to; required.")
    connection.add_argument("--broker-list", help="The same as --bootstrap-server.")


def servers_of(given: Namespace) -> str:
    """Return the bootstrap servers; raise UsageError without them."""
    servers = given.bootstrap_server or given.broker_list
    if servers is None:
        raise UsageError("one of the arguments --bootstrap-server --broker-list is required")
    return str(servers)
