"""Real ZooKeeper servers from the jars that PySpark brings: configuration, command, first answer.

PySpark 4.3 contains a complete ZooKeeper 3.9 server, so besides the Python packages a machine only
needs a Java runtime, version 17 or newer.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom

JARS = (
    "zookeeper-[0-9]*.jar",
    "zookeeper-jute-*.jar",
    "slf4j-api-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "log4j-slf4j2-impl-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
)
"""What the server needs; naming them keeps its start below half a second."""

JVM_OPTIONS = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:-UsePerfData",
    "-Dzookeeper.preAllocSize=4096",
    "-Dzookeeper.nio.numSelectorThreads=1",
    "-Dzookeeper.nio.numWorkerThreads=2",
    "-Dzookeeper.commitProcessor.numWorkerThreads=2",
)

_LOG4J = """\
status = off
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss,SSS} %p %c{1} %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


class LocalError(Exception):
    """Java or the jars are missing, or a server did not start; the text names the remedy."""


@dataclass(frozen=True, slots=True)
class Server:
    """One member of an ensemble: its number in it, its three ports, and the address they are bound to."""

    number: int
    client_port: int
    peer_port: int
    election_port: int
    host: str = "127.0.0.1"

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"{self.host}:{self.client_port}"


def find_java() -> str:
    """Return the path of a java of version 17 or newer."""
    home = os.environ.get("JAVA_HOME", "")
    candidates = [str(Path(home, "bin", "java"))] if home else []
    candidates.append("java")
    found = next((path for name in candidates if (path := shutil.which(name))), None)
    advice = (
        "ZooKeeper needs a Java runtime, version 17 or newer. To install one:\n"
        f"    {_install_command()}"
    )
    if found is None:
        raise LocalError(f"There is no java on the PATH. {advice}")
    try:
        version = subprocess.run(
            [found, "-version"], capture_output=True, text=True, timeout=20, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LocalError(f"{found} does not run ({error}). {advice}") from error
    match = re.search(r'version "(\d+)(?:\.(\d+))?', version)
    if match is None or int(match[1]) < 17:
        raise LocalError(f"{found} is too old or no Java at all. {advice}")
    return found


def _install_command() -> str:
    commands = {
        "apt-get": "sudo apt-get install -y openjdk-17-jre-headless",
        "dnf": "sudo dnf install -y java-17-openjdk-headless",
        "yum": "sudo yum install -y java-17-openjdk-headless",
        "pacman": "sudo pacman -S --noconfirm jre17-openjdk-headless",
        "apk": "sudo apk add openjdk17-jre-headless",
        "brew": "brew install openjdk@17",
    }
    return next(
        (line for tool, line in commands.items() if shutil.which(tool)), commands["apt-get"]
    )


def find_jars() -> list[Path]:
    """Return the jars of the server, without importing PySpark."""
    spec = importlib.util.find_spec("pyspark")
    places = list(spec.submodule_search_locations or ()) if spec else []
    advice = "Install them with: pip install 'kbroker[local]'"
    if not places:
        raise LocalError(f"ZooKeeper's jars come with PySpark, which is missing. {advice}")
    directory = Path(places[0], "jars")
    found = []
    for pattern in JARS:
        jars = sorted(directory.glob(pattern))
        if not jars:
            raise LocalError(f"{directory} has no {pattern}. {advice}")
        found.append(jars[-1])
    return found


def write_configuration(
    directory: Path, server: Server, ensemble: Sequence[Server], *, tick_ms: int = 1000
) -> Path:
    """Write zoo.cfg, myid and log4j2.properties into *directory*; return the path of zoo.cfg.

    Session timeouts between 2 ticks and 60 s are accepted as requested.
    """
    data = directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    lines = [
        f"tickTime={tick_ms}",
        "initLimit=20",
        "syncLimit=10",
        f"dataDir={data}",
        f"clientPortAddress={server.host}",
        f"clientPort={server.client_port}",
        "maxClientCnxns=0",
        "maxSessionTimeout=60000",
        "admin.enableServer=false",
        "4lw.commands.whitelist=ruok,srvr,stat,mntr,conf,cons,isro",
        "autopurge.snapRetainCount=3",
        "autopurge.purgeInterval=1",
    ]
    if len(ensemble) > 1:
        (data / "myid").write_text(f"{server.number}\n")
        lines += [f"server.{s.number}={s.host}:{s.peer_port}:{s.election_port}" for s in ensemble]
    (directory / "log4j2.properties").write_text(_LOG4J)
    path = directory / "zoo.cfg"
    path.write_text("\n".join(lines) + "\n")
    return path


def command(configuration: Path, *, fsync: bool = True) -> list[str]:
    """Return the command that runs a server; without *fsync* a power loss may lose its writes."""
    classpath = [configuration.parent, *find_jars()]
    return [
        find_java(),
        *JVM_OPTIONS,
        *(() if fsync else ("-Dzookeeper.forceSync=no",)),
        "-cp",
        os.pathsep.join(str(path) for path in classpath),
        "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        str(configuration),
    ]


def ask(server: Server, word: str, *, timeout: float = 1.0) -> str:
    """Send one of ZooKeeper's four-letter words to *server*; empty if there is no answer."""
    try:
        with socket.create_connection((server.host, server.client_port), timeout) as connection:
            connection.settimeout(timeout)
            connection.sendall(word.encode())
            parts = []
            while part := connection.recv(65536):
                parts.append(part)
            return b"".join(parts).decode(errors="replace")
    except OSError:
        return ""


def mode(server: Server) -> str:
    """Return the current mode of *server*: standalone, leader, follower; empty while it does not serve."""
    match = re.search(r"^Mode: (\w+)", ask(server, "srvr"), re.MULTILINE)
    return match[1] if match else ""


def wait_until_serving(servers: Sequence[Server], *, timeout: float) -> list[Server]:
    """Wait until every server serves clients; return those that still do not."""
    deadline = time.monotonic() + timeout
    waiting = list(servers)
    while True:
        waiting = [server for server in waiting if not mode(server)]
        if not waiting or time.monotonic() > deadline:
            return waiting
        time.sleep(0.05)


def free_ports(count: int, *, consecutive: bool = False) -> list[int]:
    """Return ports of the loopback address without a listener now.

    They lie below the range from which the kernel takes the ports of outgoing connections. One of that range may be
    gone before its server listens. They do not depend on `random.seed`: test runs that seed alike, at the same time,
    take different ports. For a minute no other call returns them, in any process: see `reserve`.
    """
    random = SystemRandom()
    while True:
        first = random.randrange(10_240, _first_ephemeral_port() - count)
        chosen: Sequence[int] = range(first, first + count)
        if not consecutive:
            chosen = random.sample(range(10_240, _first_ephemeral_port()), count)
        if all(is_free(port) and reserve(port) for port in chosen):
            return list(chosen)


_RESERVED_SECONDS = 60.0
_MOST_RESERVED = 200
_reserved: deque[tuple[float, int]] = deque()
"""The descriptors of this process's reservations, with their times."""
_reserving = threading.Lock()


def reserve(port: int) -> bool:
    """Reserve a port for a server that will listen soon; return False if a process has done so within a minute.

    A reservation is a name in Linux's abstract namespace for sockets: the kernel frees it with the process. Elsewhere
    every port can be reserved.
    """
    if sys.platform != "linux":
        return True
    oldest = time.monotonic() - _RESERVED_SECONDS
    with _reserving:
        while _reserved and (_reserved[0][0] < oldest or len(_reserved) > _MOST_RESERVED):
            os.close(_reserved.popleft()[1])
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(f"\0kbroker-port-{port}")
    except OSError:
        name.close()
        return False
    _reserved.append((time.monotonic(), name.detach()))
    return True


def _first_ephemeral_port() -> int:
    try:
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        low = 32_768
    return low if low > 12_000 else 65_536


def is_free(port: int) -> bool:
    """Return whether *port* of the loopback address has no listener now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
