"""`kbroker local`: ZooKeeper and clusters of brokers on this machine, in the background."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from kbroker.local import cluster, orphan_reaper, zookeeper
from kbroker.local.state import (
    DEFAULT_DIRECTORY,
    DEFAULT_NAME,
    PATH_VARIABLE,
    ClusterState,
    Directory,
    name_option,
)
from kbroker.local.zookeeper import LocalError
from kbroker.zk.errors import ZooKeeperError


def _progress(text: str) -> None:
    click.echo(text, err=True)


def _reports_errors(command: Callable[..., None]) -> Callable[..., None]:
    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (LocalError, ZooKeeperError, OSError) as error:
            _progress(f"kbroker local: {error}")
            sys.exit(1)
        except KeyboardInterrupt:
            show = Directory(kwargs["path"]).command("status")
            _progress(f"kbroker local: interrupted; this shows what runs:\n    {show}")
            sys.exit(130)

    return wrapped


_DIRECTORY = click.option(
    "--dir",
    "path",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_DIRECTORY,
    show_default=True,
    envvar=PATH_VARIABLE,
    help="Where clusters keep their state, data and logs.",
)
_NAME = click.option("--name", help="Only this cluster.  [default: all]")


@click.group()
def local() -> None:
    """Run ZooKeeper and clusters of brokers on this machine, in the background."""


@local.command()
@_DIRECTORY
@click.option("--name", default=DEFAULT_NAME, show_default=True, help="Name of the cluster.")
@click.option("-n", "--brokers", type=int, help="Number of brokers.  [default: 3]")
@click.option(
    "--zk", "--zookeepers", "zookeepers", type=int, help="ZooKeeper servers.  [default: 1]"
)
@click.option(
    "--port", type=int, help="Port of the first broker; the others follow.  [default: 19092]"
)
@click.option(
    "--override", "overrides", multiple=True, metavar="KEY=VALUE", help="A broker setting."
)
@click.option("--die-with", type=int, metavar="PID", help="Stop everything when this process ends.")
@_reports_errors
def up(
    path: Path,
    name: str,
    brokers: int | None,
    zookeepers: int | None,
    port: int | None,
    overrides: tuple[str, ...],
    die_with: int | None,
) -> None:
    """Start a cluster, or what is missing of it, and wait until it is ready.

    Clusters of one --dir share a ZooKeeper ensemble. The last line is machine readable:
    BROKERS=host:port,...
    """
    directory = Directory(path)
    if die_with is not None:
        orphan_reaper.start(die_with, directory)
    state = cluster.up(
        directory,
        name,
        brokers=brokers,
        zookeepers=zookeepers,
        port=port,
        overrides=overrides,
        progress=_progress,
    )
    for line in _ensemble_lines(directory):
        click.echo(line)
    for line in _cluster_lines(directory, state):
        click.echo(line)
    click.echo(f"BROKERS={state.bootstrap}")


local.add_command(up, "start")


@local.command()
@_DIRECTORY
@_NAME
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@_reports_errors
def status(path: Path, name: str | None, as_json: bool) -> None:
    """Show what runs. Exit code 4 if something that should run does not, 1 if there is nothing."""
    directory = Directory(path)
    chosen = [c for c in directory.clusters() if name in (None, c.name)]
    ensemble = directory.ensemble()
    if not chosen:
        raise _no_cluster(directory, name)
    if as_json:
        click.echo(json.dumps(_as_json(directory, chosen), indent=2))
    else:
        for line in _ensemble_lines(directory):
            click.echo(line)
        for state in chosen:
            for line in _cluster_lines(directory, state):
                click.echo(line)
    healthy = all(s.running for s in ensemble)
    healthy = healthy and all(b.running for c in chosen for b in c.brokers)
    sys.exit(0 if healthy else 4)


@local.command()
@_DIRECTORY
@_NAME
@_reports_errors
def down(path: Path, name: str | None) -> None:
    """Stop the brokers, and ZooKeeper once no cluster needs it. Data stays."""
    if not path.is_dir():
        raise LocalError(f"{path} does not exist: nothing to stop")
    cluster.down(Directory(path), name, _progress)


local.add_command(down, "stop")


@local.command()
@_DIRECTORY
@_NAME
@_reports_errors
def purge(path: Path, name: str | None) -> None:
    """Stop, and delete all data, logs and state that `kbroker local` made in --dir."""
    cluster.purge(Directory(path), name, _progress)


@local.command()
@_DIRECTORY
@click.option("--name", default=DEFAULT_NAME, show_default=True, help="Name of the cluster.")
@_reports_errors
def env(path: Path, name: str) -> None:
    """Print `export KCLIENT_BOOTSTRAP_SERVERS=...` for `eval`."""
    directory = Directory(path)
    state = directory.cluster(name)
    if state is None:
        raise _no_cluster(directory, name)
    click.echo(f"export KCLIENT_BOOTSTRAP_SERVERS={state.bootstrap}")


def _no_cluster(directory: Directory, name: str | None) -> LocalError:
    start = directory.command("up", *name_option(name or DEFAULT_NAME))
    missing = "no cluster" if name is None else f"no cluster {name}"
    return LocalError(f"{directory.path} has {missing}. Start one with:\n    {start}")


def _ensemble_lines(directory: Directory) -> list[str]:
    lines = []
    for state in directory.ensemble():
        mode = zookeeper.mode(state.server) if state.running else ""
        lines.append(
            _line(
                "zookeeper",
                f"server {state.server.number}",
                state.server.address,
                _process(state.process.pid if state.process else 0, state.running, mode),
                directory.server_home(state.server) / "zookeeper.log",
            )
        )
    return lines


def _cluster_lines(directory: Directory, state: ClusterState) -> list[str]:
    return [
        _line(
            state.name,
            f"broker {broker.broker_id}",
            broker.address,
            _process(broker.process.pid if broker.process else 0, broker.running, ""),
            directory.broker_log(state.name, broker),
        )
        for broker in state.brokers
    ]


def _process(pid: int, running: bool, mode: str) -> str:
    return f"running, pid {pid}{', ' + mode if mode else ''}" if running else "STOPPED"


def _line(group: str, member: str, address: str, process: str, log: Path) -> str:
    return f"{group:<12} {member:<10} {address:<22} {process:<34} {log}"


def _as_json(directory: Directory, clusters: list[ClusterState]) -> dict[str, Any]:
    return {
        "directory": str(directory.path),
        "zookeeper": [
            {
                "server": s.server.number,
                "address": s.server.address,
                "running": s.running,
                "pid": s.process.pid if s.process and s.running else None,
            }
            for s in directory.ensemble()
        ],
        "clusters": [
            {
                "name": c.name,
                "bootstrap_servers": c.bootstrap,
                "brokers": [
                    {
                        "broker_id": b.broker_id,
                        "address": b.address,
                        "running": b.running,
                        "pid": b.process.pid if b.process and b.running else None,
                        "log": str(directory.broker_log(c.name, b)),
                    }
                    for b in c.brokers
                ],
            }
            for c in clusters
        ],
    }
