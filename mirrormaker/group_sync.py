"""Copies the committed offsets of consumer groups to the target, and emits MirrorMaker 2's checkpoints of them.

Theory of operation
===================
One synchronization reads the source's commits first, then which partitions are proven copies, then the target's logs.
So an offset of a topic that was created again is not copied to the copy of the earlier topic. For each group the state
at the target, its offsets and the commit follow one upon the other. `mirrormaker.group_offsets` decides what to commit;
docs/design/mirror-groups.md has the cases and the limits.

An error of one group does not keep the others from being copied. It is reported once, as long as it stays the same.

In: groups of both clusters   Out: commits, lines for the operator   Owner: the mirror
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from kclient.admin.groups import describe_groups, list_groups
from kclient.errors import KafkaError
from kclient.net.cluster import Cluster
from kclient.net.group_offsets import Generation, commit_offsets, committed_offsets
from kclient.net.waiting import all_settled, sleep
from kclient.types import OffsetAndMetadata, TopicPartition
from kclient.wire.records import Record
from mirrormaker.group_offsets import (
    GroupSelection,
    LogRange,
    Offsets,
    decide,
    place,
    translated,
)
from mirrormaker.internal_topic import InternalTopic
from mirrormaker.log_ends import high_watermarks, log_starts
from mirrormaker.mm2_records import Checkpoint, checkpoints_of, checkpoints_topic
from mirrormaker.offset_pairs import Translate, Translated
from mirrormaker.settings import LinkSettings

TIMEOUT = 15.0
"""Seconds for one request to a coordinator, retries included."""

AT_ONCE = 50
"""Groups that are read or committed at the same time."""

NOTHING_PROVEN_YET = 1.0
"""Seconds to the next attempt while no partition is a proven copy, as after a start."""

CHECKPOINTS_PER_BATCH = 100
"""Checkpoints in one record batch: with metadata of 4 KB each, the default limit of brokers, less than 0.5 MB."""

SETTLE = 1.0
"""Seconds that the target gets for records on their way, before an offset is clamped."""

CONSUMER_PROTOCOLS = ("", "consumer")
"""Protocol types of groups with offsets of consumers; "" is that of groups without members ever."""

Copies = Mapping[TopicPartition, TopicPartition]


class GroupOffset(NamedTuple):
    """A committed offset of the source, for the target's partition *tp*, and its translation; None if it is unknown."""

    group: str
    tp: TopicPartition
    committed: int
    at: Translated | None


class GroupMirror:
    """Copies the groups of the source *alias*. *copies* returns the proven copies, source to target partition.

    *translator* returns the translation of offsets for such copies; *report* gets (subject, event) for the operator.
    """

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        settings: LinkSettings,
        *,
        alias: str,
        copies: Callable[[], Copies],
        translator: Callable[[Copies], Awaitable[Translate]],
        report: Callable[[str, str], None],
    ) -> None:
        self._source = source
        self._target = target
        self._settings = settings
        self._copies = copies
        self._translator = translator
        self._report_line = report
        self._reactor = source.reactor
        self._selection = GroupSelection(settings)
        self._groups: list[str] = []
        self._listed_at: float | None = None
        self._reported: dict[str, object] = {}
        """By group, the kind of the last report about it; "" if there is nothing to report."""
        self._checkpoints = InternalTopic(
            target,
            checkpoints_topic(alias, settings.separator),
            replication_factor=settings.checkpoints_replication_factor,
            compact_existing=False,
        )
        self._emitted: dict[tuple[str, TopicPartition], Checkpoint] = {}
        """The checkpoint that was emitted last, by group and target partition."""
        self.checkpoint_problem = ""
        """Why the last checkpoints were not emitted, or not those of all groups."""
        self.problems: dict[str, str] = {}
        """Why groups were not copied in the last synchronization, by group; "" is the list of groups."""
        self.is_synchronized = False
        """Whether a synchronization has ended, with any outcome: before, `problems` is empty for lack of one."""
        self._seen: frozenset[str] = frozenset()
        """Groups with offsets of mirrored partitions in the last synchronization."""
        self._members: set[str] = set()
        """Of these, groups with members at the target: their offsets were not copied."""

    @property
    def copied(self) -> int:
        """Groups of which the target has the offsets since the last synchronization."""
        return len(self._seen - self._members - self.problems.keys())

    @property
    def with_members(self) -> tuple[str, ...]:
        """Groups that were not copied in the last synchronization, because they have members at the target."""
        return tuple(sorted(self._members))

    async def run(self) -> None:
        """Copy offsets and emit checkpoints at their intervals, each if it is enabled."""
        settings = self._settings
        await all_settled(
            self._every(interval, act)
            for enabled, interval, act in (
                (
                    settings.sync_group_offsets,
                    settings.sync_group_offsets_interval,
                    self.synchronize,
                ),
                (
                    settings.emit_checkpoints,
                    settings.emit_checkpoints_interval,
                    self.emit_checkpoints,
                ),
            )
            if enabled
        )

    async def _every(self, interval: float, act: Callable[[], Awaitable[None]]) -> None:
        while True:
            if self._copies():
                await act()
                await sleep(self._reactor, interval)
            else:
                await sleep(self._reactor, NOTHING_PROVEN_YET)

    async def run_once(self) -> None:
        """Copy offsets and emit checkpoints once, each if it is enabled."""
        if self._settings.sync_group_offsets:
            await self.synchronize()
        if self._settings.emit_checkpoints:
            await self.emit_checkpoints()

    async def synchronize(self) -> None:
        """Copy the offsets of all groups once; `problems` and the reports have what was not copied."""
        try:
            offsets, unread = await self._source_offsets()
            placed = await self._translated(offsets)
            logs = await self._logs(placed.values())
        except KafkaError as problem:
            self._failed("", str(problem))
            self.is_synchronized = True
            return
        self.problems.pop("", None)
        for group, error in unread.items():
            self._failed(group, f"cannot be read at the source: {error}")
        self._seen, self._members = frozenset(offsets), set()
        for group in self._reported.keys() - offsets.keys() - self.problems.keys():
            del self._reported[group]
        for some in _chunks(offsets):
            await all_settled(
                self._synchronize_group(group, offsets[group], placed[group], logs)
                for group in some
            )
        self.is_synchronized = True

    async def _synchronize_group(
        self,
        group: str,
        source: Offsets,
        offsets: Offsets,
        logs: Mapping[TopicPartition, LogRange],
    ) -> None:
        """Copy the offsets of one group: *offsets* are those of *source* at the target, if they are known."""
        try:
            described = (await describe_groups(self._target, [group], timeout=TIMEOUT))[group]
            if isinstance(described, KafkaError):
                raise described
            present = await committed_offsets(self._target, group, list(offsets), timeout=TIMEOUT)
            decision = decide(offsets, present, logs, described.state)
            answers = await commit_offsets(
                self._target, group, decision.commits, Generation(), timeout=TIMEOUT
            )
        except KafkaError as problem:
            self._failed(group, str(problem))
            return
        decision = decision.after_commit(answers)
        if decision.members_state:
            self._members.add(group)
        if decision.rejected:
            self._failed(group, decision.rejected)
            return
        unread = sorted(offsets.keys() - logs.keys())
        if unread:
            self._failed(group, f"{len(unread)} logs at the target cannot be read, {unread[0]}")
            return
        unknown = sorted(source.keys() - offsets.keys())
        if unknown:
            tp = unknown[0]
            self._failed(
                group,
                f"{len(unknown)} offsets are further back than the pairs that are kept, {tp} at {source[tp].offset}",
            )
            return
        self.problems.pop(group, None)
        self._report(group, str(decision), decision.kind)

    async def emit_checkpoints(self) -> None:
        """Append a checkpoint of each offset that changed since the last one; `checkpoint_problem` is the error."""
        problem = ""
        try:
            offsets, unread = await self._source_offsets()
            placed = await self._translated(offsets)
            logs = await self._logs(placed.values())
            changed = {
                (checkpoint.group, checkpoint.tp): checkpoint
                for group, each in offsets.items()
                for checkpoint in checkpoints_of(group, each, placed[group], logs)
                if checkpoint.is_new(self._emitted.get((group, checkpoint.tp)))
            }
            await self._checkpoints.create()
            now = time.time_ns() // 1_000_000
            left = iter(changed.items())
            while some := list(islice(left, CHECKPOINTS_PER_BATCH)):
                await self._checkpoints.append(
                    Record(n, now, each.key, each.value) for n, (_, each) in enumerate(some)
                )
                self._emitted.update(some)
            if unread:
                group, error = next(iter(unread.items()))
                problem = f"{len(unread)} groups cannot be read at the source, {group}: {error}"
        except KafkaError as error:
            problem = f"cannot be written: {error}"
        if problem != self.checkpoint_problem:
            text = problem or "are written again"
            self._report_line(f"checkpoints in {self._checkpoints.name}", text)
        self.checkpoint_problem = problem

    async def read(self) -> tuple[list[GroupOffset], dict[str, KafkaError]]:
        """Return the committed offsets of the source's groups with their translation, and the groups not read."""
        offsets, unread = await self._source_offsets()
        translate = await self._translator(self._copies())
        placed = {group: translated(each, translate) for group, each in offsets.items()}
        logs = await self._logs(placed.values())
        found = [
            GroupOffset(
                group,
                tp,
                committed.offset,
                self._clamped(translate(tp, committed.offset), logs, tp),
            )
            for group, each in sorted(offsets.items())
            for tp, committed in sorted(each.items())
        ]
        return found, unread

    # --- reading

    @staticmethod
    def _clamped(
        at: Translated | None, logs: Mapping[TopicPartition, LogRange], tp: TopicPartition
    ) -> Translated | None:
        """Return *at* within the target's log; None if it is unknown."""
        placed = None
        if at is not None and tp in logs:
            placed = place(OffsetAndMetadata(at.offset), logs[tp])
        if at is None or placed is None:
            return None
        return Translated(placed.offset, at.again, at.ahead + at.offset - placed.offset)

    async def _translated(
        self, groups: Mapping[str, Offsets]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """Return the offsets of each group as offsets of the target, without those that are unknown."""
        translate = await self._translator(self._copies())
        return {group: translated(each, translate) for group, each in groups.items()}

    async def _source_offsets(
        self,
    ) -> tuple[dict[str, dict[TopicPartition, OffsetAndMetadata]], dict[str, KafkaError]]:
        """Return the commits of the source's groups for proven copies, by group and target partition.

        The second result has the groups that could not be read.
        """
        await self._list_groups()
        unread: dict[str, KafkaError] = {}
        found: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        for some in _chunks(self._groups):
            answers = await all_settled(
                committed_offsets(self._source, group, None, timeout=TIMEOUT) for group in some
            )
            for group, answer in zip(some, answers, strict=True):
                if isinstance(answer, KafkaError):
                    unread[group] = answer
                else:
                    found[group] = answer
        await self._source.refresh()
        copies = self._copies()
        renamed = {
            group: {copies[tp]: each for tp, each in offsets.items() if tp in copies}
            for group, offsets in found.items()
        }
        return {group: offsets for group, offsets in renamed.items() if offsets}, unread

    async def _list_groups(self) -> None:
        now = self._reactor.seconds()
        if self._listed_at is not None and (
            not self._settings.refresh_groups
            or now < self._listed_at + self._settings.refresh_groups_interval
        ):
            return
        listed = await list_groups(self._source, states=(), timeout=TIMEOUT)
        self._groups = [
            each.group_id
            for each in listed
            if each.protocol_type in CONSUMER_PROTOCOLS and self._selection.wants(each.group_id)
        ]
        self._listed_at = now
        for group in self.problems.keys() - {"", *self._groups}:
            del self.problems[group]

    async def _logs(self, groups: Iterable[Offsets]) -> dict[TopicPartition, LogRange]:
        """Return the target's log of every partition that could be read.

        Logs that end below an offset are read a second time, `SETTLE` seconds later: the records may be on their way.
        """
        highest: dict[TopicPartition, int] = {}
        for offsets in groups:
            for tp, each in offsets.items():
                highest[tp] = max(highest.get(tp, 0), each.offset)
        found = await self._read_logs(highest)
        behind = [tp for tp, log in found.items() if log.end < highest[tp]]
        if behind:
            await sleep(self._reactor, SETTLE)
            found |= await self._read_logs(behind)
        return found

    async def _read_logs(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange]:
        wanted = dict.fromkeys(tps)
        starts = await log_starts(self._target, wanted)
        ends = await high_watermarks(self._target, wanted)
        found = {}
        for tp in wanted:
            start, end = starts[tp], ends[tp]
            if isinstance(start, int) and isinstance(end, int):
                found[tp] = LogRange(start, end)
        return found

    # --- reports

    def _failed(self, group: str, problem: str) -> None:
        self.problems[group] = problem
        self._report(group, f"its offsets are not copied: {problem}")

    def _report(self, group: str, text: str, kind: object = None) -> None:
        """Report *text* about *group*, unless its last report was of the same *kind* (None: had the same text)."""
        now = kind if text and kind is not None else text
        before = self._reported.get(group, "")
        self._reported[group] = now
        if now != before:
            about = f"group {group}" if group else "groups"
            self._report_line(about, text or "every offset is copied as it is now")

    def __str__(self) -> str:
        """Return the part of the status line about groups; "" if groups are not copied."""
        if not self._settings.sync_group_offsets:
            return ""
        parts = [f"groups {len(self._seen)}"]
        if self._members:
            parts.append(f"{len(self._members)} with members at the target")
        if self.problems:
            parts.append(f"{len(self.problems)} NOT COPIED")
        return ", ".join(parts)


def _chunks(groups: Iterable[str]) -> Iterator[list[str]]:
    left = iter(groups)
    while some := list(islice(left, AT_ONCE)):
        yield some
