"""ZooKeeper from PySpark's jars serves, and ends with the process that started it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from kbroker.local import zookeeper
from kbroker.local.processes import ProcessIdentity
from tests.kit.zookeeper import Ensemble


def test_the_test_server_serves_alone(zookeeper_server: Ensemble) -> None:
    assert zookeeper.mode(zookeeper_server.servers[0]) == "standalone"


@pytest.mark.slow
def test_three_servers_elect_a_leader_and_survive_its_death(tmp_path: Path) -> None:
    ensemble = Ensemble(tmp_path, servers=3)
    ensemble.start()
    try:
        first = ensemble.leader()
        ensemble.kill(first)
        assert ensemble.leader() != first
    finally:
        ensemble.kill()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's PR_SET_PDEATHSIG")
def test_a_killed_test_run_leaves_no_zookeeper_behind(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from tests.kit.zookeeper import Ensemble\n"
        "e = Ensemble(Path(sys.argv[1])); e.start(); print(e._processes[1].pid, flush=True)\n"
        "time.sleep(60)"
    )
    run = subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE)
    with run:
        assert run.stdout is not None
        server = ProcessIdentity.of(int(run.stdout.readline()))
        assert server is not None
        assert server.alive
        run.kill()
    deadline = time.monotonic() + 5
    while server.alive:
        assert time.monotonic() < deadline, "the JVM outlived the run that started it"
        time.sleep(0.02)
