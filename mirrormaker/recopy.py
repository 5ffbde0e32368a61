"""Makes topics of the target mirrors of the source's again: what only the target has is exported and removed.

`kmirror failback` and `kmirror repair` share the steps; docs/design/mirror-failback.md has them, and why each is there.
A `Purpose` decides which topics, and how far each is.

Owner: the reactor's thread
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from twisted.internet.defer import CancelledError

from kclient.admin.topics import delete_topic_id
from kclient.errors import KafkaError, KafkaTimeoutError, UnknownServerError
from kclient.mirror_ledger import REMOVAL
from kclient.net.cluster import Cluster
from kclient.net.waiting import all_of, sleep
from kclient.types import OffsetAndMetadata, TopicPartition
from kclient.wire.errors import CorruptMessage
from mirrormaker import failback_groups, tail_export
from mirrormaker.audit_gate import proven_by_audit, target_form
from mirrormaker.audit_proof import Proof
from mirrormaker.awaited_log_ends import awaited_log_ends
from mirrormaker.catalog import Catalog
from mirrormaker.cluster_waits import names_that_exist
from mirrormaker.command_exit import DONE, REFUSED, Refused
from mirrormaker.config import FlowConfig
from mirrormaker.divergence import Batch, Comparison, Divergence, DivergenceSearch, Side
from mirrormaker.drain import drain
from mirrormaker.export_manifest import ExportedPartition, Manifest
from mirrormaker.failback_groups import Committed
from mirrormaker.failback_stage import (
    FailbackReport,
    Stage,
    TargetState,
    changed,
    no_longer_equal,
    not_created_again,
    refusal,
    source_damage,
    state_after,
    state_at_target,
    summary,
    unreadable,
)
from mirrormaker.interruption import uninterrupted
from mirrormaker.ledger import read_ledger
from mirrormaker.lineage import text_of
from mirrormaker.link_state import Cause, Gap, LogEnds
from mirrormaker.log_ends import high_watermarks, log_starts, read_cuts
from mirrormaker.marks import NO_PREFIX
from mirrormaker.mirror import Mirror
from mirrormaker.promotion import emptied
from mirrormaker.promotion_fence import without_fence_after_failback
from mirrormaker.tail_export import BadExport, PartitionExport
from mirrormaker.topics import (
    Plan,
    Selection,
    Topic,
    TopicPair,
    compared_with,
    is_promoted_without,
)
from mirrormaker.whole_log import LogReader, batches_at
from mirrormaker.write_fence import until_read_only

Echo = Callable[[str], None]

NOT_PROVEN = 4
"""The topics are mirrors. kaudit did not prove it, or committed offsets are not back."""

_TIMEOUT = 60.0
"""Seconds for one step at a cluster. The leaders of a broker that was killed move when its session ends
(zookeeper.session.timeout.ms, 18 s by default). A follower leaves the ISR after replica.lag.time.max.ms (30 s)."""
_DELETION = 60.0
"""Seconds for a deletion or a creation, retries included."""
_POLL = 0.1
ANOTHER_DIRECTORY = "Name another directory with --export"
"""How a mirror of which the directory has an export is compared again."""
_AT_ONCE = 4
"""Partitions that are compared at the same time: each buffers two fetches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the operator asks for."""

    export: Path | None = None
    """The directory of the export; needed to execute."""
    execute: bool = False
    export_head: bool = False
    """Export and remove also what the source's log starts above."""
    audit: Path | None = None
    """The directory for kaudit's report; default: audit in the directory of the export."""
    without_audit: bool = False
    without_groups: bool = False
    stall: float = 60.0
    """Seconds without progress after which the copy is given up."""


class Purpose(Protocol):
    """What the command is for."""

    records_removals: bool
    """Whether the gap ledger gets an entry of what is removed: the target is a mirror of the source already."""
    remedy: str
    """How a mirror that is no prefix of the source is repaired: the command only copies what is a mirror already."""
    named: frozenset[str]
    """The topics that a plan names, if there is one: one that the source lacks is reported."""

    def selects(self, name: str) -> bool:
        """Return whether the topic *name* is one of the command."""

    def manifest(self, out: Path, copy: str, source: Topic) -> Manifest | None:
        """Return the manifest of the target's topic *copy* below *out*, if there is one. Raise `BadExport`."""

    def stage(self, pair: TopicPair, manifest: Manifest | None) -> Stage | None:
        """Return how far the topic is; None for a topic to leave alone. Raise `Refused`."""

    def proven_until(self, pair: TopicPair, partition: int, source_end: int) -> int:
        """Return the offset up to which marks prove that both logs have the same records; 0 if nothing does."""

    def conclusion(self, record: FailbackReport, out: Path) -> str:
        """Return the last line for the operator."""


class Recopy:
    """The steps for the topics of *config* that *purpose* selects; `run` returns the exit code."""

    def __init__(
        self, reactor: Any, config: FlowConfig, options: Options, purpose: Purpose, echo: Echo
    ) -> None:
        self._reactor = reactor
        self._config = config
        self._options = options
        self._out = options.export or Path()
        self._echo = echo
        self._purpose = purpose
        self._selection = Selection(config.source, config.target, config.settings)
        self._began_ms = _now_ms()
        self._mirror = Mirror(
            reactor,
            config,
            once=False,
            report=lambda about, what: self._echo(f"  {about}: {what}"),
        )
        self._source = self._mirror.source
        self._target = self._mirror.target
        self._source_topics = Catalog(self._source)
        self._target_topics = Catalog(self._target)
        self.record: dict[str, Any] | None = None
        """What was done; None until every topic is a mirror that has the source's records."""
        self.absent: list[str] = []
        """Topics that the purpose names and the source lacks: no copy repairs them."""
        self._named_alone: list[str] = []
        self._lost_records = 0
        """The exported records that the source does not have."""
        self.lacking: list[str] = []
        """Topics that the purpose leaves alone: the target does not have them."""
        self._copies: Mapping[str, str] = {}
        """The names at the target, by name at the source."""
        self._states: dict[str, TargetState] = {}
        """By name at the source; a topic that is not read-only, and was not changed, is not in it."""
        self._only_exported: set[str] = set()
        """Topics, by name at the source, that are or were deleted and of which the directory has the export."""
        self._differing: set[str] = set()
        """Mirrors, by name at the source, that the copy found to be no prefix of the source."""

    async def run(self) -> int:
        """Perform the steps. Raise KafkaError if a cluster cannot be reached, or in a dry run."""
        try:
            await self._mirror.open()
            topics = await self._read_topics()
            for name, stage in topics.stages.items():
                self._echo(f"  {name}: {stage.value}")
            if not self._options.execute:
                return await self._search(topics)
            return await self._execute(topics)
        except KafkaError:  # first: KafkaTimeoutError is an OSError, too
            if self._states:
                copies = {self._copies[name]: state for name, state in self._states.items()}
                self._echo(f"ended by an error. {state_at_target(self._config.target, copies)}")
            raise
        except (Refused, BadExport, OSError) as problem:
            text = str(problem)
            if self._options.execute:
                text = refusal(
                    problem,
                    self._config.target,
                    self._states,
                    self._copies,
                    self._only_exported,
                    self._differing,
                    self._purpose.remedy,
                )
            self._echo(f"refused: {text}")
            return REFUSED
        except CancelledError:  # a signal
            if self._options.execute and self._copies:
                text = refusal(
                    "interrupted",
                    self._config.target,
                    self._states,
                    self._copies,
                    self._only_exported,
                    run="Run",
                )
                self._echo(text)
            raise
        finally:
            await uninterrupted(self._mirror.stop())

    def record_without_rpo(self) -> dict[str, Any] | None:
        """Return `record` of a command that no cluster was lost before: it has the number of exported records."""
        if self.record is None:
            return None
        kept = {name: each for name, each in self.record.items() if not name.startswith("rpo_")}
        return {**kept, "exported_records": self._lost_records}

    # --- topics

    async def _read_topics(self) -> _Topics:
        """Read the topics of both clusters. Raise `Refused` if one of them cannot be copied again."""
        source = await self._read_source()
        copies = {name: self._selection.target_name(name) for name in source}
        wanted = frozenset(copies.values())
        at_target = await self._read_catalog(
            self._config.target,
            self._target,
            self._target_topics,
            lambda copy: copy in wanted or self._is_copy(copy),
        )
        found = _Topics(
            self._mirror.source_id,
            self._mirror.target_id,
            source,
            {name: at_target[copy] for name, copy in copies.items() if copy in at_target},
            copies,
            {},
            {},
        )
        self._copies = copies  # of each topic in `_states`, too: `_read_source`
        reasons, lacking = [], []
        for name, topic in source.items():
            try:
                manifest = self._manifest(copies[name], topic)
                if manifest is not None:
                    found.manifests[name] = manifest
                stage = self._purpose.stage(found.pair(name), manifest)
            except (Refused, BadExport) as problem:
                reasons.append(str(problem))
                continue
            if stage is None:
                lacking.append(name)
            else:
                found.stages[name] = stage
                self._note(name, state_after(self._states.get(name), stage))
                if stage is Stage.MIRROR and manifest is not None and not manifest.stays:
                    self._only_exported.add(name)
        self.lacking = lacking
        reasons += await self._not_created_again(found)
        if reasons:
            raise Refused("; ".join(reasons))
        self._report_missing(source, set(at_target) - wanted)
        if not found.stages:
            raise Refused("no topic is selected that can be copied again")
        if self._options.execute and not self._options.without_audit:
            target_form({name: copies[name] for name in found.stages})
        return found

    async def _read_source(self) -> dict[str, Topic]:
        """Return the source's topics. A broker that has just started does not know those that were begun with.

        Raise `Refused` if they are gone: without them there is nothing to copy.
        """
        give_up_at = self._reactor.seconds() + _TIMEOUT
        while True:
            found = await self._read_catalog(
                self._config.source, self._source, self._source_topics, self._selects
            )
            gone = sorted(self._states.keys() - found.keys())
            if not gone:
                return found
            if self._reactor.seconds() > give_up_at:
                raise Refused(f"{', '.join(gone)}: not at {self._config.source} any more")
            await sleep(self._reactor, _POLL)

    def _note(self, name: str, state: TargetState | None) -> None:
        """Keep what was done to the copy of *name*, for the text of a refusal."""
        if state is not None:
            self._states[name] = state

    async def _not_created_again(self, found: _Topics) -> list[str]:
        """Return why selected topics could not be copied again after a deletion."""
        names = [name for name, stage in found.stages.items() if stage is not Stage.MIRROR]
        chosen = {name: found.source[name] for name in names}
        others = filter(self._selection.wants, set(await self._source_topics.names()) - set(names))
        return not_created_again(
            self._selection.plan(chosen, {}, found.source_id, found.target_id),
            {name: found.copies[name] for name in names},
            map(self._selection.target_name, others),
        )

    def _report_missing(self, source: Collection[str], only_at_target: Collection[str]) -> None:
        """Report which topics only the target has, and which of the named ones the source lacks."""
        alone = sorted(only_at_target)
        if alone and alone != self._named_alone:
            self._echo(f"  only {self._config.target} has, and keeps: {', '.join(alone)}")
        self._named_alone = alone
        absent = sorted(self._purpose.named - set(source))
        for name in absent if absent != self.absent else ():
            self._echo(
                f"  CANNOT be repaired: {name}: {self._config.source} has no such topic, or the mirror's settings "
                "leave it out"
            )
        self.absent = absent

    async def _read_catalog(
        self,
        cluster_name: str,
        cluster: Cluster,
        catalog: Catalog,
        is_wanted: Callable[[str], bool],
    ) -> dict[str, Topic]:
        present, unknown = await names_that_exist(self._reactor, cluster, catalog, is_wanted)
        if unknown:
            raise Refused(
                f"the broker at {cluster_name} does not know {', '.join(sorted(unknown))} yet. Repeat the command"
            )
        names = [name for name in present if is_wanted(name)]
        topics = await catalog.topics(names, configs_too=True, present=present)
        for problem in catalog.unreadable.values():
            raise problem
        return topics

    def _is_copy(self, copy: str) -> bool:
        """Return whether *copy* is the name at the target of a topic that takes part, if the source has it."""
        name = self._selection.named_after(copy)
        return name is not None and self._selects(name)

    def _selects(self, name: str) -> bool:
        """Return whether the source's topic *name* takes part. Each cluster has its own heartbeats."""
        return (
            self._purpose.selects(name)
            and self._selection.wants(name)
            and not self._selection.is_heartbeats(name)
        )

    def _manifest(self, copy: str, source: Topic) -> Manifest | None:
        if self._options.export is None:
            return None
        return self._purpose.manifest(self._out, copy, source)

    # --- dry run

    async def _search(self, topics: _Topics) -> int:
        """Print where the logs diverge, as far as a search finds it. Nothing is changed."""
        # A mirror of which there is an export may differ again since.
        mirrors = [name for name in topics.of(Stage.MIRROR) if name in topics.manifests]
        for name in (*topics.of(Stage.RETURNED, Stage.FENCED), *mirrors):
            differs = False
            for number in range(topics.target[name].partitions):
                text, is_prefix = await self._searched(topics, TopicPartition(name, number))
                differs |= not is_prefix
                self._echo(f"  {text}")
            if differs and name in mirrors:
                self._echo(
                    f"  {name}: is no prefix of the source since its export. {self._purpose.remedy}"
                )
        self._echo(
            "dry run: nothing was changed, and only the batches of the search were compared. --execute makes "
            f"{self._config.target} read-only, compares every batch, exports to --export DIR, and removes"
        )
        return DONE

    async def _searched(self, topics: _Topics, tp: TopicPartition) -> tuple[str, bool]:
        """Return what a search finds of *tp*, and whether a mirror of it can be continued as far as that shows."""
        copy = topics.copy_of(tp)
        start, end = await self._range(self._target, copy)
        other_start, other_end = 0, 0
        if tp.partition < topics.source[tp.topic].partitions:
            other_start, other_end = await self._range(self._source, tp)
        search = DivergenceSearch(max(start, other_start), min(end, other_end))
        while (at := search.probe) is not None:
            search.answer(*await self._pair(topics, tp, at))
        target, source = self._config.target, self._config.source
        head = max(0, min(other_start, end) - start)
        below = f"; {head} offsets are below {source}'s log start" if head else ""
        if search.damaged_at is not None:
            below += (
                f"; {source}'s batch at {search.damaged_at} is damaged: --execute refuses the topic"
            )
        proven = self._purpose.proven_until(topics.pair(tp.topic), tp.partition, other_end)
        found = Divergence(start, end, other_start, None, None, proven_until=proven)
        # What the source has deleted below its log start was copied before.
        is_prefix = (
            end <= other_end
            and (end == 0 or end >= other_start)
            and search.common_until >= min(end, other_end)
        )
        if found.is_emptied and found.is_unknown:
            again = "" if found.is_prefix else ". --execute copies the topic again"
            text = f"is empty and ends at {end}: what it had there is unknown{again}"
        elif not search.equal_probes and start < end:
            text = f"no equal batch in {search.probes} reads; {target} has {end - start} offsets{below}"
        elif search.common_until >= end:
            text = f"no difference up to its end at {end} (search, {search.probes} reads){below}"
        else:
            text = (
                f"diverges at {search.common_until} (search, {search.probes} reads); {target} has "
                f"{end - search.common_until} offsets from there on, ends at {end}{below}"
            )
        return f"{copy}: {text}", is_prefix

    async def _range(self, cluster: Cluster, tp: TopicPartition) -> tuple[int, int]:
        """Return the log start and the high watermark of *tp*. Raise KafkaError."""
        starts, ends = (
            await log_starts(cluster, {tp: None}, timeout=_TIMEOUT),
            await high_watermarks(cluster, {tp: None}, timeout=_TIMEOUT),
        )
        found = []
        for answer in (starts[tp], ends[tp]):
            if isinstance(answer, KafkaError):
                raise answer
            found.append(answer)
        return found[0], found[1]

    # --- execution

    async def _execute(self, topics: _Topics) -> int:
        if self._options.export is None:
            raise Refused("--execute needs --export DIR")
        try:
            with tail_export.locked(self._out):
                await self._remove(topics)
        except KafkaError as problem:
            raise Refused(str(problem)) from problem
        topics = await self._read_topics()
        for name in topics.of(Stage.DELETED):
            await self._create(topics, name)
        return await self._copy(await self._mirrors())

    async def _mirrors(self) -> _Topics:
        """Return the topics when each is a mirror. A broker that has just started does not know a new one yet."""
        give_up_at = self._reactor.seconds() + _TIMEOUT
        while True:
            problem: KafkaError | None = None
            try:
                topics = await self._read_topics()
            except KafkaError as unread:
                if not unread.retriable:
                    raise
                problem = unread
            else:
                left = {name: s for name, s in topics.stages.items() if s is not Stage.MIRROR}
                if not left:
                    return topics
                if set(left.values()) != {Stage.DELETED}:
                    raise Refused(f"{', '.join(left)}: changed by another client")
            if self._reactor.seconds() > give_up_at:
                raise problem or Refused(
                    f"{', '.join(left)}: not at {self._config.target} after {_TIMEOUT:g} s"
                )
            await sleep(self._reactor, _POLL)

    async def _remove(self, topics: _Topics) -> None:
        """Fence, export, and remove what the source does not have."""
        names = topics.of(Stage.RETURNED, Stage.FENCED)
        for name in topics.of(Stage.RETURNED):
            self._note(name, TargetState.UNKNOWN)
            await self._target_topics.fence(topics.copies[name], topics.source_id)
            self._note(name, TargetState.READ_ONLY)
        tps = topics.copied_partitions(names)
        cuts = await until_read_only(self._target, tps, timeout=_TIMEOUT) if tps else {}
        if names:
            copies = [topics.copies[name] for name in names]
            self._echo(f"{self._config.target} is read-only: {', '.join(copies)}")
        await self._until_committed(cuts)
        committed = await self._committed([topics.copies[name] for name in names])
        for name in names:
            topics.manifests[name] = await self._exported(topics, name, cuts, committed)
        deleted = [name for name in names if not topics.manifests[name].stays]
        try:
            # All of them first: no export directory continues one topic and not another.
            for name in deleted:
                await self._check_deletion(topics, name, cuts)
            await self._set_groups_back(topics, names, committed)
            for name in names:
                if name not in deleted:
                    await self._keep(topics, name)
            for name in deleted:
                await self._check_deletion(topics, name, cuts)  # the others may have taken minutes
                if self._purpose.records_removals:
                    await self._record_removal(topics, name)
                    await self._refuse_writes(topics.copies[name], cuts)
                await self._delete(topics, name)
        except (Refused, KafkaError, CancelledError):
            if self._purpose.records_removals:
                await uninterrupted(self._withdraw_removals(topics, deleted))
            raise

    async def _withdraw_removals(self, topics: _Topics, names: Iterable[str]) -> None:
        """Delete the ledger's entries of removals that did not take place, those of an earlier run included."""
        left = {
            text_of(topics.target[name].topic_id)
            for name in names
            if self._states[name] is not TargetState.DELETED
        }
        ledger = self._mirror.ledger
        try:
            known = (await read_ledger(self._target, ledger.topic)).entries
            keys = [key for key in known if key.type == REMOVAL and key.target_topic_id in left]
            if keys:
                await ledger.withdraw(keys)
        except KafkaError as problem:
            self._echo(
                f"the ledger {ledger.topic} may have removals that did not take place: {problem}"
            )

    async def _record_removal(self, topics: _Topics, name: str) -> None:
        """Write what the topic *name* is about to lose into the gap ledger. Raise KafkaError."""
        now = text_of(topics.source[name].topic_id)
        before = topics.target[name].copied_topic_id
        for each in topics.manifests[name].partitions:
            if not each.files:
                continue
            tp = TopicPartition(name, each.partition)
            copy = topics.copy_of(tp)
            first, until = min(f.first for f in each.files), max(f.until for f in each.files)
            gap = Gap(first, until, Cause.TRUNCATED, before, now)
            count = sum(f.records for f in each.files)
            await self._mirror.ledger.record(tp, copy, gap, now, type=REMOVAL, records_lost=count)
        self._echo(
            f"{topics.copies[name]}: what is removed of it is in the ledger {self._mirror.ledger.topic}"
        )

    async def _until_committed(self, cuts: Mapping[TopicPartition, int]) -> None:
        """Wait until the high watermarks are at the *cuts*: Fetch returns no record above them."""
        give_up_at = self._reactor.seconds() + _TIMEOUT
        while True:
            found = await high_watermarks(self._target, cuts)
            # A running kmirror may copy on in a topic without a tail.
            behind = [tp for tp, cut in cuts.items() if not _reaches(found[tp], cut)]
            if not behind:
                return
            if self._reactor.seconds() > give_up_at:
                tp = behind[0]
                raise Refused(
                    f"{len(behind)} partitions have records that are not committed, {tp}: it ends at {cuts[tp]}, "
                    f"the high watermark is {found[tp]}"
                )
            await sleep(self._reactor, _POLL)

    async def _exported(
        self,
        topics: _Topics,
        name: str,
        cuts: Mapping[TopicPartition, int],
        committed: Committed,
    ) -> Manifest:
        """Compare and export the topic *name*, or check the export of an earlier run; return the manifest."""
        target, copy = topics.target[name], topics.copies[name]
        directory = tail_export.directory_of(self._out, copy, text_of(target.topic_id))
        manifest = topics.manifests.get(name)
        if manifest is None:
            manifest = await self._export(topics, name, directory, cuts, committed)
        else:
            own = {n: cuts[TopicPartition(copy, n)] for n in range(target.partitions)}
            problem = changed(
                manifest,
                own,
                source_id=topics.source_id,
                target_id=topics.target_id,
                source_topic_id=text_of(topics.source[name].topic_id),
            )
            if problem:
                raise Refused(f"{directory} {problem}: name another directory")
            self._echo(f"{copy}: was exported by an earlier run")
            if not self._options.without_groups:
                found = failback_groups.as_committed_now(manifest, committed)
                if found != manifest:
                    tail_export.write_manifest(directory, found)
                    manifest = found
        tail_export.verify(directory, manifest)
        for line in summary(manifest, str(directory)):
            self._echo(f"  {line}")
        return manifest

    async def _export(
        self,
        topics: _Topics,
        name: str,
        directory: Path,
        cuts: Mapping[TopicPartition, int],
        committed: Committed,
    ) -> Manifest:
        target, copy = topics.target[name], topics.copies[name]
        tail_export.begin(directory)
        compared: list[tuple[ExportedPartition, int | None]] = []
        for first in range(0, target.partitions, _AT_ONCE):
            numbers = range(first, min(first + _AT_ONCE, target.partitions))
            compared += await all_of(
                self._compare(topics, directory, TopicPartition(name, n), cuts) for n in numbers
            )
        partitions = [each for each, _ in compared]
        manifest = Manifest(
            copy,
            text_of(target.topic_id),
            topics.target_id,
            topics.source_id,
            text_of(topics.source[name].topic_id),
            target.replication_factor,
            topics.source[name].partitions,
            tuple(partitions),
            failback_groups.of_topic(committed, copy),
        )
        if not manifest.stays:
            damaged = {each.partition: at for each, at in compared if at is not None}
            await self._refuse_damage(topics, name, partitions, damaged)
        if manifest.has_unexported_head and not manifest.stays:
            starts = ", ".join(
                f"{copy}-{each.partition} from {each.log_start} to {each.other_start}"
                for each in partitions
                if each.head_batches
            )
            raise Refused(
                f"{self._config.source} lacks what is below its log start: {starts}. --export-head exports it "
                f"and removes it from {self._config.target}, too"
            )
        tail_export.write_manifest(directory, manifest)
        return manifest

    async def _compare(
        self,
        topics: _Topics,
        directory: Path,
        tp: TopicPartition,
        cuts: Mapping[TopicPartition, int],
    ) -> tuple[ExportedPartition, int | None]:
        """Compare every batch of the copy of *tp*, and write those without an equal one.

        Return also the first damaged batch that the source has in these offsets, if any.
        """
        copy = topics.copy_of(tp)
        cut = cuts[copy]
        start, _ = await self._range(self._target, copy)
        other_start, other_end = 0, 0
        if tp.partition < topics.source[tp.topic].partitions:
            other_start, other_end = await self._range(self._source, tp)
        ours = LogReader(self._target, copy, start, cut)
        theirs = LogReader(self._source, tp, max(other_start, start), min(other_end, cut))
        readers = {
            Side.OURS: (self._config.target, ours),
            Side.THEIRS: (self._config.source, theirs),
        }
        export = PartitionExport(
            directory, copy, other_start=other_start, with_head=self._options.export_head
        )
        comparison = Comparison()
        try:
            while (side := comparison.wants) is not None:
                found = await _read(*readers[side])
                decided = comparison.end(side) if found is None else comparison.feed(side, found)
                for batch, is_equal in decided:
                    export.add(batch, is_equal)
            exported = export.finish(
                log_start=start, log_end=cut, first_lacking=comparison.first_lacking
            )
            proven = self._purpose.proven_until(topics.pair(tp.topic), tp.partition, other_end)
            return replace(exported, proven_until=proven), comparison.first_damaged
        finally:
            export.abandon()

    async def _refuse_damage(
        self,
        topics: _Topics,
        name: str,
        partitions: Iterable[ExportedPartition],
        damaged: Mapping[int, int],
    ) -> None:
        """Raise `Refused` if a copy of *name* would stop below the end of what is deleted.

        *damaged* has the damaged batches of the compared offsets. A copy begins at the source's log start, so the
        offsets below that of the target are read, too.
        """
        found = dict(damaged)
        for each in partitions:
            if each.partition < topics.source[name].partitions:
                tp = TopicPartition(name, each.partition)
                at = await self._damaged_below(tp, each.log_start)
                if at is not None:
                    found[each.partition] = at
        problem = source_damage(name, self._config.source, found)
        if problem:
            raise Refused(problem)

    async def _damaged_below(self, tp: TopicPartition, until: int) -> int | None:
        """Return the base offset of the source's first damaged batch of *tp* that begins below *until*."""
        start, end = await self._range(self._source, tp)
        reader = LogReader(self._source, tp, start, min(end, until))
        while (batches := await _read(self._config.source, reader)) is not None:
            for each in batches:
                if each.is_damaged:
                    return each.base_offset
        return None

    async def _keep(self, topics: _Topics, name: str) -> None:
        """Mark the copy of *name*, a prefix of the source's topic, as its mirror."""
        source, copy = topics.source[name], topics.copies[name]
        if topics.target[name].partitions < source.partitions:
            applied = await self._target_topics.apply(
                Plan(add_partitions={copy: source.partitions}), replication_factor=-1
            )
            for problem in applied.failed.values():
                raise problem
        compared = without_fence_after_failback(
            topics.target[name], compared_with(source, topics.target_id)
        )
        await self._target_topics.mark(
            copy, topics.source_id, text_of(source.topic_id), (), compared
        )

    async def _check_deletion(
        self, topics: _Topics, name: str, cuts: Mapping[TopicPartition, int]
    ) -> None:
        """Raise `Refused` if the copy of *name* could not be created again, or something would be lost with it."""
        copy = topics.copies[name]
        replicas = topics.manifests[name].replication_factor
        await self._until(
            f"{replicas} brokers at {self._config.target}, as many as {copy} has replicas",
            lambda: len(self._target.metadata.brokers) >= replicas,
        )
        await self._check_source(topics, name)
        await self._refuse_writes(copy, cuts)

    async def _refuse_writes(self, copy: str, cuts: Mapping[TopicPartition, int]) -> None:
        """Raise `Refused` if the target's topic *copy* does not end at the *cuts* any more."""
        own = {tp: cut for tp, cut in cuts.items() if tp.topic == copy}
        now = await until_read_only(self._target, own, timeout=_TIMEOUT)
        if now != own:
            raise Refused(
                f"{copy}: a producer, or a kmirror that runs, wrote to it after it was compared"
            )

    async def _delete(self, topics: _Topics, name: str) -> None:
        """Delete the copy of *name*, and wait until it is gone."""
        copy = topics.copies[name]
        topic_id = topics.target[name].topic_id
        assert topic_id is not None  # the source states it
        self._note(name, TargetState.DELETED)
        try:
            await delete_topic_id(self._target, topic_id, timeout=_DELETION)
        except KafkaError as problem:
            if not (problem.retriable or isinstance(problem, UnknownServerError)):
                self._note(name, TargetState.READ_ONLY)  # the controller refused it
            raise
        await self._until(
            f"{copy} to be deleted", lambda: self._target.metadata.topic_id(copy) != topic_id
        )
        self._echo(f"{copy}: deleted at {self._config.target}")

    async def _check_source(self, topics: _Topics, name: str) -> None:
        """Raise `Refused` unless the source still has the topic, and the batches that were found equal."""
        await self._source.refresh()
        pairs, starts = {}, {}
        for each in topics.manifests[name].partitions:
            if each.last_equal_end is not None:
                tp = TopicPartition(name, each.partition)
                start, _ = await self._range(self._source, tp)
                starts[each.partition] = start
                if start < each.last_equal_end:
                    pairs[each.partition] = await self._pair(topics, tp, each.last_equal_end - 1)
        problem = no_longer_equal(
            topics.manifests[name], text_of(self._source.metadata.topic_id(name)), pairs, starts
        )
        if problem:
            raise Refused(f"{name}: {problem}. Compare again, with another directory")

    async def _pair(
        self, topics: _Topics, tp: TopicPartition, at: int
    ) -> tuple[Batch | None, Batch | None]:
        """Return the batch at the offset *at*, or the first one above it, of the copy of *tp* and of *tp*.

        Both high watermarks were above *at*.
        """

        async def first(name: str, cluster: Cluster, log: TopicPartition) -> Batch | None:
            with _refusing(name):
                found = await batches_at(cluster, log, at, max_bytes=1, end=at + 1)
            return found[0] if found else None

        ours, theirs = await all_of(
            [
                first(self._config.target, self._target, topics.copy_of(tp)),
                first(self._config.source, self._source, tp),
            ]
        )
        return ours, theirs

    async def _create(self, topics: _Topics, name: str) -> None:
        """Create the copy of *name* at the target, as a mirror. A running kmirror may be faster."""
        source, copy = topics.source[name], topics.copies[name]
        plan = self._selection.plan({name: source}, {}, topics.source_id, topics.target_id)
        give_up_at = self._reactor.seconds() + _DELETION
        while True:
            problem: KafkaError | None
            try:
                applied = await self._target_topics.apply(
                    Plan(create=plan.create),
                    replication_factor=topics.manifests[name].replication_factor or -1,
                )
                problem = applied.failed.get(copy)
            except (
                KafkaTimeoutError
            ) as exists:  # created by another client, or not deleted everywhere yet
                problem = exists
            if problem is None:
                self._echo(f"{copy}: created at {self._config.target} as a mirror")
                return
            if copy in await self._target_topics.names():
                return  # its marks are read next
            if self._reactor.seconds() > give_up_at:
                raise Refused(f"{copy} cannot be created at {self._config.target}: {problem}")
            await sleep(self._reactor, 1.0)

    async def _until(self, what: str, is_so: Callable[[], bool]) -> None:
        give_up_at = self._reactor.seconds() + _DELETION
        while True:
            await self._target.refresh()
            if is_so():
                return
            if self._reactor.seconds() > give_up_at:
                raise Refused(f"waited {_DELETION:g} s for {what}")
            await sleep(self._reactor, _POLL)

    # --- groups

    async def _committed(self, copies: Collection[str]) -> Committed:
        """Return the offsets of groups without members at the target in its topics *copies*."""
        if self._options.without_groups or not copies:
            return {}
        found = await failback_groups.read_committed(self._target, copies)
        await failback_groups.refuse_members(self._target, found)
        return found

    async def _set_groups_back(
        self, topics: _Topics, names: Iterable[str], committed: Committed
    ) -> None:
        moved = await failback_groups.set_back(
            self._target, committed, _kept_until(topics.manifests[name] for name in names)
        )
        if moved:
            self._echo(f"{moved} committed offsets were set back to the divergence")

    async def _restore_groups(self, manifests: Iterable[Manifest]) -> dict[str, str]:
        """Commit the offsets that were deleted with a topic again; return by group why some are not back."""
        if self._options.without_groups:
            return {}
        found = list(manifests)
        known: Committed = {}
        for manifest in found:
            for group, offsets in manifest.groups.items():
                known.setdefault(group, {}).update(
                    (TopicPartition(manifest.topic, n), OffsetAndMetadata(at, note))
                    for n, (at, note) in offsets.items()
                )
        partitions = {manifest.topic: manifest.other_partitions for manifest in found}
        until = _kept_until(found)
        for tp in [tp for tp in until if tp.partition >= partitions[tp.topic]]:
            del until[tp]  # the topic that was created again has no such partition
        restored = await failback_groups.restore(self._target, known, until)
        if restored.count:
            self._echo(
                f"{restored.count} committed offsets were deleted with a topic, and are back"
            )
        for group, reason in restored.failed.items():
            self._echo(
                f"NOT RESTORED: committed offsets of group {group} that were deleted with a topic: {reason}"
            )
        return dict(restored.failed)

    # --- the copy

    async def _copy(self, topics: _Topics) -> int:
        """Copy up to the source's present end, restore groups, and have kaudit prove it."""
        names = topics.of(Stage.MIRROR)
        tps = topics.partitions(names)
        await self._target.refresh()
        copies = [topics.copy_of(tp) for tp in tps]
        await until_read_only(self._target, copies, timeout=_TIMEOUT)
        cuts = await read_cuts(self._source, tps)
        try:
            await drain(
                self._mirror, topics.source, cuts, copies=topics.copies, stall=self._options.stall
            )
        except Refused:
            self._differing = {
                link.tp.topic
                for link in self._mirror.flow.stopped_links
                if link.problem is not None and link.problem.cause in NO_PREFIX
            }
            raise
        self._echo(f"{self._config.target} has everything up to {self._config.source}'s log ends")
        manifests = {name: topics.manifests[name] for name in names if name in topics.manifests}
        not_restored = await self._restore_groups(manifests.values())
        already = tuple(name for name in names if name not in manifests)
        record = FailbackReport(
            self._config.name,
            topics.source_id,
            topics.target_id,
            manifests,
            already,
            tuple(
                name
                for name in already
                if is_promoted_without(topics.source[name], topics.target_id)
            ),
            groups_not_restored=not_restored,
        )
        code = NOT_PROVEN if not_restored else DONE
        try:
            proof = await self._audit(topics, cuts)
            if proof is not None:
                record = replace(record, audit=proof.run_id, audit_aged_out=proof.aged_out)
        except Refused as problem:
            self._echo(f"NOT PROVEN: {problem}")
            code = NOT_PROVEN
        self.record = record.document(began_ms=self._began_ms, ended_ms=_now_ms())
        self._lost_records = record.lost.records
        self._echo(self._purpose.conclusion(record, self._out))
        return code

    async def _audit(self, topics: _Topics, cuts: Mapping[TopicPartition, int]) -> Proof | None:
        """Run kaudit and return what it proves; None without an audit. Raise `Refused`."""
        if self._options.without_audit:
            return None
        out = self._options.audit or self._out / "audit"
        self._echo(f"kaudit compares every record that both have; its report goes to {out}")
        proof = await self._proof(topics, cuts, out)
        await self._check_target(topics, cuts)
        if line := proof.line():
            self._echo(line)
        return proof

    async def _proof(self, topics: _Topics, cuts: Mapping[TopicPartition, int], out: Path) -> Proof:
        return await proven_by_audit(
            self._reactor,
            self._config,
            out,
            cuts,
            copies=topics.copies,
            source_id=topics.source_id,
            target_id=topics.target_id,
            # Producers write to the source meanwhile: what they write is lag, and is no part of the cut.
            options=["--max-lag", str(2**62)],
        )

    async def _check_target(self, topics: _Topics, cuts: Mapping[TopicPartition, int]) -> None:
        """Raise `Refused` if the target has deleted all that it had of a partition, or lost some below its cut.

        kaudit may have compared nothing of it, or read it before.
        """
        pairs = {tp: topics.copy_of(tp) for tp in cuts}
        found = await awaited_log_ends(self._source, self._target, pairs, timeout=_TIMEOUT)
        reasons = [_left_open(tp, ends, cuts[tp]) for tp, ends in found.items()]
        if any(reasons):
            raise Refused("; ".join(reason for reason in reasons if reason))


@dataclass(frozen=True, slots=True)
class _Topics:
    """The selected topics of both clusters, by the name at the source."""

    source_id: str
    target_id: str
    source: Mapping[str, Topic]
    target: Mapping[str, Topic]
    copies: Mapping[str, str]
    """The names at the target."""
    stages: dict[str, Stage]
    manifests: dict[str, Manifest]

    def pair(self, name: str) -> TopicPair:
        """Return the topic *name* of both clusters."""
        return TopicPair(
            name=name,
            source=self.source[name],
            target=self.target.get(name),
            copy=self.copies[name],
            source_id=self.source_id,
            target_id=self.target_id,
        )

    def of(self, *stages: Stage) -> list[str]:
        """Return the topics in one of *stages*."""
        return [name for name, stage in self.stages.items() if stage in stages]

    def copy_of(self, tp: TopicPartition) -> TopicPartition:
        """Return the partition at the target of the source's *tp*."""
        return TopicPartition(self.copies[tp.topic], tp.partition)

    def partitions(self, names: Iterable[str]) -> list[TopicPartition]:
        """Return the source's partitions of *names*."""
        return [
            TopicPartition(name, n) for name in names for n in range(self.source[name].partitions)
        ]

    def copied_partitions(self, names: Iterable[str]) -> list[TopicPartition]:
        """Return the target's partitions of the copies of *names*."""
        return [
            TopicPartition(self.copies[name], n)
            for name in names
            for n in range(self.target[name].partitions)
        ]


async def _read(cluster: str, reader: LogReader) -> list[Batch] | None:
    """Return the next batches of a log at *cluster*. Raise `Refused` if its headers do not show what follows."""
    with _refusing(cluster):
        return await reader.read()


@contextmanager
def _refusing(cluster: str) -> Iterator[None]:
    """Raise `Refused` with the name of *cluster* for a CorruptMessage of its log."""
    try:
        yield
    except CorruptMessage as problem:
        raise Refused(unreadable(cluster, problem)) from problem


def _kept_until(manifests: Iterable[Manifest]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(manifest.topic, each.partition): each.divergence.kept_until
        for manifest in manifests
        if not manifest.stays
        for each in manifest.partitions
    }


def _left_open(tp: TopicPartition, ends: LogEnds | KafkaError, cut: int) -> str:
    """Return why the target's log of *tp* may not be what kaudit has read; "" if it may be."""
    if isinstance(ends, KafkaError):
        return f"{tp}: {ends}"
    has_none = ends.target_end == 0 and ends.source_start >= cut  # nothing was there to copy
    if ends.target_end < cut and not has_none:
        return f"{tp} ends at {ends.target_end} at the target, below its cut {cut}"
    return emptied(tp, ends)


def _reaches(offset: int | KafkaError, cut: int) -> bool:
    return isinstance(offset, int) and offset >= cut


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
