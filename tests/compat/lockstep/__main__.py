"""Play one seed, and print every difference that is not meant. Exit code 1: there was one."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from kbroker.testing.cluster import KafkaCluster, session_zookeeper
from kclient.wire.versions import ApiKey
from tests.compat.lockstep.play import BROKER_SETTINGS, play
from tests.kit.apache_kafka import running_kafka


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compat.lockstep", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--api", action="append", choices=[api.name for api in ApiKey], default=[])
    given = parser.parse_args()
    apis = [ApiKey[name] for name in given.api]
    with (
        tempfile.TemporaryDirectory() as home,
        KafkaCluster(brokers=1, settings=BROKER_SETTINGS) as cluster,
    ):
        chroot = f"{session_zookeeper().begin().address}/apache"
        with running_kafka(Path(home) / "kafka", chroot, BROKER_SETTINGS) as kafka:
            both = cluster.bootstrap, kafka.bootstrap
            outcome = play(both, given.seed, given.requests, apis)
    for text in outcome.unknown:
        print(text)
    print(f"compared: {dict(sorted((a.name, n) for a, n in outcome.compared.items()))}")
    for why, count in sorted(outcome.known.items()):
        print(f"meant, {count} times: {why}")
    print(f"{len(outcome.unknown)} differences that are not meant")
    return 1 if outcome.unknown else 0


if __name__ == "__main__":
    sys.exit(main())
