"""The files of kbroker/ that a flow passes, in the order of the first calls: `python -m tests.simulation.flow fetch`.

A script runs on three simulated brokers. Every call of a Python function is recorded, by turn of a broker's reactor.
The turns of a flow are those in its window of time that pass one of its files. Its request is the second one of its
kind, so that the first use of a handler, with its imports, is not counted.

Left out: kclient/ (codecs, connections), znodes, configuration, the broker's environment (`app/world.py`). The
simulation has a network of its own, so the transports are missing, too. Listeners that a flow calls are counted.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from tests.simulation.node import BrokerProcess
from tests.simulation.run import simulation_of
from tests.simulation.script import parse

KBROKER = f"{Path(__file__).parents[2]}/kbroker/"
LEFT_OUT = ("app/world.py", "config/", "zk/znodes/")

TOPICS = """# seed 5, brokers 3, disks 1
3.0 create a 1
5.0 produce a 0 all 1
6.5 create b 1
8.0 produce a 0 all 1
12.0 kill 2
30.0 start 2
"""
"""The broker that is killed is not the controller."""
GROUPS = """# seed 5, brokers 3, disks 1
1.0 create a 1
1.1 groups
4.0 member g m1
5.0 solo s 1
8.0 member i m1
20.0 solo s 1
"""

CONTROLLER = ("controller/", "api04", "api05", "api06")
FETCH = ("api01", "replica/replica_fetcher", "replica/fetcher_state")


class Flow(NamedTuple):
    """A script, and which of its turns are the flow: they pass one of *files* and none of *others*."""

    script: str
    begin: float
    end: float
    files: tuple[str, ...]
    others: tuple[str, ...] = ()


FLOWS = {
    "produce": Flow(TOPICS, 8.0, 9.0, ("api00",)),
    # From the append to the next fetch of one follower.
    "fetch": Flow(TOPICS, 8.003, 8.016, FETCH, ("api00",)),
    "failover": Flow(TOPICS, 12.0, 20.0, CONTROLLER, FETCH[:1]),
    "create-topic": Flow(
        TOPICS, 6.5, 7.9, (*CONTROLLER, "api19", "metadata/admin_manager"), FETCH[:1]
    ),
    "join-group": Flow(
        GROUPS, 8.0, 9.0, ("coordinator/", "api10", "api11", "api14"), (*FETCH, "api12")
    ),
    "commit-offset": Flow(
        GROUPS,
        20.0,
        20.9,
        ("api08", "group/offset_writer", "coordinator/shard_fence"),
        (*FETCH, "api12"),
    ),
}


class Turn(NamedTuple):
    """One turn of a broker's reactor, with the file of each call."""

    time: float
    calls: list[str]

    def passes(self, parts: tuple[str, ...]) -> bool:
        """Whether a function in a file with one of these names was called."""
        return any(part in name for name in self.calls for part in parts)


def turns_of(script: str) -> list[Turn]:
    """Run *script*; return the turns of all brokers in which code of kbroker/ was called."""
    made = simulation_of(parse(script))
    step = made.scheduler.step
    turns: list[Turn] = []
    calls: list[str] = []

    def called(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(KBROKER):
            name = frame.f_code.co_filename.removeprefix(KBROKER)
            if not name.startswith(LEFT_OUT):
                calls.append(name)

    def traced(until: float) -> Any:
        calls.clear()
        sys.setprofile(called)
        try:
            process = step(until)
        finally:
            sys.setprofile(None)
        if isinstance(process, BrokerProcess) and calls:
            turns.append(Turn(made.scheduler.now, list(calls)))
        return process

    made.scheduler.step = traced  # type: ignore[method-assign]  # of this simulation
    result = made.run()
    assert result.failure is None, result.failure
    return turns


def files_of(flow: Flow) -> list[str]:
    """Return the files that *flow* passes, in the order of their first call."""
    chosen = [
        turn
        for turn in turns_of(flow.script)
        if flow.begin <= turn.time <= flow.end
        and turn.passes(flow.files)
        and not turn.passes(flow.others)
    ]
    return list(dict.fromkeys(name for turn in chosen for name in turn.calls))


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.simulation.flow", description=__doc__)
    parser.add_argument("flow", choices=sorted(FLOWS))
    sys.stdout.write("\n".join(files_of(FLOWS[parser.parse_args().flow])) + "\n")


if __name__ == "__main__":
    main()
