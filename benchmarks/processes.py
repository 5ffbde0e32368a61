"""Starts measured processes, and reads their CPU seconds and peak memory from the kernel."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from kclient.wire import messages
from kclient.wire.framing import framed
from kclient.wire.messages import RequestHeader
from kclient.wire.schema.metadata import MetadataRequest
from kclient.wire.versions import ApiKey

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_WAIT_S = 60.0
TICK_MS = 250
"""ZooKeeper's tickTime."""


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def cpu_seconds(pid: int) -> float:
    """Return the user plus system CPU seconds of *pid* so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def peak_memory_mib(pid: int) -> float:
    """Return the largest resident size of *pid*, in MiB."""
    return _status_mib(pid, "VmHWM")


def memory_mib(pid: int) -> float:
    """Return the resident size of *pid* now, in MiB."""
    return _status_mib(pid, "VmRSS")


def _status_mib(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no {name}: it has ended")


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until *port* accepts connections; raise RuntimeError with the log's end if the process dies first."""
    deadline = time.monotonic() + _PAGE_WAIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{log} ended with {process.returncode}:\n{_tail(log)}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.01)
    raise RuntimeError(f"nothing listens on {port} after {_PAGE_WAIT_S:.0f} s:\n{_tail(log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:]) if log.exists() else ""


@contextlib.contextmanager
def running(
    command: list[str], log: Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run *command* with its output in *log*; terminate it and its children at the end."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def zookeeper(directory: Path, classpath: str) -> Iterator[int]:
    """Run one ZooKeeper server; yield its port.

    ZooKeeper expires sessions once per tick. With Kafka's tick of 2 s, or of 1 s, up to one tick of a failover would be
    ZooKeeper's. The limits of session timeouts, by default 2 and 20 ticks, stay those of a tick of one second.
    """
    port = free_port()
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "zoo.cfg"
    config.write_text(
        f"dataDir={directory / 'data'}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
        "admin.enableServer=false\nmaxClientCnxns=0\n4lw.commands.whitelist=*\n"
        f"tickTime={TICK_MS}\nminSessionTimeout=2000\nmaxSessionTimeout=20000\n"
    )
    command = [
        *("java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", classpath),
        *("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config)),
    ]
    with running(command, directory / "zookeeper.log") as process:
        wait_for_port(port, process, directory / "zookeeper.log")
        yield port


class Broker:
    """A running broker, kbroker or Apache Kafka."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, ready_s: float) -> None:
        self.process = process
        self.bootstrap = f"127.0.0.1:{port}"
        self.ready_s = ready_s
        """Seconds from exec to ready, with ZooKeeper running."""

    def cpu(self) -> float:
        """Return its CPU seconds so far."""
        return cpu_seconds(self.process.pid)

    def memory(self) -> float:
        """Return its resident memory in MiB."""
        return memory_mib(self.process.pid)

    def peak_memory(self) -> float:
        """Return its peak memory in MiB."""
        return peak_memory_mib(self.process.pid)


_SETTINGS = """broker.id={id}
listeners=PLAINTEXT://127.0.0.1:{port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
zookeeper.connect=127.0.0.1:{zookeeper}/{chroot}
log.dirs={logs}
num.partitions=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
log.retention.hours=1
"""


def _properties(
    directory: Path,
    broker_id: int,
    port: int,
    zookeeper_port: int,
    chroot: str,
    settings: Mapping[str, str] | None,
) -> Path:
    """Write server.properties; *settings* are others than ours."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "server.properties"
    path.write_text(
        _SETTINGS.format(
            id=broker_id,
            port=port,
            zookeeper=zookeeper_port,
            chroot=chroot,
            logs=directory / "logs",
        )
        + "".join(f"{name}={value}\n" for name, value in (settings or {}).items())
    )
    return path


@contextlib.contextmanager
def our_broker(
    directory: Path,
    zookeeper_port: int,
    *,
    chroot: str = "ours",
    broker_id: int = 1,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Broker]:
    """Run a kbroker; yield at its ready line."""
    port = free_port()
    path = _properties(directory, broker_id, port, zookeeper_port, chroot, settings)
    log = directory / "broker.log"
    started = time.monotonic()
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "kbroker", "start", str(path)],
            stdout=subprocess.PIPE,
            stderr=errors,
            stdin=subprocess.DEVNULL,
        )
    try:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], _PAGE_WAIT_S)[0]:
            raise RuntimeError(f"kbroker was not ready after {_PAGE_WAIT_S:.0f} s:\n{_tail(log)}")
        line = process.stdout.readline()
        if not line.startswith(b"READY"):
            raise RuntimeError(f"kbroker did not start ({line!r}):\n{_tail(log)}")
        yield Broker(process, port, time.monotonic() - started)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextlib.contextmanager
def apache_broker(
    directory: Path,
    zookeeper_port: int,
    jars: Path,
    *,
    chroot: str = "apache",
    broker_id: int = 1,
    heap: str = "1g",
    settings: Mapping[str, str] | None = None,
) -> Iterator[Broker]:
    """Run an Apache Kafka broker; yield when it answers a Metadata request."""
    port = free_port()
    path = _properties(directory, broker_id, port, zookeeper_port, chroot, settings)
    log = directory / "broker.log"
    started = time.monotonic()
    # G1 and the heap size are those of Kafka's start script.
    command = [
        *("java", f"-Xmx{heap}", f"-Xms{heap}", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
        *("-Dlog4j.configuration=file:/dev/null", "-cp", f"{jars}/*", "kafka.Kafka", str(path)),
    ]
    with running(command, log) as process:
        wait_for_port(port, process, log)
        _wait_for_controller(port, log)
        yield Broker(process, port, time.monotonic() - started)


def _wait_for_controller(port: int, log: Path) -> None:
    """Wait until the broker's metadata name it as the controller."""
    header = RequestHeader(ApiKey.METADATA, 1, 1, "bench")
    request = framed(messages.encode_request(header, MetadataRequest(topics=[])))
    deadline = time.monotonic() + _PAGE_WAIT_S
    while time.monotonic() < deadline:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), 5) as connection,
        ):
            connection.settimeout(5)
            connection.sendall(request)
            answer = connection.recv(1 << 16)
            if len(answer) > 4:
                _, metadata = messages.decode_response(ApiKey.METADATA, 1, answer[4:])
                if metadata.brokers and metadata.controller_id >= 0:
                    return
        time.sleep(0.01)
    raise RuntimeError(f"no controller after {_PAGE_WAIT_S:.0f} s:\n{_tail(log)}")


def fresh(directory: Path) -> Path:
    """Return *directory* emptied."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory
