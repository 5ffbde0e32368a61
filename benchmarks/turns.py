"""Measures the reactor turns of three brokers during operations on thousands of partitions.

    python -m benchmarks.turns [--partitions 3000] [--stacks]

Theory of operation
===================
A turn is the work of a reactor between two polls of its sockets; during a turn a broker answers no requests. Each
broker runs with a poller that records the CPU time of the reactor thread since the last poll. CPU time does not depend
on other load on the machine, unlike wall-clock time. The operations are: create a topic of so many partitions, kill
and restart a broker, reassign five hundred partitions, kill the controller, delete the topic. For each operation the
program prints the longest turn of each broker in ms of CPU, and the number of turns above 50 ms; * marks the
controller. Turns before a broker's registration (imports: 0.4 s in one turn, without clients) count in its restart.

For the death of the controller it also prints kbroker's part of the failover. This is the time from the removal of the
dead broker's ephemeral znodes, seen by a ZooKeeper watch, until every partition has a leader in the metadata of all
live brokers.

Small requests to other partitions are measured meanwhile (`benchmarks/monitors.py`). For the longest one of each
operation the program prints the broker's state at that time: computing, collecting garbage, waiting for a processor, or
blocked in a system call or by the interpreter's lock.

With --stacks the CPU time of long turns is sampled, and the most frequent lines of our code are printed.
"""

from __future__ import annotations

import argparse
import collections
import gc
import json
import os
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.clusters import BROKERS, ThreeBrokers, start_three
from benchmarks.contenders import create_replicated, delete_topic, zookeeper_classpath
from benchmarks.monitors import Monitor
from benchmarks.plain_client import PlainClient, until_all_report
from benchmarks.processes import zookeeper
from benchmarks.replicated_scale import SAMPLED, SAMPLED_PARTITIONS, WATCHED, rotated

LONG_MS = 50.0
NOTED_MS = 10.0
_SAMPLE_S = 0.002


# -- in the broker's process -----------------------------------------------------------------


class _Spent:
    """The time of the reactor's thread so far, in ms."""

    __slots__ = ("at", "collecting", "cpu", "delayed")

    def __init__(self, schedule: int, collecting: float) -> None:
        self.at = time.monotonic()
        self.cpu = time.thread_time() * 1000
        # Nanoseconds on a processor, nanoseconds ready to run and waiting for one, and how often.
        self.delayed = int(os.pread(schedule, 64, 0).split()[1]) / 1e6
        self.collecting = collecting


class _Poller:
    """The reactor's epoll object; records the thread's time between two polls, and how late it woke up."""

    def __init__(self, poller: Any, path: Path, *, stacks: bool) -> None:
        self._poller = poller
        self._file = path.open("a", buffering=1)
        thread = threading.get_native_id()
        self._schedule = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)
        self._thread = threading.get_ident()
        self._collecting = self._collection_began = 0.0
        gc.callbacks.append(self._collection)
        self._began = _Spent(self._schedule, 0.0)
        self._late = 0.0
        self._samples: collections.Counter[str] = collections.Counter()
        if stacks:
            signal.signal(signal.SIGPROF, self._sample)
            signal.setitimer(signal.ITIMER_PROF, _SAMPLE_S, _SAMPLE_S)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._poller, name)

    def poll(self, *arguments: Any) -> Any:
        began, now = self._began, _Spent(self._schedule, self._collecting)
        noted = {
            "at": now.at,
            "ms": now.cpu - began.cpu,
            "took": (now.at - began.at) * 1000,
            "delayed": now.delayed - began.delayed,
            "collecting": now.collecting - began.collecting,
            "late": self._late,
            "stacks": self._samples.most_common(12),
        }
        if max(noted["ms"], noted["took"], noted["late"]) > NOTED_MS:
            self._file.write(json.dumps(noted) + "\n")
        self._samples.clear()
        try:
            return self._poller.poll(*arguments)
        finally:
            self._began = _Spent(self._schedule, self._collecting)
            self._late = self._began.delayed - now.delayed

    def _collection(self, phase: str, _info: object) -> None:
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._collection_began = time.thread_time()
        else:
            self._collecting += (time.thread_time() - self._collection_began) * 1000

    def _sample(self, _number: int, frame: FrameType | None) -> None:
        while frame is not None:
            name = frame.f_code.co_filename
            if "/kbroker/" in name or "/kclient/" in name:
                place = "/".join(name.rsplit("/", 2)[1:])
                self._samples[f"{place}:{frame.f_lineno} {frame.f_code.co_name}"] += 1
            frame = frame.f_back


def broker(path: str, stacks: str, *arguments: str) -> None:
    """Run the broker's command line in this process, with its turns recorded in *path*."""
    from twisted.internet import epollreactor

    from kbroker.__main__ import main

    def poller(size: int) -> _Poller:
        return _Poller(select.epoll(size), Path(path), stacks=stacks == "stacks")

    epollreactor.epoll = poller

    sys.argv = ["kbroker", *arguments]
    main()


# -- the operations --------------------------------------------------------------------------


class Turns:
    """The turns of each broker since the last report."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._since = time.monotonic()

    def path(self, broker_id: int) -> Path:
        """Return the file in which a broker records them."""
        return self._directory / f"turns-{broker_id}"

    def report(self, what: str, seconds: float, controller: int, seen: dict[str, float]) -> None:
        """Print the turns since the last report; *seen* are the figures of the small requests."""
        since, self._since = self._since, time.monotonic()
        reported = []
        for path in sorted(self._directory.glob("turns-*")):
            noted = [json.loads(line) for line in path.read_text().splitlines()]
            noted = [each for each in noted if each["at"] >= since]
            noted.sort(key=lambda each: -each["ms"])
            broker_id = int(path.name.rpartition("-")[2])
            longest = noted[0]["ms"] if noted else 0.0
            many = sum(each["ms"] > LONG_MS for each in noted)
            mark = "*" if broker_id == controller else " "
            reported.append(f"{broker_id}{mark} {longest:6.1f} ({many})")
            for each in noted[:2]:
                for place, count in each["stacks"]:
                    print(f"      {broker_id}: {each['ms']:6.1f} ms {count:4d} {place}")
        print(f"{what:32s} {seconds:6.2f} s   " + "   ".join(reported), flush=True)
        if seen:
            print(f"   small requests: p99 {seen['p99_ms']:.1f} ms, longest {seen['max_ms']:.1f}")
            self._explain(seen)

    def _explain(self, seen: dict[str, float]) -> None:
        """Print the state of the slowest broker during its slowest request."""
        began, broker_id = seen["longest_began"], BROKERS[int(seen["longest_at"])]
        ended = began + seen["max_ms"] / 1000
        for line in self.path(broker_id).read_text().splitlines():
            each = json.loads(line)
            if each["at"] < began or each["at"] - (each["took"] + each["late"]) / 1000 > ended:
                continue
            blocked = each["took"] - each["ms"] - each["delayed"]
            print(
                f"      broker {broker_id} meanwhile, until {(each['at'] - began) * 1000:.0f} ms after: a turn of "
                f"{each['took']:.0f} ms: CPU {each['ms']:.0f} (collector {each['collecting']:.0f}), waiting for "
                f"a processor {each['delayed']:.0f}, blocked {blocked:.0f}; woken {each['late']:.0f} ms late"
            )


class Scenario:
    """Three kbrokers and the operations on them. *client* is a kazoo client of their chroot."""

    def __init__(self, cluster: ThreeBrokers, client: Any, turns: Turns) -> None:
        self._cluster = cluster
        self._client = client
        self._turns = turns
        self._controller = self._find_controller(1)
        self._watch: Monitor | None = None

    def play(self, partitions: int) -> None:
        """Run all operations once."""
        create_replicated(self._cluster.bootstrap, WATCHED, [[1], [2], [3]])
        create_replicated(self._cluster.bootstrap, SAMPLED, rotated(SAMPLED_PARTITIONS))
        self._report("start", 0)
        took = create_replicated(self._cluster.bootstrap, "many", rotated(partitions))
        self._report("creation", took)
        self._crash_and_restart()
        self._reassignment(min(partitions, 500))
        self._crash_of_the_controller()
        self._deletion()

    def _report(self, what: str, seconds: float) -> None:
        """Print the figures of an operation, and start to measure the next one."""
        time.sleep(1.0)
        seen = self._watch.end() if self._watch is not None else {}
        self._turns.report(what, seconds, self._controller, seen)
        self._watch = Monitor("stall", WATCHED, *(self._cluster[b].port for b in BROKERS))

    def close(self) -> None:
        """Stop measuring."""
        if self._watch is not None:
            self._watch.end()

    def _crash_and_restart(self) -> None:
        victim = 3 if self._controller != 3 else 2
        self._cluster[victim].kill()
        took = self._until(victim, lambda leader, _isr: leader != victim)
        self._report("death", took)
        self._restart(victim, "return")

    def _restart(self, broker_id: int, what: str) -> None:
        self._cluster[broker_id].start()
        self._cluster[broker_id].wait_until_up()
        took = self._until(broker_id, lambda _leader, isr: len(isr) == BROKERS[-1])
        self._report(what, took)

    def _reassignment(self, count: int) -> None:
        """Reassign so many partitions with their replicas in another order, so that leaders change."""
        path = "/admin/reassign_partitions"
        for replicas in ([2, 1], [2, 1, 3]):
            moved = [{"topic": "many", "partition": p, "replicas": replicas} for p in range(count)]
            began = time.monotonic()
            self._client.create(path, json.dumps({"version": 1, "partitions": moved}).encode())
            while self._client.exists(path):
                time.sleep(0.02)
            took = time.monotonic() - began
            self._report(f"{count} to {len(replicas)} replicas", took)

    def _crash_of_the_controller(self) -> None:
        dead = self._controller
        deleted: dict[str, float] = {}
        for path in ("/controller", f"/brokers/ids/{dead}"):
            self._client.exists(
                path, lambda event: deleted.setdefault(event.path, time.monotonic())
            )
        self._cluster[dead].kill()
        killed = time.monotonic()
        while len(deleted) < 2:
            time.sleep(0.001)
        self._until(dead, lambda leader, _isr: leader != dead)
        led = time.monotonic()
        self._controller = self._find_controller(next(b for b in BROKERS if b != dead))
        self._report("death of the controller", led - killed)
        dropped = min(deleted.values())
        print(f"   ZooKeeper's: {dropped - killed:.2f} s; ours: {(led - dropped) * 1000:.0f} ms")
        self._restart(dead, "the former controller is back")

    def _deletion(self) -> None:
        began = time.monotonic()
        delete_topic(self._cluster.bootstrap, "many")
        while self._client.exists("/brokers/topics/many"):
            time.sleep(0.02)
        self._report("deletion", time.monotonic() - began)

    def _find_controller(self, broker_id: int) -> int:
        with PlainClient(self._cluster[broker_id].port) as asked:
            found: int = asked.metadata([]).controller_id
        return found

    def _until(self, but: int, holds: Callable[[int, list[int]], bool]) -> float:
        """Poll all brokers except *but* until *holds* for every leader and ISR; return the seconds."""
        ports = [self._cluster[broker_id].port for broker_id in BROKERS if broker_id != but]
        return until_all_report(ports, "many", holds, sample=SAMPLED)


def run(partitions: int, *, stacks: bool) -> None:
    """Run the scenario once."""
    from kazoo.client import KazooClient

    with tempfile.TemporaryDirectory(prefix="kbroker-turns-") as name:
        directory = Path(name)
        turns = Turns(directory)

        def wrapped(home: Path) -> list[str]:
            noted = str(turns.path(int(home.name)))
            return ["-m", "benchmarks.turns", "broker", noted, "stacks" if stacks else "-"]

        with (
            zookeeper(directory / "zk", zookeeper_classpath()) as port,
            start_three("ours", directory / "ours", port, None, program=wrapped) as cluster,
        ):
            client = KazooClient(f"127.0.0.1:{port}/ours")
            client.start()
            scenario = Scenario(cluster, client, turns)
            scenario.play(partitions)
            scenario.close()
            client.stop()
            client.close()


def main() -> None:
    """Measure, or run one of the brokers."""
    if sys.argv[1:2] == ["broker"]:
        broker(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.turns", description=__doc__)
    parser.add_argument("--partitions", type=int, default=3000)
    parser.add_argument("--stacks", action="store_true", help="print where the time goes")
    arguments = parser.parse_args()
    run(arguments.partitions, stacks=arguments.stacks)


if __name__ == "__main__":
    main()
