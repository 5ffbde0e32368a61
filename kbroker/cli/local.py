"""`kbroker local`: ZooKeeper and clusters of brokers on this machine, in the background."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from kbroker.local import cluster, members, orphan_reaper, zookeeper
from kbroker.local import ephemeral as ephemeral_cluster
from kbroker.local.processes import ProcessIdentity
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
from kclient.cli import colour
from kclient.cli.named_path import NamedPath


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
    type=NamedPath(path_type=Path, file_okay=False),
    default=DEFAULT_DIRECTORY,
    show_default=True,
    envvar=PATH_VARIABLE,
    help="Where clusters keep their state, data and logs.",
)
_NAME = click.option("--name", help="Only this cluster.  [default: all]")
_ONE = click.option("--name", help="The cluster, if there are several.")
_IDS = click.argument("ids", nargs=-1, required=True, metavar="ID...")


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
    "--port",
    type=int,
    help="Port of the first broker, 0: any; the others follow.  [default: 19092]",
)
@click.option(
    "--override", "overrides", multiple=True, metavar="KEY=VALUE", help="A broker setting."
)
@click.option("--die-with", type=int, metavar="PID", help="Stop everything when this process ends.")
@click.option(
    "--ephemeral",
    is_flag=True,
    help="In a temporary directory, until Ctrl-C or the end of COMMAND; then nothing is left.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@_reports_errors
def up(
    path: Path,
    name: str,
    brokers: int | None,
    zookeepers: int | None,
    port: int | None,
    overrides: tuple[str, ...],
    die_with: int | None,
    ephemeral: bool,
    command: tuple[str, ...],
) -> None:
    """Start a cluster, or what is missing of it, and wait until it is ready.

    Clusters of one --dir share a ZooKeeper ensemble. The last line is machine readable:
    BROKERS=host:port,... With --ephemeral, COMMAND finds the brokers in KCLIENT_BOOTSTRAP_SERVERS, and its exit code is
    returned.
    """
    if ephemeral:
        source = click.get_current_context().get_parameter_source("path")
        if source is ParameterSource.COMMANDLINE or die_with is not None:
            raise click.UsageError(
                "--ephemeral has a directory of its own: remove --dir and --die-with"
            )
        try:
            sys.exit(_up_ephemeral(name, brokers, zookeepers, port, overrides, command))
        except KeyboardInterrupt:
            _progress("kbroker local: interrupted; nothing is left")
            sys.exit(130)
    if command:
        raise click.UsageError(f"{command[0]!r}: a command needs --ephemeral")
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


def _up_ephemeral(
    name: str,
    brokers: int | None,
    zookeepers: int | None,
    port: int | None,
    overrides: tuple[str, ...],
    command: tuple[str, ...],
) -> int:
    """Run a cluster until Ctrl-C, or for the time of *command*; return the exit code."""
    with ephemeral_cluster.running(
        name,
        brokers=brokers,
        zookeepers=zookeepers,
        port=port,
        overrides=overrides,
        progress=_progress,
    ) as (directory, state):
        if command:
            return ephemeral_cluster.run_command(command, state.bootstrap)
        for line in [*_ensemble_lines(directory), *_cluster_lines(directory, state)]:
            click.echo(line)
        click.echo(f"BROKERS={state.bootstrap}")
        sys.stdout.flush()
        _progress("Ctrl-C stops the cluster and deletes its data")
        ephemeral_cluster.wait_for_the_end()
    return 0


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


@local.command()
@_DIRECTORY
@_ONE
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines, until Ctrl-C.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    help="Lines of each log to begin with.",
)
@click.argument("ids", nargs=-1, metavar="[ID...]")
@_reports_errors
def logs(path: Path, name: str | None, follow: bool, lines: int, ids: tuple[str, ...]) -> None:
    """Print the logs of brokers (ID) or ZooKeeper servers (zk, zk2); of all brokers without ID."""
    directory = Directory(path)
    chosen = members.members(directory, members.cluster_of(directory, name), ids)
    width = max(len(each.label) for each in chosen)

    def show(member: members.Member, line: bytes) -> None:
        label = f"{member.label:<{width}} | " if len(chosen) > 1 else ""
        click.echo(label.encode() + line)

    positions = []
    for member in chosen:
        last, position = members.last_lines(member.log, lines)
        positions.append(position)
        for line in last:
            show(member, line)
    if follow:
        try:
            for member, line in members.follow(chosen, positions):
                show(member, line)
                sys.stdout.flush()
        except KeyboardInterrupt:
            sys.exit(130)


def _signal(
    path: Path, name: str | None, ids: tuple[str, ...], number: signal.Signals, done: str
) -> Directory:
    directory = Directory(path)
    with directory.locked():
        cluster_state = members.cluster_of(directory, name)
        for member in members.members(directory, cluster_state, ids):
            members.send_signal(member, number)
            _progress(f"{cluster_state.name}: {member.label} {done}")
    return directory


@local.command()
@_DIRECTORY
@_ONE
@_IDS
@_reports_errors
def kill(path: Path, name: str | None, ids: tuple[str, ...]) -> None:
    """Kill brokers (ID) or ZooKeeper servers (zk, zk2) with SIGKILL; `up` starts them again."""
    directory = _signal(path, name, ids, signal.SIGKILL, "killed")
    _progress(
        f"this starts what is missing:\n    {directory.command('up', *name_option(name or DEFAULT_NAME))}"
    )


@local.command()
@_DIRECTORY
@_ONE
@_IDS
@_reports_errors
def pause(path: Path, name: str | None, ids: tuple[str, ...]) -> None:
    """Stop brokers (ID) or ZooKeeper servers (zk, zk2) with SIGSTOP, as a long pause of the machine does."""
    _signal(path, name, ids, signal.SIGSTOP, "paused")


@local.command()
@_DIRECTORY
@_ONE
@_IDS
@_reports_errors
def resume(path: Path, name: str | None, ids: tuple[str, ...]) -> None:
    """Let paused brokers (ID) or ZooKeeper servers (zk, zk2) go on."""
    _signal(path, name, ids, signal.SIGCONT, "goes on")


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
                _process(state.process, mode),
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
            _process(broker.process, ""),
            directory.broker_log(state.name, broker),
        )
        for broker in state.brokers
    ]


def _process(process: ProcessIdentity | None, mode: str) -> str:
    if process is None or not process.alive:
        return "STOPPED"
    state = "PAUSED" if process.paused else "running"
    return f"{state}, pid {process.pid}{', ' + mode if mode else ''}"


def _paused(process: ProcessIdentity | None) -> bool:
    return process is not None and process.paused


def _line(group: str, member: str, address: str, process: str, log: Path) -> str:
    word, comma, rest = f"{process:<34}".partition("," if "," in process else " ")
    return f"{group:<12} {member:<10} {address:<22} {_COLOURS[word](word)}{comma}{rest} {log}"


_COLOURS = {"running": colour.good, "PAUSED": colour.warning, "STOPPED": colour.bad}


def _as_json(directory: Directory, clusters: list[ClusterState]) -> dict[str, Any]:
    return {
        "directory": str(directory.path),
        "zookeeper": [
            {
                "server": s.server.number,
                "address": s.server.address,
                "running": s.running,
                "paused": _paused(s.process),
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
                        "paused": _paused(b.process),
                        "pid": b.process.pid if b.process and b.running else None,
                        "log": str(directory.broker_log(c.name, b)),
                    }
                    for b in c.brokers
                ],
            }
            for c in clusters
        ],
    }
