"""Run one ZooKeeper server in the foreground: clients at port 2181, data in /data."""

import os
from pathlib import Path

from kbroker.local.zookeeper import Server, command, write_configuration

server = Server(1, 2181, 2888, 3888, "0.0.0.0")
arguments = command(write_configuration(Path("/data"), server, [server], tick_ms=2000))
os.execv(arguments[0], arguments)
