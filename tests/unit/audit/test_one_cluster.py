"""The line of a screen about two addresses of one cluster."""

from __future__ import annotations

from spark_jobs.report.one_cluster import one_cluster_lines

NAMES = ("east", "west")


def test_two_addresses_of_one_cluster_are_named() -> None:
    assert one_cluster_lines(NAMES, ("E", "E"), "") == [
        "ATTENTION: east and west are one cluster (E): its logs are compared with themselves"
    ]


def test_other_clusters_renamed_topics_and_clusters_without_an_id_are_not() -> None:
    assert one_cluster_lines(NAMES, ("E", "W"), "") == []
    assert one_cluster_lines(NAMES, ("E", "E"), "east.") == []
    assert one_cluster_lines(NAMES, ("", ""), "") == []
