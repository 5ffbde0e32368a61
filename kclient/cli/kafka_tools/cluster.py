"""kafka-cluster: the id of a cluster."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from kclient.cli.kafka_tools.arguments import ArgparseTool, Arguments
from kclient.cli.kafka_tools.tool import (
    BOOTSTRAP,
    Failure,
    print_error,
    print_message,
    properties_of,
    run_admin,
)

_UNREGISTER_BROKER = 64
"""The key of an API that only clusters with KRaft have."""


def build(parser: Arguments) -> None:
    """Add the commands and their options."""
    commands = parser.add_subparsers(dest="command", required=True)
    cluster_id = commands.add_parser("cluster-id", help="Print the id of a cluster.")
    unregister = commands.add_parser("unregister", help="Unregister a broker (KRaft).")
    for each in (cluster_id, unregister):
        each.add_argument("--bootstrap-server", "-b", help="The brokers to connect to; required.")
        each.add_argument("--bootstrap-controller", "-C", help="Refused: KRaft's controllers.")
        each.add_argument("--config", "-c", help="Properties file of the admin client.")
    unregister.add_argument("--id", "-i", type=int, required=True, help="The broker's id.")


def main(given: Namespace) -> int | None:
    """Run a command."""
    if given.bootstrap_controller is not None:
        return TOOL.print_usage(f"argument --bootstrap-controller/-C is not supported: {_NO_KRAFT}")
    if given.bootstrap_server is None:
        return TOOL.print_usage(
            "one of the arguments --bootstrap-server/-b --bootstrap-controller/-C is required"
        )
    try:
        settings = properties_of(given.config)
    except Failure as problem:
        return print_error(problem)

    async def body(admin: Any) -> int:
        if given.command == "cluster-id":
            found = (await admin.describe_cluster()).cluster_id
            print(
                "No cluster ID found. The Kafka version is probably too old."
                if found is None
                else f"Cluster ID: {found}"
            )
            return 0
        connection = await admin.cluster.any_connection()
        if _UNREGISTER_BROKER in connection.api_versions:
            raise Failure("kclient does not unregister brokers: only clusters with KRaft have that")
        print("The target cluster does not support the broker unregistration API.")
        return 0

    settings = {**settings, BOOTSTRAP: given.bootstrap_server}
    return run_admin(TOOL.print_usage, settings, body, print_message)


_NO_KRAFT = "clusters with ZooKeeper have no KRaft controllers"

TOOL = ArgparseTool(
    "kafka-cluster",
    "kafka-cluster",
    "The Kafka cluster tool.",
    build,
    main,
    differs=(
        f"--bootstrap-controller is refused: {_NO_KRAFT}.",
        "unregister has the line of a cluster with ZooKeeper; on one with KRaft it is refused.",
    ),
)
