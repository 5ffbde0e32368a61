"""Where the replicas of a plan with log directories are, in the words of Kafka's tool."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kclient.admin.log_dir_moves import log_dir_progress
from kclient.admin.log_dirs import LogDir, LogDirs, ReplicaInfo
from kclient.cli.reassign import execute
from kclient.types import TopicPartition
from kclient.wire.errors import KafkaStorageError, RequestTimedOut

TP = TopicPartition("t", 0)


def dirs(*, offline: bool = False, **places: bool) -> LogDirs:
    """Directories by name, and whether the replica in them is a copy."""
    found = {
        f"/{name}": LogDir(f"/{name}", {TP: ReplicaInfo(1, 0, is_future)})
        for name, is_future in places.items()
    }
    if offline:
        found["/off"] = LogDir("/off", {}, error=KafkaStorageError("offline"))
    return found


@pytest.mark.parametrize(
    ("found", "text", "is_done", "is_active"),
    [
        (dirs(b=False), "Reassignment of replica t-0-1 completed successfully.", True, False),
        (dirs(a=False, b=True), "Reassignment of replica t-0-1 is still in progress.", False, True),
        (dirs(a=False, c=True), "on broker 1 is being moved to log dir /c instead of /b.", False, True),
        (dirs(b=False, c=True), "on broker 1 is being moved to log dir /c instead of /b.", False, True),
        (dirs(a=False), "on broker 1 is not being moved from log dir /a to /b.", False, False),
        (dirs(), "cannot be found in any live log directory on broker 1.", False, False),
        (dirs(offline=True), "There is likely an offline log directory", False, False),
        (RequestTimedOut("late"), "cannot be found in any live log directory", False, False),
    ],
)  # fmt: skip
def test_the_progress_of_a_replica(found, text, is_done, is_active):
    (progress,) = log_dir_progress({1: {TP: "/b"}}, {1: found})
    assert text in str(progress)
    assert (progress.is_done, progress.is_active) == (is_done, is_active)


def test_a_limit_of_moves_that_a_plan_does_not_have_is_refused(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    entry = {"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["any"]}
    plan.write_text(json.dumps({"partitions": [entry]}))
    limit = ["--replica-alter-log-dirs-throttle", "100"]
    result = CliRunner().invoke(execute, ["-f", str(plan), *limit])
    assert result.exit_code == 2
    assert "has no log_dirs but 'any'" in result.output
