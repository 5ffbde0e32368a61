"""Single members of local clusters, brokers and ZooKeeper servers: their logs, and signals to their processes.

A member is named as a person types it: ``2`` is broker 2, ``zk`` the only ZooKeeper server, ``zk2`` server 2.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from kbroker.local.processes import ProcessIdentity
from kbroker.local.state import ClusterState, Directory
from kbroker.local.zookeeper import LocalError

_POLL_S = 0.1
_END_S = 5.0
_BLOCK = 1 << 16
_SERVER = re.compile(r"(?:zk|zookeeper)-?(\d*)")


class Member(NamedTuple):
    """A broker or a ZooKeeper server."""

    label: str
    process: ProcessIdentity | None
    log: Path

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.alive


def cluster_of(directory: Directory, name: str | None) -> ClusterState:
    """Return the cluster *name*, or the only one. Raise LocalError."""
    clusters = directory.clusters()
    chosen = [each for each in clusters if name in (None, each.name)]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(each.name for each in clusters)
    if not chosen:
        raise LocalError(
            f"{directory.path} has no cluster{f' {name} (there: {names or None})' if name else ''};"
            f" start one with:\n    {directory.command('up')}"
        )
    raise LocalError(f"{directory.path} has several clusters: choose one by --name ({names})")


def members(directory: Directory, cluster: ClusterState, words: Sequence[str]) -> list[Member]:
    """Return the members that *words* name; all brokers of *cluster* without words. Raise LocalError."""
    brokers = {
        str(each.broker_id): Member(
            f"broker {each.broker_id}", each.process, directory.broker_log(cluster.name, each)
        )
        for each in cluster.brokers
    }
    servers = {
        str(each.server.number): Member(
            f"zookeeper {each.server.number}",
            each.process,
            directory.server_home(each.server) / "zookeeper.log",
        )
        for each in directory.ensemble()
    }
    found = []
    for word in words or brokers:
        of_server = _SERVER.fullmatch(word)
        if of_server is None:
            member = brokers.get(word.removeprefix("broker-"))
        elif of_server[1] or len(servers) == 1:
            member = servers.get(of_server[1] or next(iter(servers)))
        else:
            member = None
        if member is None:
            known = ", ".join([*brokers, *(f"zk{number}" for number in servers)])
            raise LocalError(f"{cluster.name} has no member {word!r}; its members are {known}")
        found.append(member)
    return found


def send_signal(member: Member, number: signal.Signals) -> None:
    """Send a signal to a member that runs; after SIGKILL, wait for its end. Raise LocalError if it does not run."""
    process = member.process
    if process is None or not process.signal(number):
        raise LocalError(f"{member.label} does not run")
    deadline = time.monotonic() + _END_S
    while number == signal.SIGKILL and process.alive and time.monotonic() < deadline:
        time.sleep(0.01)


# --- logs


def last_lines(path: Path, count: int) -> tuple[list[bytes], int]:
    """Return the last *count* whole lines of a log, and the position after them; none if there is no log."""
    try:
        with path.open("rb") as file:
            end = position = file.seek(0, 2)
            data = b""
            while position and data.count(b"\n") <= count:
                step = min(_BLOCK, position)
                position -= step
                file.seek(position)
                data = file.read(step) + data
    except FileNotFoundError:
        return [], 0
    whole = data[: data.rfind(b"\n") + 1]
    lines = whole.splitlines()
    if position:
        lines = lines[1:]
    return lines[-count:] if count else [], end - (len(data) - len(whole))


def follow(
    chosen: Sequence[Member], positions: Sequence[int], wait: Callable[[float], None] = time.sleep
) -> Iterator[tuple[Member, bytes]]:
    """Yield new whole lines of the logs, without end; a truncated log is read from its start."""
    files: list[BinaryIO | None] = [None] * len(chosen)
    ends = list(positions)
    try:
        while True:
            found = False
            for n, member in enumerate(chosen):
                try:
                    size = member.log.stat().st_size
                    files[n] = file = files[n] or member.log.open("rb")
                except FileNotFoundError:
                    continue
                ends[n] = ends[n] if size >= ends[n] else 0
                file.seek(ends[n])
                whole, newline, _ = file.read().rpartition(b"\n")
                ends[n] += len(whole) + len(newline)
                for line in whole.splitlines() if newline else ():
                    found = True
                    yield member, line
            if not found:
                wait(_POLL_S)
    finally:
        for each in files:
            if each is not None:
                each.close()
