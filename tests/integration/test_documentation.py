"""Pages of documentation are executed line by line, on clusters that they start themselves (tests/kit/pages.py).

A new page is one line in `PAGES`. A page that starts no cluster gets one of three brokers. README is executed in
a fresh environment (test_packaging.py).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kclient import AdminClient, Consumer, TopicPartition
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.pages import not_executed, reading
from tests.kit.prose import ROOT
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

PAGES: dict[str, tuple[str, ...]] = {
    "docs/tutorial.md": (),
    "docs/coming-from-confluent-kafka.md": (),
    "docs/coming-from-kafka-python.md": (),
    "docs/coming-from-aiokafka.md": (),
    "docs/columns.md": (),
    "docs/mirroring.md": (
        "Set up",
        "Metrics",
        "Moving to the other cluster, and back",
        "When the lost cluster returns",
        "Verify and repair",
        "Names at the target",
        "Gaps",
        "Latency of the copies",
        "When the source lost records, or created a topic again",
        "Consumer groups: moving consumers to the other cluster",
        "The end",
    ),
    "docs/audit.md": (
        "Set up",
        "Compare two clusters",
        "Look at a finding",
        "Compare Avro fields",
        "Latency of a mirror",
        "The end",
    ),
}
"""The pages that are executed, with the sections that are; none stands for all."""

A_SPARK = "one more start of Spark, with 7 s of processor time; tests/integration/ has tests of the command"
NOT_EXECUTED: dict[str, dict[str, str]] = {
    "docs/mirroring.md": {
        "Verify and repair": "kmirror repair needs a mirror with damaged records",
        "Into Apache Kafka": "the target is Apache Kafka",
        "Several workers": "the workers are on several hosts",
    },
    "docs/audit.md": {
        "Incremental runs": A_SPARK,
        "Hashes with a secret key": A_SPARK,
        "Spark on other hosts": "the cluster of Spark is on other hosts",
        "Count by time": A_SPARK,
        "Compare headers only": A_SPARK,
        "Profile the topics of a cluster": A_SPARK,
        "Watch two clusters": A_SPARK,
    },
}
"""The sections with commands that are not executed, and why."""


@pytest.fixture(scope="module")
def cluster(module_clusters: MakeCluster) -> Cluster:
    made = module_clusters(3)
    # Until a first group has a coordinator, other libraries print that they wait for one.
    with Consumer(bootstrap_servers=made.bootstrap, group_id="first") as consumer:
        consumer.committed([TopicPartition("any", 0)])
    return made


def empty(cluster: Cluster) -> None:
    """Delete the topics and groups of an earlier page, or of an earlier try of this one."""
    with AdminClient(bootstrap_servers=cluster.bootstrap) as admin:
        # Before the topics: a group goes with the last topic that it has offsets for.
        if groups := [group.group_id for group in admin.list_groups()]:
            admin.delete_groups(groups)
        if topics := admin.list_topics():
            admin.delete_topics(topics)
            eventually("the topics are deleted", lambda: not admin.list_topics())


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_what_happens(
    page: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = ROOT / page
    ports: list[int] = []
    if "kbroker local up" not in path.read_text():
        cluster = request.getfixturevalue("cluster")
        empty(cluster)
        ports = [broker.port for broker in cluster.brokers.values()]
    with reading(tmp_path, Path(sys.prefix) / "bin", ports) as reader:
        assert reader.read(path, PAGES[page]) > 0


@pytest.mark.parametrize("page", PAGES)
def test_a_command_that_is_not_executed_has_a_reason(page: str) -> None:
    found = not_executed((ROOT / page).read_text(), PAGES[page])
    assert found == NOT_EXECUTED.get(page, {}).keys()
