"""The topics and the logs that an audit reads of real brokers: of both clusters, and of one only."""

from __future__ import annotations

import re

import pytest

from kclient.mirror_ledger import SUFFIX
from kclient.types import TopicPartition
from spark_jobs.cluster import ClusterUnreadable
from spark_jobs.cut import freeze
from spark_jobs.scope import Pair, paired, snapshots
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.mirrored_clusters import delete_records, make_topic, produce

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

COUNTS = {
    "orders": 40,
    "copy.orders": 30,
    "copy.only-there": 5,
    "only-here": 6,
    "other": 7,
    "idle": 9,
    "copy.idle": 0,
}


@pytest.fixture(scope="module")
def cluster(module_clusters: MakeCluster) -> Cluster:
    made = module_clusters(1)
    for name, count in COUNTS.items():
        make_topic(made, name)
        produce(made, name, count)
    delete_records(made, "idle", 9)
    make_topic(made, f"copy{SUFFIX}")
    return made


def pair(cluster: Cluster, topics: str, prefix: str = "copy.") -> Pair:
    return Pair(cluster.bootstrap, cluster.bootstrap, ("east", "west"), re.compile(topics), prefix)


def ends(cluster: Cluster, topics: str, prefix: str = "copy.") -> tuple[dict[str, int], ...]:
    """Return by topic where the logs of source and target end; nothing of topics that a side does not have."""
    sides = snapshots(pair(cluster, topics, prefix), lambda _: None)
    return tuple({tp.topic: held.end for tp, held in each.ranges.items()} for each in sides)


def test_a_topic_that_one_side_has_is_in_scope_under_its_name_at_the_source(
    cluster: Cluster,
) -> None:
    assert ends(cluster, "orders|only-.*") == (
        {"orders": 40, "only-here": 6},
        {"orders": 30, "only-there": 5},
    )


def test_the_whole_name_has_to_match_and_topics_of_mirrors_are_left_out(cluster: Cluster) -> None:
    assert ends(cluster, "other|orde") == ({"other": 7}, {})
    here, there = ends(cluster, ".*", prefix="")
    assert here == there == COUNTS


def test_what_both_clusters_lack_is_named(cluster: Cluster) -> None:
    with pytest.raises(ClusterUnreadable, match="has no topic matching 'order', and west"):
        snapshots(pair(cluster, "order"), lambda _: None)


def test_one_cluster_under_two_addresses_is_named_unless_its_topics_have_a_prefix(
    cluster: Cluster,
) -> None:
    for prefix, named in (("", 1), ("copy.", 0)):
        lines_of_progress: list[str] = []
        paired(pair(cluster, "orders", prefix), lines_of_progress.append)
        assert sum("are one cluster" in line for line in lines_of_progress) == named


def test_a_partition_that_retention_emptied_has_its_ends_and_no_offset_in_scope(
    cluster: Cluster,
) -> None:
    source, target = snapshots(pair(cluster, "idle"), lambda _: None)
    (cut,) = freeze(target.ranges, source.ranges)
    assert (cut.topic_partition, cut.scope, cut.same_end) == (TopicPartition("idle", 0), 0, False)
