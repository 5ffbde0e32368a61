"""How long the turns of three brokers' reactors are while something happens to thousands of partitions.

    python -m benchmarks.turns [--partitions 3000] [--stacks]

Theory of operation
===================
A turn is what a reactor does between two looks at its sockets; as long as it lasts the broker hears nobody. Each broker
runs under a poller that notes how much CPU time its thread spent since the last look: that does not depend on what
else the machine does, as the clock on the wall would. Then: a topic of so many partitions, a broker killed and started
again, five hundred of them reassigned, the controller killed, the topic deleted. Printed is, for each event, the
longest turn of each broker in ms of CPU, and how often one took more than 50; * marks the controller. What a broker
does before it is registered (imports: 0.4 s in one turn, when nobody knows it yet) counts in the turns of its return.

Of the controller's death also what is ours: the time from the moment when ZooKeeper drops the ephemeral znodes of the
dead (seen by a session of our own, watching) until every partition has a leader in the metadata of all who live.

With --stacks the CPU time of long turns is sampled, and the lines of ours that had most of it are printed.
"""

from __future__ import annotations

import argparse
import collections
import json
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.asking import Asking
from benchmarks.clusters import BROKERS, Trio, three
from benchmarks.contenders import create_replicated, delete_topic, zookeeper_classpath
from benchmarks.processes import zookeeper
from benchmarks.replicated_scale import rotated

LONG_MS = 50.0
NOTED_MS = 10.0
_SAMPLE_S = 0.002


# -- in the broker's process -----------------------------------------------------------------


class _Poller:
    """The reactor's epoll object, which notes the CPU time between two polls."""

    def __init__(self, poller: Any, path: Path, *, stacks: bool) -> None:
        self._poller = poller
        self._file = path.open("a", buffering=1)
        self._began = time.thread_time()
        self._samples: collections.Counter[str] = collections.Counter()
        if stacks:
            signal.signal(signal.SIGPROF, self._sample)
            signal.setitimer(signal.ITIMER_PROF, _SAMPLE_S, _SAMPLE_S)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._poller, name)

    def poll(self, *arguments: Any) -> Any:
        took = (time.thread_time() - self._began) * 1000
        if took > NOTED_MS:
            noted = {"at": time.monotonic(), "ms": took, "stacks": self._samples.most_common(12)}
            self._file.write(json.dumps(noted) + "\n")
        self._samples.clear()
        try:
            return self._poller.poll(*arguments)
        finally:
            self._began = time.thread_time()

    def _sample(self, _number: int, frame: FrameType | None) -> None:
        while frame is not None:
            name = frame.f_code.co_filename
            if "/kbroker/" in name or "/kclient/" in name:
                place = "/".join(name.rsplit("/", 2)[1:])
                self._samples[f"{place}:{frame.f_lineno} {frame.f_code.co_name}"] += 1
            frame = frame.f_back


def broker(path: str, stacks: str, *arguments: str) -> None:
    """Run the broker's command line in this process, its turns noted in *path*."""
    from twisted.internet import epollreactor

    from kbroker.__main__ import main

    def poller(size: int) -> _Poller:
        return _Poller(select.epoll(size), Path(path), stacks=stacks == "stacks")

    epollreactor.epoll = poller

    sys.argv = ["kbroker", *arguments]
    main()


# -- what happens to them --------------------------------------------------------------------


class Turns:
    """The turns of each broker since they were last told."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._since = time.monotonic()

    def path(self, broker_id: int) -> Path:
        """Return where a broker notes them."""
        return self._directory / f"turns-{broker_id}"

    def tell(self, what: str, seconds: float, controller: int) -> None:
        """Print what happened since the last time."""
        time.sleep(1.0)
        since, self._since = self._since, time.monotonic()
        told = []
        for path in sorted(self._directory.glob("turns-*")):
            noted = [json.loads(line) for line in path.read_text().splitlines()]
            noted = [each for each in noted if each["at"] >= since]
            noted.sort(key=lambda each: -each["ms"])
            broker_id = int(path.name.rpartition("-")[2])
            longest = noted[0]["ms"] if noted else 0.0
            many = sum(each["ms"] > LONG_MS for each in noted)
            mark = "*" if broker_id == controller else " "
            told.append(f"{broker_id}{mark} {longest:6.1f} ({many})")
            for each in noted[:2]:
                for place, count in each["stacks"]:
                    print(f"      {broker_id}: {each['ms']:6.1f} ms {count:4d} {place}")
        print(f"{what:32s} {seconds:6.2f} s   " + "   ".join(told), flush=True)


class Scene:
    """Three brokers of ours, and what happens to them. *client* is a kazoo client of their chroot."""

    def __init__(self, trio: Trio, client: Any, turns: Turns) -> None:
        self._trio = trio
        self._client = client
        self._turns = turns
        self._controller = self._who_controls(1)

    def play(self, partitions: int) -> None:
        """Have it all happen, once."""
        self._turns.tell("start", 0, self._controller)
        took = create_replicated(self._trio.bootstrap, "many", rotated(partitions))
        self._turns.tell("creation", took, self._controller)
        self._death_and_return()
        self._reassignment(min(partitions, 500))
        self._death_of_the_controller()
        self._deletion()

    def _death_and_return(self) -> None:
        victim = 3 if self._controller != 3 else 2
        self._trio[victim].kill()
        took = self._until(victim, lambda leader, _isr: leader not in (victim, -1))
        self._turns.tell("death", took, self._controller)
        self._return(victim, "return")

    def _return(self, broker_id: int, what: str) -> None:
        self._trio[broker_id].start()
        self._trio[broker_id].wait_until_up()
        took = self._until(broker_id, lambda _leader, isr: len(isr) == BROKERS[-1])
        self._turns.tell(what, took, self._controller)

    def _reassignment(self, count: int) -> None:
        """Give so many partitions their replicas in another order, and another leader with it."""
        path = "/admin/reassign_partitions"
        for replicas in ([2, 1], [2, 1, 3]):
            moved = [{"topic": "many", "partition": p, "replicas": replicas} for p in range(count)]
            began = time.monotonic()
            self._client.create(path, json.dumps({"version": 1, "partitions": moved}).encode())
            while self._client.exists(path):
                time.sleep(0.02)
            took = time.monotonic() - began
            self._turns.tell(f"{count} to {len(replicas)} replicas", took, self._controller)

    def _death_of_the_controller(self) -> None:
        dead = self._controller
        gone: dict[str, float] = {}
        for path in ("/controller", f"/brokers/ids/{dead}"):
            self._client.exists(path, lambda event: gone.setdefault(event.path, time.monotonic()))
        self._trio[dead].kill()
        killed = time.monotonic()
        while len(gone) < 2:
            time.sleep(0.001)
        self._until(dead, lambda leader, _isr: leader not in (dead, -1))
        led = time.monotonic()
        self._controller = self._who_controls(next(b for b in BROKERS if b != dead))
        self._turns.tell("death of the controller", led - killed, self._controller)
        dropped = min(gone.values())
        print(f"   ZooKeeper's: {dropped - killed:.2f} s; ours: {(led - dropped) * 1000:.0f} ms")
        self._return(dead, "the former controller is back")

    def _deletion(self) -> None:
        began = time.monotonic()
        delete_topic(self._trio.bootstrap, "many")
        while self._client.exists("/brokers/topics/many"):
            time.sleep(0.02)
        self._turns.tell("deletion", time.monotonic() - began, self._controller)

    def _who_controls(self, broker_id: int) -> int:
        with Asking(self._trio[broker_id].port) as asked:
            found: int = asked.metadata([]).controller_id
        return found

    def _until(self, but: int, holds: Callable[[int, list[int]], bool]) -> float:
        """Ask all brokers except *but* until *holds* of every leader and ISR; return the seconds."""
        began = time.monotonic()
        left = [self._trio[broker_id].port for broker_id in BROKERS if broker_id != but]
        while left:
            left = [port for port in left if not self._holds(port, holds)]
            time.sleep(0.02)
        return time.monotonic() - began

    def _holds(self, port: int, holds: Callable[[int, list[int]], bool]) -> bool:
        with Asking(port) as asked:
            (found,) = asked.metadata(["many"]).topics
        return all(holds(each.leader_id, each.isr_nodes) for each in found.partitions)


def run(partitions: int, *, stacks: bool) -> None:
    """Do all of it once."""
    from kazoo.client import KazooClient

    with tempfile.TemporaryDirectory(prefix="kbroker-turns-") as name:
        directory = Path(name)
        turns = Turns(directory)

        def wrapped(home: Path) -> list[str]:
            noted = str(turns.path(int(home.name)))
            return ["-m", "benchmarks.turns", "broker", noted, "stacks" if stacks else "-"]

        with (
            zookeeper(directory / "zk", zookeeper_classpath()) as port,
            three("ours", directory / "ours", port, None, program=wrapped) as trio,
        ):
            client = KazooClient(f"127.0.0.1:{port}/ours")
            client.start()
            Scene(trio, client, turns).play(partitions)
            client.stop()
            client.close()


def main() -> None:
    """Measure, or be one of the brokers."""
    if sys.argv[1:2] == ["broker"]:
        broker(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.turns", description=__doc__)
    parser.add_argument("--partitions", type=int, default=3000)
    parser.add_argument("--stacks", action="store_true", help="say where the time went")
    arguments = parser.parse_args()
    run(arguments.partitions, stacks=arguments.stacks)


if __name__ == "__main__":
    main()
