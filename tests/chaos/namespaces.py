"""Network namespaces joined by a bridge: each host of a run has its own address, and iptables drops its packets.

The switchboard (`kbroker.testing.switchboard`) cuts a connection that it forwards. Here there is nothing between the
hosts but the kernel: a dropped packet is retransmitted, connections that are cut stay open at both ends until a timeout
ends them, and a cut of one direction takes the acknowledgements of the other with it.

``python -m tests.chaos`` moves itself into a namespace of its own before such a run (`enter`), so the bridge and all
addresses exist for this run only and no packet can leave the machine. Names are those of the switchboard: ``broker-N``,
``zk`` (all ZooKeeper servers), ``zk-N`` (one of them), ``client`` (this process). Needs root and iptables.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence

from kbroker.testing.hosts import Host
from tests.chaos.skipped import Skipped

BRIDGE = "kbroker0"
NETWORK = "198.51.100"  # TEST-NET-2 (RFC 5737): documentation addresses, routed nowhere
CLIENT = "client"
_INSIDE = "KBROKER_CHAOS_NAMESPACE"


def missing() -> str:
    """Return why this machine cannot make namespaces and drop packets; empty if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "iptables", "unshare"):
        if shutil.which(tool) is None:
            return f"there is no {tool} (Debian: apt-get install iproute2 iptables util-linux)"
    probe = ["unshare", "-n", "iptables", "-A", "INPUT", "-s", f"{NETWORK}.2", "-j", "DROP"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return f"iptables does not work here: {done.stderr.strip()}" if done.returncode else ""


def enter(module: str, arguments: Sequence[str]) -> None:
    """Replace this process by ``python -m module`` in a namespace of its own, unless it is in one already."""
    if os.environ.get(_INSIDE):
        return
    if problem := missing():
        raise Skipped(problem)
    os.environ[_INSIDE] = "yes"
    os.execvp("unshare", ["unshare", "-n", sys.executable, "-m", module, *arguments])


class Namespaces:
    """The hosts of one run, with the interface of the switchboard for what is cut and healed."""

    def __init__(self) -> None:
        if not os.environ.get(_INSIDE):
            raise Skipped("run `python -m tests.chaos`, which makes a network namespace for itself")
        self._hosts: dict[str, Host] = {}
        self._namespaces: dict[str, str] = {}
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", BRIDGE, "type", "bridge")
        _run("ip", "address", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
        _run("ip", "link", "set", BRIDGE, "up")
        self._hosts[CLIENT] = Host(f"{NETWORK}.1")

    def host(self, name: str) -> Host:
        """Return the host called *name*; make it if there is none."""
        if name not in self._hosts:
            self._hosts[name] = self._make(name)
        return self._hosts[name]

    def _make(self, name: str) -> Host:
        namespace = f"kbroker-{os.getpid()}-{name}"
        address = f"{NETWORK}.{len(self._hosts) + 10}"
        outer = f"to-{name}"[:15]
        _run("ip", "netns", "add", namespace)
        self._namespaces[name] = namespace
        _run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _run("ip", "link", "set", outer, "master", BRIDGE, "up")
        _run("ip", "-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _run("ip", "-n", namespace, "link", "set", device, "up")
        return Host(address, ("ip", "netns", "exec", namespace))

    def hold(self, *directions: tuple[str, str]) -> None:
        """Drop all packets from the first host of each pair to the second."""
        for source, target in directions:
            for sender in self._all(source):
                for receiver in self._all(target):
                    self._drop(sender, receiver)

    def cut(self, one: str, *others: str) -> None:
        """Drop all packets between *one* and each of *others*, in both directions."""
        for other in others:
            self.hold((one, other), (other, one))

    def heal(self) -> None:
        """Drop nothing any more."""
        for name in [*self._namespaces, CLIENT]:
            _run(*self._hosts[name].prefix, "iptables", "-F")

    def close(self) -> None:
        """Remove all hosts. Their processes have ended."""
        for namespace in self._namespaces.values():
            _run("ip", "netns", "delete", namespace)
        self._namespaces.clear()
        _run("ip", "link", "delete", BRIDGE)

    def _all(self, name: str) -> Iterable[str]:
        """Return the hosts that *name* stands for."""
        if name == "zk":
            return [one for one in self._hosts if one.startswith("zk-")]
        return [name]

    def _drop(self, source: str, target: str) -> None:
        if source != target:
            _run(
                *self._hosts[target].prefix,
                "iptables", "-A", "INPUT", "-s", self._hosts[source].address, "-j", "DROP",
            )  # fmt: skip


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stderr.strip()}")
