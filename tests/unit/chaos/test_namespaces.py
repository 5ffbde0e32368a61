"""Network namespaces of a chaos run: real hosts, real iptables. Needs root."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import namespaces

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.slow

PLAY = """
import json, subprocess, sys
from tests.chaos import namespaces
namespaces.enter("{module}", sys.argv[1:])
network = namespaces.Namespaces()
one, two = network.host("broker-1"), network.host("zk-1")
READ = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('0.0.0.0', 9)); "
READ += "s.settimeout({{}}); print('open', flush=True); print(s.recv(9).decode())"
SEND = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'arrived', ('{{}}', 9))"

def arrives(source, target, expected=True):  # what is dropped never arrives; what is not may take its time
    reader = subprocess.Popen(
        [*target.prefix, sys.executable, "-c", READ.format(10 if expected else 0.5)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )
    assert reader.stdout.readline() == "open\\n"
    subprocess.run([*source.prefix, sys.executable, "-c", SEND.format(target.address)], check=True)
    return reader.communicate()[0].strip() == "arrived"

found = {{"before": [arrives(one, two), arrives(two, one)]}}
network.hold(("broker-1", "zk"))
found["held"] = [arrives(one, two, False), arrives(two, one)]
network.cut("broker-1", "zk")
found["cut"] = [arrives(one, two, False), arrives(two, one, False)]
network.heal()
found["healed"] = [arrives(one, two), arrives(two, one)]
network.close()
print(json.dumps(found))
"""


def test_packets_are_dropped_in_the_directions_that_are_cut_and_no_other(tmp_path: Path) -> None:
    if reason := namespaces.missing():
        pytest.skip(reason)
    (tmp_path / "play_packets.py").write_text(PLAY.format(module="play_packets"))
    done = subprocess.run(
        [sys.executable, "-m", "play_packets"],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "before": [True, True],
        "held": [False, True],
        "cut": [False, False],
        "healed": [True, True],
    }
