"""The files of a flow are listed in the order in which the flow passes them."""

from __future__ import annotations

import pytest

from tests.simulation.flow import FLOWS, files_of

PASSED = {
    "produce": [
        "network/connection.py",
        "apis/pipeline.py",
        "apis/api00_produce.py",
        "log/unified_log.py",
    ],
    "fetch": ["apis/api01_fetch.py", "replica/fetch_reader.py"],
    "failover": [
        "controller/event_sources.py",
        "controller/core/election.py",
        "controller/channel_manager.py",
        "replica/become_leader_or_follower.py",
        "metadata/metadata_cache.py",
    ],
    "create-topic": [
        "apis/api19_create_topics.py",
        "metadata/admin_manager.py",
        "controller/event_sources.py",
    ],
    "join-group": [
        "apis/api11_join_group.py",
        "coordinator/group/core/group.py",
        "apis/api14_sync_group.py",
    ],
    "commit-offset": [
        "apis/api08_offset_commit.py",
        "coordinator/group/offset_writer.py",
        "coordinator/group/committed_offsets.py",
    ],
}


@pytest.mark.parametrize("name", FLOWS)
def test_a_flow_passes_these_files_in_this_order(name: str) -> None:
    passed = files_of(FLOWS[name])
    assert [file for file in passed if file in PASSED[name]] == PASSED[name]
