"""`kclient info`: brokers, controller and topics."""

from __future__ import annotations

from typing import Any

import click

from kclient.cli.commands import with_settings
from kclient.cli.help import Command
from kclient.cli.output import show
from kclient.cli.run import run
from kclient.cli.settings import Settings, admin_client

_TOPIC_COLUMNS = ("topic", "partitions", "leaderless", "under_replicated")


@click.command(cls=Command, examples=("kclient info", "kclient info -B -J"))
@click.option("-B", "only_brokers", is_flag=True, help="Show only the brokers.")
@click.option("-i", "--internal", is_flag=True, help="Include internal topics.")
@with_settings
def info(settings: Settings, only_brokers: bool, internal: bool) -> None:
    """Show the cluster: its id, brokers (the controller marked *), topics.

    CSV is one table: the topics, with -B the brokers.
    """

    async def main(reactor: Any) -> None:
        async with admin_client(settings, reactor) as admin:
            cluster = await admin.describe_cluster()
            topics = {} if only_brokers else await admin.describe_topics(internal=internal)
        brokers = [
            {
                "id": b.node_id,
                "controller": b.node_id == cluster.controller_id,
                "host": b.host,
                "port": b.port,
                "rack": b.rack,
            }
            for b in sorted(cluster.brokers.values(), key=lambda b: b.node_id)
        ]
        rows = [
            {
                "topic": name,
                "partitions": len(each.partitions),
                "leaderless": sum(p.leader < 0 for p in each.partitions.values()),
                "under_replicated": sum(
                    len(p.isr) < len(p.replicas) for p in each.partitions.values()
                ),
            }
            for name, each in sorted(topics.items())
        ]
        if settings.format == "csv":
            if only_brokers:
                show(brokers, ("id", "controller", "host", "port", "rack"), settings.format)
            else:
                show(rows, _TOPIC_COLUMNS, settings.format)
            return
        if not settings.is_text:
            show(
                [{"cluster_id": cluster.cluster_id, "brokers": brokers, "topics": rows}],
                ("cluster_id", "brokers", "topics"),
                settings.format,
            )
            return
        click.echo(f"CLUSTER  {cluster.cluster_id}")
        marked = [{**b, "id": f"{b['id']}{'*' * b['controller']}"} for b in brokers]
        show(marked, ("id", "host", "port", "rack"), settings.format)
        if not only_brokers:
            click.echo("")
            show(rows, _TOPIC_COLUMNS, settings.format)

    run(main)
