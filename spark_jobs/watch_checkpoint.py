"""The directory that `kaudit watch` continues from: Spark's checkpoint, the start of the watch, and its states.

    start.json           clusters, topic ids, first offset of each partition; written once
    spark/               Spark's checkpoint: the offsets of each micro-batch
    state.N.json         the running verdict behind micro-batch N
    watch.json           the verdict, written at each end and removed at each begin
    lock                 locked by the process that watches

Spark commits micro-batch N after the watch has written state N, and repeats it after a crash before that. A repeated
micro-batch is applied to state N - 1, which is kept for that reason. So every record counts once.
"""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kclient.replaced_file import replace_file
from kclient.types import TopicPartition
from spark_jobs.running_verdict import RunningVerdict
from spark_jobs.source.planning import from_json, to_json

VERSION = 1
_STATE = re.compile(r"state\.(\d+)\.json")


class CheckpointUnusable(Exception):
    """The directory is not the checkpoint of this watch, or a part of it is missing; the text has the reason."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a watch began. *starts* are the first offsets compared, *reads* those from which each side is read."""

    cluster_ids: tuple[str, str]
    topic_ids: tuple[Mapping[str, str], Mapping[str, str]]
    topics: str
    prefix: str
    starts: Mapping[TopicPartition, int]
    reads: tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]]


class Checkpoint:
    """One directory. Owner: one process at a time."""

    def __init__(self, directory: Path, *, limit: int) -> None:
        self._directory = directory
        self._limit = limit

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from this directory; raise CheckpointUnusable if one has it."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise CheckpointUnusable(f"{self._directory}: another watch uses it") from None
            yield

    def remove_verdict(self) -> None:
        """Remove watch.json of an earlier run, so that a run that is killed leaves none."""
        (self._directory / "watch.json").unlink(missing_ok=True)

    @property
    def spark(self) -> Path:
        """Spark's part."""
        return self._directory / "spark"

    def load_start(self) -> Start | None:
        """Return the start of the watch, None if the directory has none; raise CheckpointUnusable."""
        path = self._directory / "start.json"
        if not path.exists():
            if self.spark.exists():
                raise CheckpointUnusable(
                    f"{self._directory}: spark/ is there and start.json is not"
                )
            return None
        if self._numbers() and not self.spark.exists():
            raise CheckpointUnusable(
                f"{self._directory}: states of micro-batches are there and spark/ is not"
            )
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["version"] != VERSION:
                raise CheckpointUnusable(f"{path}: version {found['version']}, not {VERSION}")
            source, target = found["cluster_ids"]
            return Start(
                (source, target),
                (found["topic_ids"][0], found["topic_ids"][1]),
                found["topics"],
                found["prefix"],
                from_json(found["starts"]),
                (from_json(found["reads"][0]), from_json(found["reads"][1])),
            )
        except (ValueError, LookupError, TypeError, RecursionError) as problem:
            raise CheckpointUnusable(f"{path}: {problem!r}") from None

    def save_start(self, start: Start) -> None:
        """Write where the watch begins, before Spark writes anything."""
        self._write(
            "start.json",
            {
                "version": VERSION,
                "cluster_ids": list(start.cluster_ids),
                "topic_ids": [dict(each) for each in start.topic_ids],
                "topics": start.topics,
                "prefix": start.prefix,
                "starts": to_json(start.starts),
                "reads": [to_json(each) for each in start.reads],
            },
        )

    def last_state(self, start: Start, now: float) -> RunningVerdict:
        """Return the newest state, for a watch that ends without a micro-batch; it is never written again."""
        return self.state_before(self.last_batch() + 1, start, now)

    def last_batch(self) -> int:
        """Return the number of the micro-batch behind which the newest state is; -1 without a state."""
        return max(self._numbers(), default=-1)

    def state_before(self, batch: int, start: Start, now: float) -> RunningVerdict:
        """Return the state that micro-batch number *batch* is applied to; raise CheckpointUnusable if it is missing."""
        if batch == 0:
            return RunningVerdict(start.starts, limit=self._limit)
        path = self._directory / f"state.{batch - 1}.json"
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            found = RunningVerdict.from_json(state, limit=self._limit, now=now)
            if {each.topic_partition for each in found.spans()} != set(start.starts):
                raise ValueError("the partitions are others than those of start.json")
            return found
        except (
            *(OSError, ValueError, LookupError),
            *(TypeError, AttributeError, RecursionError),
        ) as problem:
            raise CheckpointUnusable(
                f"{path}: {problem!r}; Spark's checkpoint continues behind it. Begin with another directory"
            ) from None

    def save_state(self, batch: int, state: RunningVerdict) -> None:
        """Write the state behind micro-batch number *batch*, and remove those that no restart needs."""
        self._write(f"state.{batch}.json", state.to_json())
        for number in self._numbers():
            if number < batch - 1:
                with suppress(OSError):
                    (self._directory / f"state.{number}.json").unlink()

    def save_verdict(self, document: Mapping[str, Any]) -> None:
        """Write watch.json."""
        self._write("watch.json", document)

    def _numbers(self) -> list[int]:
        found = (_STATE.fullmatch(path.name) for path in self._directory.glob("state.*.json"))
        return sorted(int(each[1]) for each in found if each)

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write *content* so that after a power loss the file is the old one or the new one."""
        replace_file(self._directory / name, json.dumps(content), durable=True)
