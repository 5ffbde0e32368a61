"""The state that a directory of local clusters holds, so that any shell can show, stop and continue them.

    DIR/.lock                       one command at a time
    DIR/ensemble.json               the ZooKeeper servers: ports and processes
    DIR/zookeeper-1/                zoo.cfg, data, zookeeper.log
    DIR/east/cluster.json           the brokers of the cluster `east`: ports and processes
    DIR/east/broker-1/              server.properties, data, broker.log

Clusters share the ensemble, each under a chroot of its own name.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kbroker.local.processes import ProcessIdentity
from kbroker.local.zookeeper import LocalError, Server

DEFAULT_DIRECTORY = Path("kbroker-local")
DEFAULT_NAME = "local"
PATH_VARIABLE = "KBROKER_LOCAL_DIR"
"""The environment variable that replaces the default directory."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


@dataclass(slots=True)
class ServerState:
    """One ZooKeeper server and its process, as last known."""

    server: Server
    process: ProcessIdentity | None = None

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.alive


@dataclass(slots=True)
class BrokerState:
    """One broker and its process, as last known."""

    broker_id: int
    port: int
    process: ProcessIdentity | None = None
    log_position: int = 0
    """Where the output of that process begins in the log."""

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.alive


@dataclass(slots=True)
class ClusterState:
    """The brokers of one cluster, and the settings they were started with."""

    name: str
    brokers: list[BrokerState]
    overrides: list[str] = field(default_factory=list)

    @property
    def bootstrap(self) -> str:
        """All addresses, as in bootstrap.servers."""
        return ",".join(broker.address for broker in self.brokers)


def name_option(name: str) -> tuple[str, ...]:
    """Return the option that names a cluster, () for the default of `up` and `env`."""
    return () if name == DEFAULT_NAME else ("--name", name)


def checked_name(name: str) -> str:
    """Return *name* if a cluster may be called so: it becomes a directory and a chroot."""
    if _NAME.fullmatch(name) is None or name.startswith("zookeeper"):
        raise LocalError(
            f"{name!r:.80} cannot be the name of a cluster: letters, digits, - and _, at most 63, "
            'and not beginning with "zookeeper"'
        )
    return name


class Directory:
    """The state in one directory. Reading never changes anything."""

    def __init__(self, path: Path) -> None:
        self.given = path
        """The path as the user wrote it, for command lines in messages."""
        self.path = path.resolve()

    def command(self, verb: str, *options: str) -> str:
        """Return the command line of `kbroker local` *verb* for this directory, quoted for a shell."""
        is_default = self.given == DEFAULT_DIRECTORY and PATH_VARIABLE not in os.environ
        where = () if is_default else ("--dir", str(self.given))
        return shlex.join(["kbroker", "local", verb, *where, *options])

    # --- where things are ---

    def server_home(self, server: Server) -> Path:
        """Return the directory of a ZooKeeper server."""
        return self.path / f"zookeeper-{server.number}"

    def broker_home(self, cluster: str, broker: BrokerState) -> Path:
        """Return the directory of a broker."""
        return self.path / cluster / f"broker-{broker.broker_id}"

    def broker_log(self, cluster: str, broker: BrokerState) -> Path:
        """Return the log of a broker."""
        return self.broker_home(cluster, broker) / "broker.log"

    # --- state ---

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other commands on this directory waiting."""
        descriptor = self._lock()
        try:
            yield
        finally:
            os.close(descriptor)

    def _lock(self) -> int:
        """Lock the file that is at the path then: a purge removes the file that other commands wait for."""
        path = self.path / ".lock"
        while True:
            self.path.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as stack, contextlib.suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    stack.pop_all()
                    return descriptor

    def ensemble(self) -> list[ServerState]:
        """Read the ensemble; empty if there is none yet."""
        value = self._read(self.path / "ensemble.json")
        return [
            ServerState(
                Server(s["number"], s["client_port"], s["peer_port"], s["election_port"]),
                ProcessIdentity.from_json(s.get("process")),
            )
            for s in value.get("servers", ())
        ]

    def save_ensemble(self, servers: list[ServerState]) -> None:
        """Write the ensemble."""
        self._write(
            self.path / "ensemble.json",
            {
                "version": 1,
                "servers": [
                    {
                        "number": s.server.number,
                        "client_port": s.server.client_port,
                        "peer_port": s.server.peer_port,
                        "election_port": s.server.election_port,
                        "process": s.process.to_json() if s.process else None,
                    }
                    for s in servers
                ],
            },
        )

    def clusters(self) -> list[ClusterState]:
        """Read all clusters."""
        names = sorted(path.parent.name for path in self.path.glob("*/cluster.json"))
        return [cluster for name in names if (cluster := self.cluster(name)) is not None]

    def cluster(self, name: str) -> ClusterState | None:
        """Read one cluster; None if there is none of that name."""
        value = self._read(self.path / name / "cluster.json")
        if not value:
            return None
        brokers = [
            BrokerState(
                b["id"],
                b["port"],
                ProcessIdentity.from_json(b.get("process")),
                b.get("log_position", 0),
            )
            for b in value["brokers"]
        ]
        return ClusterState(name, brokers, list(value.get("overrides", ())))

    def save_cluster(self, cluster: ClusterState) -> None:
        """Write one cluster."""
        home = self.path / cluster.name
        home.mkdir(exist_ok=True)
        self._write(
            home / "cluster.json",
            {
                "version": 1,
                "brokers": [
                    {
                        "id": b.broker_id,
                        "port": b.port,
                        "process": b.process.to_json() if b.process else None,
                        "log_position": b.log_position,
                    }
                    for b in cluster.brokers
                ],
                "overrides": cluster.overrides,
            },
        )

    @staticmethod
    def _read(path: Path) -> dict[str, Any]:
        try:
            value = json.loads(path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise LocalError(
                f"{path} cannot be read ({error}); delete it to start again"
            ) from error
        if not isinstance(value, dict):
            raise LocalError(
                f"{path} is not the state of a local cluster; delete it to start again"
            )
        return value

    @staticmethod
    def _write(path: Path, value: dict[str, Any]) -> None:
        new = path.with_suffix(".tmp")
        new.write_text(json.dumps(value, indent=1) + "\n")
        new.replace(path)
