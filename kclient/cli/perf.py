"""`kclient perf`: how many records per second a cluster takes and gives, and how late."""

from __future__ import annotations

import click

from kclient.cli.help import Group
from kclient.cli.perf_consume import consume
from kclient.cli.perf_latency import latency
from kclient.cli.perf_produce import produce


@click.group(cls=Group)
def perf() -> None:
    """Measure produce and consume rates, and latencies.

    The figures are those of Apache's kafka-producer-perf-test, kafka-consumer-perf-test and EndToEndLatency. A MB is
    1,048,576 bytes.
    """


perf.add_command(consume)
perf.add_command(latency)
perf.add_command(produce)
