"""`kclient cluster`: health, brokers, log directories and settings of brokers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import click

from kclient.cli import colour
from kclient.cli.answers import code_for, good_answers
from kclient.cli.cluster_api_versions import api_versions
from kclient.cli.cluster_config import config
from kclient.cli.commands import with_settings
from kclient.cli.elect_leaders import elect_leaders
from kclient.cli.exit_codes import UNHEALTHY
from kclient.cli.help import Group
from kclient.cli.names import TOPIC
from kclient.cli.output import print_error, show
from kclient.cli.run import run
from kclient.cli.settings import Settings, admin_client
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from kclient.admin.health import Health
    from kclient.admin.log_dirs import LogDir
    from kclient.net.metadata import TopicMetadata

_LABELS = {
    "leaderless_partitions": "Leaderless partitions",
    "under_replicated_partitions": "Under-replicated partitions",
    "under_min_isr_partitions": "Partitions under min ISR",
}
_LOOK_S = 0.5
"""Seconds between two checks of `health --watch`."""


@click.group(cls=Group)
def cluster() -> None:
    """Inspect the cluster as a whole."""


@cluster.command(
    "health",
    examples=(
        "kclient cluster health",
        "kclient cluster health -e -m 120",
    ),
)
@click.option("-w", "--watch", is_flag=True, help="Show every change until the timeout of -m.")
@click.option(
    "-e",
    "--exit-when-healthy",
    "patient",
    is_flag=True,
    help="Wait (as -w) until the cluster is healthy.",
)
@with_settings
def health(settings: Settings, watch: bool, patient: bool) -> None:
    """Show whether the cluster is healthy, and its problems; exit code 4 if it is not.

    Problems are: no controller, a broker that is down or does not answer, a failed log directory, a partition that is
    leaderless, under min ISR or under-replicated.
    """

    async def main(reactor: Any) -> int:
        from kclient.net.waiting import sleep

        give_up_at = reactor.seconds() + settings.timeout
        shown: Health | None = None
        async with admin_client(settings, reactor) as admin:
            while True:
                found = await admin.describe_health()
                if found != shown:
                    _show_health(settings, found)
                    shown = found
                if not (watch or patient) or (patient and found.is_healthy):
                    break
                if reactor.seconds() + _LOOK_S > give_up_at:
                    if patient:
                        print_error(f"not healthy after {settings.timeout:g} s")
                    break
                await sleep(reactor, _LOOK_S)
        return 0 if found.is_healthy else UNHEALTHY

    run(main)


def _show_health(settings: Settings, found: Health) -> None:
    lists = {
        "leaderless_partitions": found.leaderless,
        "under_replicated_partitions": found.under_replicated,
        "under_min_isr_partitions": found.under_min_isr,
    }
    if not settings.is_text:
        row = {
            "healthy": found.is_healthy,
            "reasons": found.reasons,
            "controller": found.controller,
            "brokers_expected": list(found.expected),
            "brokers_down": list(found.down),
            "brokers_silent": list(found.silent),
            "offline_log_dirs": {
                str(n): list(paths) for n, paths in found.offline_log_dirs.items()
            },
            **{name: [str(tp) for tp in partitions] for name, partitions in lists.items()},
            "leaderless_isr": {str(tp): list(isr) for tp, isr in found.leaderless_isr.items()},
        }
        flat = tuple(name for name, value in row.items() if not isinstance(value, dict))
        show([row], flat, settings.format)
        return
    lines = [
        ("Healthy", colour.good("yes") if found.is_healthy else colour.bad("no")),
        *(("Reason", colour.warning(reason)) for reason in found.reasons),
        ("Controller", str(found.controller) if found.controller >= 0 else "none"),
        ("Brokers expected", ", ".join(map(str, found.expected))),
        ("Brokers down", ", ".join(map(str, found.down)) or "none"),
    ]
    for name, partitions in lists.items():
        lines.append((_LABELS[name], str(len(partitions))))
        waits_for = found.waits_for if partitions is found.leaderless else None
        lines += [
            ("", f"{tp} ({waits_for(tp)})" if waits_for else str(tp)) for tp in partitions[:20]
        ]
        if len(partitions) > 20:
            lines.append(("", f"and {len(partitions) - 20} more (--json shows all)"))
    width = max(len(name) for name, _ in lines) + 3
    for name, text in lines:
        click.echo(f"{name + ':' if name else '':<{width}}{text}".rstrip())


@cluster.command(
    "brokers",
    examples=("kclient cluster brokers",),
)
@with_settings
def brokers(settings: Settings) -> None:
    """List the brokers (the controller marked *) with the partitions that each holds and leads.

    PREFERRED is the number of partitions that have the broker as preferred leader.
    """

    async def main(reactor: Any) -> None:
        async with admin_client(settings, reactor) as admin:
            topics = await admin.describe_topics(internal=True)
            known = admin.cluster.metadata
        _report_down_brokers(topics, known.brokers)
        partitions = [p for topic in topics.values() for p in topic.partitions.values()]
        rows = [
            {
                "id": b.node_id,
                "controller": b.node_id == known.controller_id,
                "host": b.host,
                "port": b.port,
                "rack": b.rack,
                "replicas": sum(b.node_id in p.replicas for p in partitions),
                "in_sync": sum(b.node_id in p.isr for p in partitions),
                "leaders": sum(b.node_id == p.leader for p in partitions),
                "preferred": sum(p.replicas[:1] == (b.node_id,) for p in partitions),
            }
            for b in sorted(known.brokers.values(), key=lambda b: b.node_id)
        ]
        columns: tuple[str, ...] = (
            "id",
            "host",
            "port",
            "rack",
            "replicas",
            "in_sync",
            "leaders",
            "preferred",
        )
        if settings.is_text:
            rows = [{**row, "id": f"{row['id']}{'*' * row['controller']}"} for row in rows]
        elif settings.format == "csv":
            columns = ("id", "controller", *columns[1:])
        show(rows, columns, settings.format)

    run(main)


def _report_down_brokers(topics: Mapping[str, TopicMetadata], live: Collection[int]) -> None:
    """Print the brokers that hold replicas, but are not live."""
    holders = {n for t in topics.values() for p in t.partitions.values() for n in p.replicas}
    absent = sorted(holders - set(live))
    if absent:
        print_error(f"down, and not listed: broker {', '.join(map(str, absent))}")


@cluster.command(
    "log-dirs",
    examples=(
        "kclient cluster log-dirs",
        "kclient cluster log-dirs -t orders --replicas",
    ),
)
@click.option("--broker", "nodes", type=int, multiple=True, help="Only these brokers.")
@click.option(
    "-t", "--topic", "topics", multiple=True, type=TOPIC, help="Only replicas of these topics."
)
@click.option("-r", "--replicas", is_flag=True, help="A row per replica, not per directory.")
@with_settings
def log_dirs(
    settings: Settings, nodes: tuple[int, ...], topics: tuple[str, ...], replicas: bool
) -> None:
    """Show each broker's log directories: replicas, bytes, free space, failures."""

    async def main(reactor: Any) -> int:
        async with admin_client(settings, reactor) as admin:
            live = admin.cluster.metadata.brokers.keys()
            unknown = sorted(set(nodes) - live)
            if unknown:
                raise ValueError(
                    f"no live broker {unknown[0]}; the live brokers are {sorted(live)}"
                )
            tps = None
            if topics:
                described = await admin.describe_topics(topics)
                tps = [TopicPartition(t.name, n) for t in described.values() for n in t.partitions]
            found = await admin.describe_log_dirs(nodes or None, tps, raise_errors=False)
            if not nodes:
                _report_down_brokers(await admin.describe_topics(internal=True), live)
        good = good_answers(found, lambda node: f"broker {node}")
        rows = []
        for node, dirs in sorted(good.items()):
            for each in dirs.values():
                rows += _replica_rows(node, each) if replicas else [_dir_row(node, each)]
        if replicas:
            columns: tuple[str, ...] = (
                "broker",
                "topic",
                "partition",
                "size",
                "offset_lag",
                "log_dir",
            )
        else:
            columns = (
                "broker",
                "log_dir",
                "replicas",
                "size",
                "usable_bytes",
                "total_bytes",
                "error",
            )
        show(rows, columns, settings.format)
        return code_for(len(good), len(found))

    run(main)


def _dir_row(node: int, each: LogDir) -> dict[str, Any]:
    return {
        "broker": node,
        "log_dir": each.path,
        "error": None if each.error is None else each.error.code.name,
        "replicas": len(each.replicas),
        "size": each.size,
        "total_bytes": each.total_bytes,
        "usable_bytes": each.usable_bytes,
    }


def _replica_rows(node: int, each: LogDir) -> list[dict[str, Any]]:
    return [
        {
            "broker": node,
            "log_dir": each.path,
            "topic": tp.topic,
            "partition": tp.partition,
            "size": replica.size,
            "offset_lag": replica.offset_lag,
            "is_future": replica.is_future,
        }
        for tp, replica in sorted(each.replicas.items())
    ]


cluster.add_command(api_versions)
cluster.add_command(config)
cluster.add_command(elect_leaders)
