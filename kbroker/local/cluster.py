"""Starting, showing, stopping and removing clusters on this machine.

Every command is idempotent. `up` starts the missing processes and leaves the others alone; `down` and `purge` stop and
remove what exists. No command touches anything that `kbroker local` did not create.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kbroker
from kbroker.local import contexts, processes, zookeeper
from kbroker.local.processes import ProcessIdentity
from kbroker.local.state import (
    BrokerState,
    ClusterState,
    Directory,
    ServerState,
    checked_name,
    name_option,
)
from kbroker.local.zookeeper import LocalError

Progress = Callable[[str], None]


def counted(count: int, noun: str) -> str:
    """Return "1 broker" or "3 brokers"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


READY = b"READY broker.id="
ZOOKEEPER_TIMEOUT = 30.0
BROKER_TIMEOUT = 30.0
STOP_TIMEOUT = 30.0
"""Seconds. A broker's controlled shutdown is bounded by less than the last one."""

DEFAULT_PORT = 19092
DEFAULT_BROKERS = 3

DEVELOPMENT_SETTINGS: Mapping[str, str] = {
    "zookeeper.session.timeout.ms": "6000",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.state.log.min.isr": "1",
    "log.segment.delete.delay.ms": "1000",
}
"""Where a cluster on one machine differs from Kafka's defaults."""

INTERNAL_REPLICAS = ("offsets.topic.replication.factor", "transaction.state.log.replication.factor")
"""Kafka's 3 where there are three brokers; groups go on when one of them is killed."""


def up(
    directory: Directory,
    name: str,
    *,
    brokers: int | None,
    zookeepers: int | None,
    port: int | None,
    overrides: Iterable[str],
    progress: Progress,
    with_context: bool = True,
) -> ClusterState:
    """Start what is missing of the cluster *name* and its ensemble; return when all is ready.

    None stands for what the cluster has already, or 3 brokers, 1 ZooKeeper server, port 19092. Port 0 stands for any
    that are free.
    """
    checked_name(name)
    _check_overrides(overrides := list(overrides))
    with directory.locked():
        known = directory.cluster(name)
        cluster = known or planned(
            directory,
            name,
            DEFAULT_BROKERS if brokers is None else brokers,
            DEFAULT_PORT if port is None else port,
        )
        if known is not None:
            _check_same(directory, known, brokers, port, overrides)
        if overrides:
            cluster.overrides = _merged(cluster.overrides, overrides)
        zookeeper.find_jars()  # what must be installed comes before what another program does
        _check_ports(directory, cluster, is_new=known is None)
        ensemble = _start_ensemble(directory, zookeepers, progress)
        _start_brokers(directory, cluster, ensemble, progress)
        if with_context:
            contexts.add(directory, cluster, progress)
    return cluster


def check_number(brokers: int) -> None:
    """Raise LocalError for a number of brokers that no cluster can have."""
    if not 1 <= brokers <= 100:
        raise LocalError(f"--brokers {brokers}: between 1 and 100")


def planned(directory: Directory, name: str, brokers: int, port: int) -> ClusterState:
    """Return a new cluster with ports from *port* on, or with any that are free if it is 0; raise LocalError."""
    check_number(brokers)
    if port == 0:
        port = zookeeper.free_ports(brokers, consecutive=True)[0]
    if not (port >= 1 and port + brokers - 1 <= 65535):
        raise LocalError(f"--port {port}: ports {port} to {port + brokers - 1} do not all exist")
    wanted = range(port, port + brokers)
    for other in directory.clusters():
        if taken := sorted(b.port for b in other.brokers if b.port in wanted):
            raise LocalError(
                f"port {taken[0]} belongs to the cluster {other.name} of {directory.path}: "
                "choose another --port"
            )
    return ClusterState(name, [BrokerState(n, port + n - 1) for n in range(1, brokers + 1)])


def _check_same(
    directory: Directory,
    cluster: ClusterState,
    brokers: int | None,
    port: int | None,
    overrides: list[str],
) -> None:
    have, first = len(cluster.brokers), cluster.brokers[0].port
    if brokers not in (None, have) or port not in (None, 0, first):
        kept = [word for override in overrides for word in ("--override", override)]
        raise LocalError(
            f"the cluster {cluster.name} is there already, with {counted(have, 'broker')} from port {first}. "
            "Start it as it is:\n"
            f"    {directory.command('up', *name_option(cluster.name), *kept)}\n"
            f"{_or_remove(directory, cluster)}"
        )


def _or_remove(directory: Directory, cluster: ClusterState) -> str:
    return (
        "or remove it, with its data, and start another one:\n"
        f"    {directory.command('purge', '--name', cluster.name)}"
    )


def _check_overrides(overrides: list[str]) -> None:
    for override in overrides:
        key, equals, _ = override.partition("=")
        if not equals or not key.strip():
            raise LocalError(f"--override {override!r:.200} is not key=value")
        if key.strip() in ("broker.id", "listeners", "zookeeper.connect", "log.dirs", "log.dir"):
            raise LocalError(f"--override {key.strip()}: set by `kbroker local` for every broker")


def _merged(old: list[str], new: list[str]) -> list[str]:
    values = dict(item.partition("=")[::2] for item in (*old, *new))
    return [f"{key}={value}" for key, value in values.items()]


def _check_ports(directory: Directory, cluster: ClusterState, *, is_new: bool) -> None:
    for broker in cluster.brokers:
        if broker.running:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", broker.port))
            except OSError as error:
                advice = (
                    "choose another --port (0: any that are free)"
                    if is_new
                    else f"stop that program,\n{_or_remove(directory, cluster)}"
                )
                raise LocalError(
                    f"port {broker.port} is in use by another program ({error.strerror}): {advice}"
                ) from error


# --- the ensemble ------------------------------------------------------------------------------


def _start_ensemble(
    directory: Directory, count: int | None, progress: Progress
) -> list[ServerState]:
    servers = directory.ensemble()
    if servers and count not in (None, len(servers)):
        progress(
            f"ZooKeeper: the ensemble of {directory.path} has {counted(len(servers), 'server')}; kept"
        )
    if not servers:
        number = 1 if count is None else count
        if not 1 <= number <= 9:
            raise LocalError(f"--zookeepers {number}: between 1 and 9")
        ports = iter(zookeeper.free_ports(3 * number))
        servers = [
            ServerState(zookeeper.Server(n, next(ports), next(ports), next(ports)))
            for n in range(1, number + 1)
        ]
    missing = [s for s in servers if not s.running]
    if missing:
        progress(f"ZooKeeper: starting {len(missing)} of {counted(len(servers), 'server')}")
    members = [s.server for s in servers]
    for state in missing:
        home = directory.server_home(state.server)
        configuration = zookeeper.write_configuration(home, state.server, members)
        state.process = processes.start_in_background(
            zookeeper.command(configuration), log=home / "zookeeper.log", cwd=home
        )
        directory.save_ensemble(servers)
    silent = zookeeper.wait_until_serving([s.server for s in servers], timeout=ZOOKEEPER_TIMEOUT)
    if silent:
        logs = [directory.server_home(s.server) / "zookeeper.log" for s in servers]
        raise LocalError(
            f"ZooKeeper does not serve on port {', '.join(str(s.client_port) for s in silent)} after "
            f"{ZOOKEEPER_TIMEOUT:g} s. Its last log lines:\n{_last_lines(logs[0])}"
        )
    return servers


# --- brokers -----------------------------------------------------------------------------------


def _start_brokers(
    directory: Directory, cluster: ClusterState, ensemble: list[ServerState], progress: Progress
) -> None:
    """Start what is missing, and wait for all: an `up` that was interrupted may have started others a moment ago."""
    directory.save_cluster(cluster)
    missing = [b for b in cluster.brokers if not b.running]
    if running := len(cluster.brokers) - len(missing):
        verb = "is" if running == 1 else "are"
        all_brokers = counted(len(cluster.brokers), "broker")
        progress(f"{cluster.name}: {running} of {all_brokers} {verb} running already")
    if missing:
        progress(f"{cluster.name}: starting {counted(len(missing), 'broker')}")
    started = time.monotonic()
    for broker in missing:
        home = directory.broker_home(cluster.name, broker)
        home.mkdir(parents=True, exist_ok=True)
        properties = _write_properties(directory, cluster, broker, ensemble)
        log = directory.broker_log(cluster.name, broker)
        broker.log_position = log.stat().st_size if log.exists() else 0
        broker.process = processes.start_in_background(
            broker_command(properties), log=log, cwd=home, environment=broker_environment()
        )
        directory.save_cluster(cluster)
    deadline = started + BROKER_TIMEOUT
    waiting = list(cluster.brokers)
    while waiting:
        for broker in list(waiting):
            log = directory.broker_log(cluster.name, broker)
            if _is_ready(log, broker.log_position):
                waiting.remove(broker)
                if broker not in missing:
                    continue
                seconds = time.monotonic() - started
                progress(f"{cluster.name}: broker {broker.broker_id} ready after {seconds:.1f} s")
            elif not broker.running:
                raise LocalError(
                    f"broker {broker.broker_id} of {cluster.name} did not start. Its last log lines "
                    f"({log}):\n{_last_lines(log, broker.log_position)}"
                )
            elif time.monotonic() > deadline:
                raise LocalError(
                    f"broker {broker.broker_id} of {cluster.name} is not ready after "
                    f"{BROKER_TIMEOUT:g} s. Its last log lines ({log}):\n{_last_lines(log, broker.log_position)}"
                )
        time.sleep(0.02)


def broker_command(properties: Path) -> list[str]:
    """Return the command that runs a broker with this server.properties."""
    return [sys.executable, "-m", "kbroker", "start", str(properties)]


def broker_environment() -> dict[str, str]:
    """Return what lets the command find this very package from any directory, and start fast.

    Without bytecode files every start would compile 150 modules: a third of its time.
    """
    ours = str(Path(kbroker.__file__).resolve().parent.parent)
    inherited = os.environ.get("PYTHONPATH", "")
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, (ours, inherited))),
        "PYTHONDONTWRITEBYTECODE": "",
    }


def _write_properties(
    directory: Directory, cluster: ClusterState, broker: BrokerState, ensemble: list[ServerState]
) -> Path:
    home = directory.broker_home(cluster.name, broker)
    hosts = ",".join(state.server.address for state in ensemble)
    settings = {
        "broker.id": str(broker.broker_id),
        "listeners": f"PLAINTEXT://{broker.address}",
        "zookeeper.connect": f"{hosts}/{cluster.name}",
        "log.dirs": str(home / "data"),
        **DEVELOPMENT_SETTINGS,
        **dict.fromkeys(INTERNAL_REPLICAS, str(min(3, len(cluster.brokers)))),
    }
    for override in cluster.overrides:
        key, _, value = override.partition("=")
        settings[key.strip()] = value
    path = home / "server.properties"
    lines = [f"# Written by `kbroker local up --name {cluster.name}`; change it by --override."]
    lines += [f"{key}={_escaped(value)}" for key, value in settings.items()]
    path.write_text("\n".join(lines) + "\n")
    return path


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _is_ready(log: Path, position: int) -> bool:
    try:
        with log.open("rb") as file:
            file.seek(position)
            return any(line.startswith(READY) for line in file)
    except FileNotFoundError:
        return False


def _last_lines(path: Path, position: int = 0, count: int = 12) -> str:
    """Return the last *count* lines of the log from *position* on: those before are of an earlier start."""
    try:
        lines = path.read_bytes()[position:].decode(errors="replace").splitlines()[-count:]
    except OSError:
        lines = ["(no log)"]
    return "\n".join(f"    {line}" for line in lines)


# --- stopping ------------------------------------------------------------------------------------


def down(directory: Directory, name: str | None, progress: Progress) -> None:
    """Stop the cluster *name*, or all; and the ensemble once nothing needs it."""
    with directory.locked():
        _stop_clusters(directory, _chosen(directory, name), progress)
        if not any(b.running for c in directory.clusters() for b in c.brokers):
            _stop_ensemble(directory, progress)


def _chosen(directory: Directory, name: str | None) -> list[ClusterState]:
    if name is None:
        return directory.clusters()
    cluster = directory.cluster(checked_name(name))
    if cluster is None:
        names = ", ".join(c.name for c in directory.clusters()) or "none"
        raise LocalError(f"{directory.path} has no cluster {name} (there: {names})")
    return [cluster]


def _stop_clusters(
    directory: Directory, clusters: list[ClusterState], progress: Progress, *, gently: bool = True
) -> None:
    for cluster in clusters:
        contexts.remove(directory, cluster.name, progress)
        running = [b.process for b in cluster.brokers if b.process and b.process.alive]
        if not gently:
            for process in running:
                process.signal(signal.SIGKILL)
        _stop_all(running, cluster.name, "broker", progress)
        for broker in cluster.brokers:
            broker.process = None
        directory.save_cluster(cluster)


def _stop_ensemble(directory: Directory, progress: Progress) -> None:
    servers = directory.ensemble()
    running = [s.process for s in servers if s.process and s.process.alive]
    _stop_all(running, "ZooKeeper", "server", progress)
    for server in servers:
        server.process = None
    if servers:
        directory.save_ensemble(servers)


def _stop_all(running: list[ProcessIdentity], name: str, kind: str, progress: Progress) -> None:
    if not running:
        return
    progress(f"{name}: stopping {counted(len(running), kind)}")
    with ThreadPoolExecutor(len(running)) as pool:
        gently = list(pool.map(lambda p: processes.stop(p, timeout=STOP_TIMEOUT), running))
    if killed := gently.count(False):
        progress(f"{name}: {killed} of them did not end within {STOP_TIMEOUT:g} s and were killed")


def purge(
    directory: Directory, name: str | None, progress: Progress, *, gently: bool = True
) -> None:
    """Stop and delete the cluster *name*, or all clusters and the ensemble of the directory.

    Not *gently*: the brokers are killed, because their data goes anyway.
    """
    if not directory.path.is_dir():
        return
    with directory.locked():
        chosen = _chosen(directory, name)
        _stop_clusters(directory, chosen, progress, gently=gently)
        others = {c.name for c in directory.clusters()} - {c.name for c in chosen}
        if others:
            _delete_chroots(directory, chosen, progress)
        for cluster in chosen:
            _delete_cluster(directory, cluster)
            progress(f"{cluster.name}: deleted")
        if others:
            return
        _stop_ensemble(directory, progress)
        for state in directory.ensemble():
            shutil.rmtree(directory.server_home(state.server), ignore_errors=True)
        (directory.path / "ensemble.json").unlink(missing_ok=True)
        (directory.path / ".lock").unlink(missing_ok=True)
        _remove_if_empty(directory.path)


def _delete_chroots(directory: Directory, clusters: list[ClusterState], progress: Progress) -> None:
    """Delete a cluster from the ensemble that other clusters go on using."""
    from kbroker.zk.tree_deletion import delete_tree

    were_running = any(s.running for s in directory.ensemble())
    servers = _start_ensemble(directory, None, progress)
    for cluster in clusters:
        delete_tree(",".join(s.server.address for s in servers), f"/{cluster.name}")
    if not were_running:
        _stop_ensemble(directory, progress)


def _delete_cluster(directory: Directory, cluster: ClusterState) -> None:
    for broker in cluster.brokers:
        shutil.rmtree(directory.broker_home(cluster.name, broker), ignore_errors=True)
    home = directory.path / cluster.name
    (home / "cluster.json").unlink(missing_ok=True)
    _remove_if_empty(home)


def _remove_if_empty(path: Path) -> None:
    try:
        path.rmdir()
    except OSError:
        return
