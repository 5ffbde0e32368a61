"""``kmirror promote``: performs the steps of a promotion on both clusters.

docs/design/mirror-promotion.md has the steps and why each is there; `mirrormaker.promotion` and
`mirrormaker.promotion_fence` have the decisions.

Owner: the reactor's thread
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

from twisted.internet.defer import CancelledError

from kclient.config import CommonConfig
from kclient.errors import KafkaError, KafkaTimeoutError
from kclient.net.cluster import Cluster
from kclient.net.offsets import MAX_TIMESTAMP, list_offsets
from kclient.net.waiting import all_settled, sleep
from kclient.types import OffsetAndTimestamp, TopicPartition
from mirrormaker import promotion
from mirrormaker.audit_gate import proven_by_audit
from mirrormaker.audit_proof import Proof
from mirrormaker.awaited_log_ends import awaited_log_ends
from mirrormaker.catalog import Catalog
from mirrormaker.cluster_waits import (
    POLL,
    TIMEOUT,
    names_that_exist,
    names_with,
    until_answered,
)
from mirrormaker.command_exit import DONE, REFUSED, Refused
from mirrormaker.config import FlowConfig
from mirrormaker.drain import drain
from mirrormaker.fence_removal import LONGEST_CHANGE, Configs, FenceRemoval, TakenBack
from mirrormaker.interruption import uninterrupted
from mirrormaker.lineage import Lineage, text_of
from mirrormaker.link_state import GapPolicy, LogEnds
from mirrormaker.log_ends import high_watermarks, read_log_ends
from mirrormaker.mirror import Mirror, identity_of
from mirrormaker.prefix import judgement
from mirrormaker.promotion import Stage
from mirrormaker.promotion_fence import (
    FenceState,
    fence_is_opening,
    fence_is_over,
    fence_of,
    fence_state,
    not_about_to_be_opened,
    states_fence,
)
from mirrormaker.promotion_record import (
    EXCHANGED,
    PRODUCERS_STOPPED,
    Groups,
    Opened,
    PromotedPartition,
    PromotionReport,
    end_without_copies,
    mode_of,
)
from mirrormaker.promotion_topics import PromotedTopics, Roles, partitions_of
from mirrormaker.promotion_undo import PromotionUndo
from mirrormaker.topics import MARK, SOURCE_LOST, Topic, TopicPair
from mirrormaker.write_fence import FenceTimeout, until_read_only, until_writable

Echo = Callable[[str], None]

LEFT_BEHIND = 4
"""Exit code: the source has records that the target lacks, or may have some."""

_COPIES_TIMEOUT = 10.0
"""Seconds that copies at the source get to be committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the operator asks for."""

    topics: str = ".*"
    """Regular expressions of source topics, as the setting ``topics``."""
    source_lost: bool = False
    producers_stopped: bool = False
    source_id: str | None = None
    """With *source_lost*: the cluster id of the source, where the target has mirrors of several."""
    audit: Path | None = None
    """The directory for kaudit's report, if the promotion needs one."""
    without_groups: bool = False
    """Leave the committed offsets of consumer groups out."""
    stall: float = 60.0
    """Seconds without progress after which the drain is given up."""
    dry_run: bool = False


class Promotion:
    """One promotion of the topics of *config*; `run` returns the exit code."""

    def __init__(
        self,
        reactor: Any,
        config: FlowConfig,
        options: Options,
        echo: Echo,
        *,
        cluster: Callable[[Any, CommonConfig], Cluster] = Cluster,
    ) -> None:
        self._reactor = reactor
        self._cluster = cluster
        self._config = config
        self._options = options
        self._echo = echo
        self._topics = PromotedTopics(config, options.topics)
        self._undo = PromotionUndo(reactor, config, echo)
        self._began_ms = _now_ms()
        self.record: dict[str, Any] | None = None
        """What was done; None until the target is writable."""

    async def run(self) -> int:
        """Promote. Raise KafkaError if a cluster fails before anything is changed, or after the target was opened."""
        try:
            return await (self._source_lost() if self._options.source_lost else self._exchange())
        except Refused as refusal:
            self._echo(f"refused: {refusal}")
            return REFUSED

    # --- both clusters

    async def _exchange(self) -> int:
        mirror = self._mirror()
        try:
            await mirror.open()
            roles = await self._roles(mirror)
            left = roles.left
            for name, stage in roles.stages.items():
                self._echo(f"  {name}: {stage.value}")
            if not left:
                self._echo(
                    "every topic is promoted already"
                    if Stage.PROMOTED in roles.stages.values()
                    else f"nothing to promote: every topic is a mirror of {self._config.target} already"
                )
            if self._options.dry_run:
                self._echo(f"dry run: would promote {len(left)} topics of {self._config.name}")
                return DONE
            if left:
                return await self._exchange_roles(mirror, roles)
            return await self._ended(mirror, roles, {}, {}, {}, None, None)
        finally:
            await uninterrupted(mirror.stop())

    def _modes(self, roles: Roles) -> dict[str, str]:
        """Return the mode of each topic that this command promotes: one that is fenced already is exchanged."""
        stopped = self._options.producers_stopped
        return {
            name: PRODUCERS_STOPPED
            if stopped and roles.stages[name] is Stage.MIRRORED
            else EXCHANGED
            for name in roles.left
        }

    async def _exchange_roles(self, mirror: Mirror, roles: Roles) -> int:
        fenced: dict[str, Configs] = {}
        opening: list[str] = []
        try:
            cuts = await self._cut(mirror, roles, fenced)
            await self._drain(mirror, roles, cuts)
            ends = await until_read_only(mirror.target, cuts, timeout=TIMEOUT)
            _refuse(promotion.not_at_the_cut(cuts, ends))
            lacks = await self._compare(mirror, roles, cuts)
            audit = await self._audit(roles, cuts)
            groups = await self._copy_groups(mirror)
            timestamps = await _last_timestamps(mirror.target, cuts)
            await self._begin_opening(roles, opening)
            await self._check_target(mirror.target, cuts)
            if audit is not None:
                # It took hours: the target may have deleted, or lost, what kaudit has read there.
                lacks = await self._compare(mirror, roles, cuts, lacks)
            await self._check_fence(mirror.source, self._fenced_cuts(roles, cuts))
        except Exception as problem:  # CancelledError, too: a signal
            await uninterrupted(self._undo.undo(mirror, roles, fenced, opening))
            if isinstance(problem, KafkaError):
                raise Refused(str(problem)) from problem
            raise
        await self._open(
            mirror.target,
            roles.target_topics,
            roles.left,
            cuts,
            Opened(
                roles.source_id,
                EXCHANGED,
                self._began_ms,
                (),
                (),
                None if audit is None else audit.run_id,
                groups,
                aged_out=0 if audit is None else audit.aged_out,
            ),
            timestamps,
            lacks,
            self._modes(roles),
            partial(self._look_at_fence, mirror.source, roles, self._fenced_cuts(roles, cuts)),
        )
        return await self._ended(mirror, roles, cuts, timestamps, lacks, audit, groups)

    async def _ended(
        self,
        mirror: Mirror,
        roles: Roles,
        cuts: Mapping[TopicPartition, int],
        timestamps: Mapping[TopicPartition, int],
        lacks: Mapping[TopicPartition, int | None],
        audit: Proof | None,
        groups: Groups | None,
    ) -> int:
        """Read the source's log ends, and make the record, also of topics that an earlier command opened."""
        before = roles.opened
        if not cuts and not before:
            await self._end_fences(roles)
            return DONE
        # What a source had when it was lost, or when its topic was deleted, is in no log any more.
        lost = [name for name, found in before.items() if found.mode == SOURCE_LOST]
        again = [
            name
            for name in before
            if name not in lost
            and promotion.was_created_again(roles.source[name], roles.target[name])
        ]
        all_cuts = {
            each.tp: each.end
            for name in before
            for each in before[name].partitions(name)
            if name not in (*lost, *again)
        } | dict(cuts)
        modes = {name: found.mode for name, found in before.items()}
        if cuts:
            modes |= self._modes(roles)
        stopped = PRODUCERS_STOPPED
        unfenced = {
            tp
            for tp in all_cuts
            if modes[tp.topic] == stopped and not roles.source[tp.topic].overrides.get(MARK)
        }
        try:
            await self._end_fences(roles)
            after, writable = await self._source_ends(mirror, roles, all_cuts, unfenced)
        except (CancelledError, KafkaError):
            self._echo(
                "promoted; there is no record. The same command reads the log ends and prints it"
            )
            raise
        record = PromotionReport(
            self._config.name,
            roles.source_id,
            roles.target_id,
            mode_of(modes.values()),
            tuple(
                PromotedPartition(tp, cut, after.get(tp), timestamps.get(tp), lacks.get(tp))
                for tp, cut in cuts.items()
            ),
            None if audit is None else audit.run_id,
            groups,
            self._began_ms,
            0 if audit is None else audit.aged_out,
        ).joined(
            before.values(),
            [
                replace(each, source_end=after.get(each.tp))
                for name, found in before.items()
                for each in found.partitions(name)
            ],
        )
        self._finish(record)
        source, target = self._config.source, self._config.target
        if writable:
            self._echo(
                f"{_without_fence(source, writable)}. Records that are written there are not at {target}, and "
                "rpo_records is null. Stop its producers. kmirror failback of the other direction then exports these "
                f"records, and makes {source} the mirror; of a compacted topic, or one that was created again, consume "
                f"them, and delete it at {source}: kmirror run of the other direction copies it again"
            )
        if lost:
            self._echo(
                f"records that {source} had and {target} lacks: unknown. {', '.join(lost)}: promoted without "
                f"{source}; the record of kmirror failback has what it exported"
            )
        if again:
            self._echo(
                f"records that {source} had and {target} lacks: unknown. {', '.join(again)}: created again at {source} "
                "since; if by kmirror failback, its record has what it exported"
            )
        if unread := sum(tp not in after and tp not in writable for tp in all_cuts):
            self._echo(
                f"the end of {source}'s own records is unknown in {unread} of {len(record.partitions)} "
                "partitions: rpo_records is null. The same command reads it again"
            )
        if record.known_left_behind:
            self._echo(
                f"{record.known_left_behind} offsets at {source} are behind the cut: records that were written there "
                f"after it are not at {target}"
            )
        return LEFT_BEHIND if record.unread or record.known_left_behind else DONE

    async def _source_ends(
        self,
        mirror: Mirror,
        roles: Roles,
        cuts: Mapping[TopicPartition, int],
        unfenced: Collection[TopicPartition],
    ) -> tuple[dict[TopicPartition, int], Sequence[TopicPartition]]:
        """Return where the source's own records end; without partitions of which that is unknown.

        Behind the cut there may be copies of the target's records: a running kmirror of the other direction makes them
        from then on. Copies that are not committed yet are waited for. *unfenced*: partitions without a mark, with
        producers that the operator has stopped. The second result has those that lost their fence: producers may write
        on.
        """
        stopped = await _high_watermarks(mirror.source, unfenced)
        cuts = {tp: cut for tp, cut in cuts.items() if tp not in unfenced}
        after, writable = await _fenced_ends(mirror.source, cuts)
        longer = {tp: tp for tp, cut in cuts.items() if after.get(tp, cut) > cut}
        give_up_at = self._reactor.seconds() + _COPIES_TIMEOUT
        while longer:
            compared = await read_log_ends(mirror.target, mirror.source, longer)
            may_pass = False
            for tp, ends in compared.items():
                found = ends if isinstance(ends, LogEnds) else None
                own = end_without_copies(
                    cuts[tp], after[tp], found, compacted=roles.source[tp.topic].compacted
                )
                if own is not None:
                    after[tp] = own
                    del longer[tp]
                elif found is None or found.target_end < after[tp]:
                    may_pass = True
            if not may_pass or self._reactor.seconds() >= give_up_at:
                break
            await sleep(self._reactor, POLL)
        known = {tp: end for tp, end in after.items() if tp not in longer}
        return stopped | known, writable

    async def _cut(
        self, mirror: Mirror, roles: Roles, fenced: dict[str, Configs]
    ) -> dict[TopicPartition, int]:
        """Fence the source and return its log ends from then on.

        *fenced* gets the topics that are marked here, with the configs that remove the fence.
        """
        tps = roles.partitions
        if self._options.producers_stopped:
            # Behind the high watermark of a topic that is fenced already there may be records that are not committed.
            marked = [tp for tp in tps if roles.stages[tp.topic] is Stage.FENCED]
            without = [tp for tp in tps if roles.stages[tp.topic] is not Stage.FENCED]
            cuts = await _high_watermarks(mirror.source, without, required=True)
            cuts |= await until_read_only(mirror.source, marked, timeout=TIMEOUT)
            await _refuse_new_partitions(roles)
            return cuts
        for name in roles.left:
            if roles.stages[name] is Stage.MIRRORED:
                source, copied = roles.source[name], text_of(roles.target[name].topic_id)
                fence = fence_of(source, roles.target_id, copied)
                # The outcome of a change that failed is unknown.
                fenced[name] = {each: source.overrides.get(each) for each in fence}
                await roles.source_topics.change(name, fence)
        cuts = await until_read_only(mirror.source, tps, timeout=TIMEOUT)
        await _refuse_new_partitions(roles)
        self._echo(f"{self._config.source} is read-only; {sum(cuts.values())} offsets to the cut")
        return cuts

    def _fenced_cuts(
        self, roles: Roles, cuts: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return those of *cuts* at which a fence holds producers back."""
        modes = self._modes(roles)
        return {tp: cut for tp, cut in cuts.items() if modes[tp.topic] == EXCHANGED}

    async def _begin_opening(self, roles: Roles, opening: list[str]) -> None:
        """Let each fence state that the target may be open from now on. Raise KafkaError or `Refused`.

        If the target is lost after that, `--abort --target-id` no longer opens the source. *opening* gets the topics.
        """
        modes = self._modes(roles)
        names = [name for name in roles.left if modes[name] == EXCHANGED]
        opening += names  # the outcome of a change that failed is unknown
        taken_over: list[Topic] = []

        def begin(topic: Topic) -> Configs:
            if fence_state(topic.overrides) is FenceState.ABORTING:
                taken_over.append(topic)
            return fence_is_opening(topic)

        for name in names:
            await until_answered(self._reactor, partial(self._state_fences, roles, [name], begin))
        if taken_over:
            self._echo(
                f"an --abort, or an undo, has begun before: for {LONGEST_CHANGE:g} s more it may remove a fence"
            )
            await sleep(self._reactor, LONGEST_CHANGE)

    async def _end_fences(self, roles: Roles) -> None:
        """Let the source's topics that are mirrors of the opened target state that. Name what keeps them from it."""
        names = [
            name
            for name, stage in roles.stages.items()
            if stage in (Stage.FENCED, Stage.PROMOTED)
            or (stage is Stage.MIRRORED and not self._options.producers_stopped)
        ]
        try:
            await self._state_fences(roles, names, fence_is_over)
        except (KafkaError, Refused) as problem:
            self._echo(
                f"{self._config.source} does not state that the promotion has ended: {problem}. The same command lets "
                "it do so"
            )

    async def _state_fences(
        self, roles: Roles, names: Collection[str], change: Callable[[Topic], Configs]
    ) -> None:
        """Set what *change* returns on those of *names* that are marked as mirrors of the target now.

        Raise KafkaError. Raise `Refused` if a broker refuses it for a topic that states its fence. A broker of an
        earlier release stores none.
        """
        catalog = roles.source_topics
        refused = {}
        for name in names:
            # Directly before each change: another command may state something in one while others are changed.
            topic = replace(roles.source[name], overrides=await catalog.overrides_of(name))
            if fence_state(topic.overrides) is FenceState.UNKNOWN:
                refused[name] = "kmirror of a later release has changed its fence"
                continue
            if topic.overrides.get(MARK) == roles.target_id and (configs := change(topic)):
                problem = await catalog.change(name, configs)
                if problem and states_fence(topic):
                    refused[name] = problem
        if refused:
            reasons = ", ".join(f"{name} ({problem})" for name, problem in refused.items())
            raise Refused(
                f"{self._config.source} refuses to state how far the promotion is: {reasons}"
            )

    async def _check_fence(self, source: Cluster, cuts: Mapping[TopicPartition, int]) -> None:
        """Raise `Refused` unless each leader of *source* still rejects producers, and its log ends at the cut.

        The mark may be removed while records are copied and compared: by --abort, by a tool for configs, or with the
        topic.
        """
        name = self._config.source
        try:
            ends = await until_read_only(source, cuts, timeout=TIMEOUT)
        except FenceTimeout as problem:
            if problem.writable:
                raise Refused(_without_fence(name, problem.writable)) from problem
            raise
        _refuse(promotion.no_fence(name, cuts, ends))

    async def _look_at_fence(
        self, source: Cluster, roles: Roles, cuts: Mapping[TopicPartition, int], name: str
    ) -> None:
        """Raise `Refused` unless the fence of *name* holds, and states that the target may be open.

        --abort, or the undo of another command, takes that statement back, and waits `LONGEST_CHANGE` before it
        removes the fence. A topic with nothing in *cuts* has no fence: its producers were stopped.
        """
        own = {tp: cut for tp, cut in cuts.items() if tp.topic == name}
        if not own:
            return
        await self._check_fence(source, own)

        async def look() -> str:
            settings = await roles.source_topics.overrides_of(name)
            if fence_state(settings) is FenceState.SET:
                # This command has changed it: the ZooKeeper server of the broker that was asked may be behind.
                raise KafkaTimeoutError(f"{name} does not state that the target may be open")
            return not_about_to_be_opened(settings, roles.target_id)

        if reason := await until_answered(self._reactor, look):
            raise Refused(f"{name} is not opened: {self._config.source}: {reason}")

    async def _check_target(self, target: Cluster, cuts: Mapping[TopicPartition, int]) -> None:
        """Raise `Refused` unless each leader of *target* still rejects producers, and its log ends at the cut.

        It may have lost records while kaudit and groups took their time, or another command has opened it.
        """
        try:
            ends = await until_read_only(target, cuts, timeout=TIMEOUT)
        except FenceTimeout as problem:
            if problem.writable:
                which = ", ".join(map(str, problem.writable))
                raise Refused(
                    f"{self._config.target} accepts producers in {which}: another command has opened it, or its mark "
                    "was removed"
                ) from problem
            raise
        _refuse(promotion.not_at_the_cut(cuts, ends))

    async def _drain(
        self, mirror: Mirror, roles: Roles, cuts: Mapping[TopicPartition, int]
    ) -> None:
        """Copy up to *cuts*. Raise `Refused` if a link stops, or if nothing is copied for a while."""
        await drain(mirror, roles.source, cuts, stall=self._options.stall)
        self._echo(f"{self._config.target} has everything up to the cut")

    async def _compare(
        self,
        mirror: Mirror,
        roles: Roles,
        cuts: Mapping[TopicPartition, int],
        printed: Mapping[TopicPartition, int | None] = MappingProxyType({}),
    ) -> dict[TopicPartition, int | None]:
        """Raise `Refused` unless the last batch of each partition is the same on both sides.

        Return how many offsets the source has below the target's log start; the numbers *printed* are not printed
        again. A target that has deleted all that it had is refused: nothing of it can be compared.
        """
        lacks, reasons = {}, []
        for tp, ends in (
            await awaited_log_ends(
                mirror.source, mirror.target, {tp: tp for tp in cuts}, timeout=TIMEOUT
            )
        ).items():
            if isinstance(ends, KafkaError):
                raise ends
            compacted = roles.source[tp.topic].compacted
            _refuse(_difference(tp, ends, compacted=compacted))
            if reason := promotion.emptied(tp, ends):
                reasons.append(reason)
            lacks[tp] = found = promotion.lacked(ends, compacted=compacted)
            if found and found != printed.get(tp):
                self._echo(
                    f"  {tp}: starts later: the target lacks {found} offsets from {ends.source_start} on, which the "
                    "source has"
                )
        if reasons:
            raise Refused(f"{'; '.join(reasons)}. --topics leaves topics out")
        return lacks

    async def _audit(self, roles: Roles, cuts: Mapping[TopicPartition, int]) -> Proof | None:
        """Run kaudit and return what it proves. Raise `Refused` unless it proves every partition up to its cut."""
        out = self._options.audit
        if out is None:
            return None
        self._echo(f"kaudit compares every record that both have; its report goes to {out}")
        proof = await proven_by_audit(
            self._reactor,
            self._config,
            out,
            cuts,
            source_id=roles.source_id,
            target_id=roles.target_id,
            options=["--complete"],
        )
        if line := proof.line():
            self._echo(line)
        return proof

    async def _copy_groups(self, mirror: Mirror) -> Groups | None:
        """Copy the committed offsets of the promoted partitions; return which groups have some. Raise `Refused`.

        A group with members at the target keeps its offsets there: consumers that already wait at the target have it.
        """
        if self._options.without_groups:
            return None
        groups = mirror.groups
        await groups.synchronize()
        for group, problem in groups.problems.items():
            raise Refused(
                f"group {group or '(all)'} was not copied: {problem}. --no-groups leaves groups out"
            )
        found = Groups(groups.copied, groups.with_members)
        left = f"; {len(groups.with_members)} were not, with members there: {', '.join(groups.with_members)}"
        self._echo(
            f"{found.copied} groups were copied to {self._config.target}"
            f"{left if groups.with_members else ''}"
        )
        return found

    # --- the target alone

    async def _source_lost(self) -> int:
        target = self._cluster(self._reactor, self._config.target_client)
        try:
            await target.start()
            catalog = Catalog(target)
            present = await self._names(self._config.target, target, catalog)
            names = [name for name in present if self._topics.selects_copy(name)]
            topics = await catalog.topics(names, configs_too=True, present=present)
            for problem in catalog.unreadable.values():
                raise problem
            lost = promotion.without_source(topics, names, self._options.source_id)
            for name in lost.mirrors:
                self._echo(f"  {name}: mirror of cluster {lost.source_id}")
            for name in lost.opened:
                self._echo(f"  {name}: {Stage.PROMOTED.value}")
            if self._options.dry_run:
                self._echo(f"dry run: would promote {len(lost.mirrors)} topics without the source")
                return DONE
            # A topic may be fenced, by a promotion of the other direction that still runs.
            removal = FenceRemoval(
                self._reactor, self._config.target, self._config.source, self._echo
            )
            taken_back = await removal.take_back(catalog, lost.mirrors)
            tps = partitions_of(lost.mirrors, topics)
            ends = await until_read_only(target, tps, timeout=TIMEOUT)
            timestamps = await _last_timestamps(target, tps)
            if lost.mirrors:
                stored = Opened(lost.source_id, SOURCE_LOST, self._began_ms, (), ())
                look = partial(self._look_without_source, catalog, topics, taken_back)
                await self._open(target, catalog, lost.mirrors, ends, stored, timestamps, look=look)
            else:
                self._echo("every topic is promoted already")
            record = PromotionReport(
                self._config.name,
                lost.source_id,
                identity_of(target, self._config.target),
                lost.mode,
                tuple(PromotedPartition(tp, ends[tp], None, timestamps.get(tp)) for tp in tps),
                began_ms=self._began_ms,
            ).joined(
                lost.opened.values(),
                [each for name, found in lost.opened.items() for each in found.partitions(name)],
            )
            self._finish(record)
        finally:
            await uninterrupted(target.close())
        stamps = [each.last_timestamp_ms for each in record.partitions]
        newest = max((each for each in stamps if each is not None), default=None)
        age = "" if newest is None else f"; the newest copied record is {_age(newest)} old"
        self._echo(
            f"records that {self._config.source} has and {self._config.target} lacks: unknown{age}"
        )
        return DONE

    async def _look_without_source(
        self, catalog: Catalog, topics: Mapping[str, Topic], taken_back: TakenBack, name: str
    ) -> None:
        """Raise `Refused` if another command has changed the mirror *name* since *topics* were read."""
        before, now = topics[name].overrides, await catalog.overrides_of(name)
        reason = promotion.changed_by_another(
            before,
            now,
            is_taken_back=name in taken_back.names,
            is_refused=name in taken_back.refused,
        )
        if reason:
            raise Refused(
                f"{name} is not opened: {reason}. Repeat the command if {self._config.source} is lost"
            )

    # --- shared

    def _mirror(self) -> Mirror:
        return Mirror(
            self._reactor,
            self._config,
            once=False,
            report=lambda about, what: self._echo(f"  {about}: {what}"),
            cluster=self._cluster,
        )

    async def _names(self, name: str, cluster: Cluster, catalog: Catalog) -> Mapping[str, int]:
        """Return every topic of the cluster *name* with its number of partitions. Raise `Refused`, KafkaError."""
        selects = self._topics.selects if name == self._config.source else self._topics.selects_copy
        present, unknown = await names_that_exist(self._reactor, cluster, catalog, selects)
        self._refuse_unknown(name, unknown)
        return present

    @staticmethod
    def _refuse_unknown(name: str, unknown: Collection[str]) -> None:
        if unknown:
            which = ", ".join(sorted(unknown))
            raise Refused(
                f"the broker at {name} does not know {which} yet, or its controller does not answer"
            )

    async def _roles(self, mirror: Mirror) -> Roles:
        """Read the topics of both clusters. Raise `Refused` if one of them cannot be promoted."""
        source_topics, target_topics = Catalog(mirror.source), Catalog(mirror.target)
        present = await self._names(self._config.source, mirror.source, source_topics)
        names = [name for name in present if self._topics.selects(name)]
        source = await source_topics.topics(names, configs_too=True, present=present)
        copies = {name: self._topics.target_name(name) for name in source}
        there, unknown = await names_with(self._reactor, target_topics, copies.values())
        self._refuse_unknown(self._config.target, unknown)
        target = await target_topics.topics(copies.values(), configs_too=True, present=there)
        for catalog in (source_topics, target_topics):
            for problem in catalog.unreadable.values():
                raise problem
        source_id, target_id = mirror.source_id, mirror.target_id
        stages = promotion.stages(
            TopicPair(
                name=name,
                source=source[name],
                target=target.get(copy),
                copy=copy,
                source_id=source_id,
                target_id=target_id,
            )
            for name, copy in copies.items()
        )
        return Roles(source_id, target_id, source_topics, target_topics, source, target, stages)

    async def _open(
        self,
        cluster: Cluster,
        catalog: Catalog,
        topics: Iterable[str],
        ends: Mapping[TopicPartition, int],
        found: Opened,
        timestamps: Mapping[TopicPartition, int],
        lacks: Mapping[TopicPartition, int | None] | None = None,
        modes: Mapping[str, str] = MappingProxyType({}),
        look: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """Make the target's topics writable and wait until every leader accepts producers.

        Each topic gets *found* with its log ends, its timestamps, what it lacks, and its mode of *modes* in the same
        change. Directly before it *look* looks at the topic's fence; raise what it raises.
        """
        begun: list[str] = []
        target = self._config.target
        try:
            for name in topics:
                if look is not None:
                    await look(name)
                begun.append(name)  # the outcome of a change that failed is unknown
                tps = sorted(tp for tp in ends if tp.topic == name)
                stored = replace(
                    found,
                    mode=modes.get(name, found.mode),
                    ends=tuple(ends[tp] for tp in tps),
                    timestamps=tuple(timestamps.get(tp) for tp in tps),
                    lacks=None if lacks is None else tuple(lacks.get(tp) for tp in tps),
                )
                if problem := await catalog.promoted(name, stored.text()):
                    self._echo(f"  {name}: a later command cannot print this record: {problem}")
            await until_writable(cluster, list(ends), timeout=TIMEOUT)
        except (CancelledError, KafkaError, Refused):
            self._echo(
                f"{target} may accept producers: {', '.join(begun) or 'no topic'}. Repeat the command to continue"
            )
            if not self._options.source_lost:
                self._echo(
                    f"where {self._config.source} has the fence, it is read-only. kmirror promote --abort opens there "
                    f"what {target} has not opened"
                )
            raise
        self._echo(f"{target} accepts producers: {', '.join(begun)}")

    def _finish(self, record: PromotionReport) -> None:
        self.record = record.document(ended_ms=_now_ms())


def _refuse(reason: str) -> None:
    if reason:
        raise Refused(reason)


async def _refuse_new_partitions(roles: Roles) -> None:
    """Raise `Refused` if partitions were added at the source since its topics were read: they are in no cut.

    Those that are added later are read-only from their beginning, because the mark is a setting of the topic.
    """
    now = await roles.source_topics.partitions_at_controller(roles.left)
    if changed := promotion.changed_partitions(roles.source, now):
        raise Refused(f"{changed}. Repeat the command when the target has them, too")


def _difference(tp: TopicPartition, ends: LogEnds, *, compacted: bool) -> str:
    # The topic ids were compared with the marks.
    found = judgement(ends, Lineage(), GapPolicy.FAIL, compacted=compacted)
    return "" if found is None else f"{tp}: {found}"


async def _fenced_ends(
    cluster: Cluster, tps: Iterable[TopicPartition]
) -> tuple[dict[TopicPartition, int], Sequence[TopicPartition]]:
    """Return the log end offsets of the leaders that reject producers, and the partitions of those that accept them.

    Other partitions are in neither. A high watermark of one shows nothing: records may follow it.
    """
    by_topic: dict[str, list[TopicPartition]] = {}
    for tp in tps:
        by_topic.setdefault(tp.topic, []).append(tp)
    each = list(by_topic.values())
    try:
        return await until_read_only(cluster, chain(*each), timeout=TIMEOUT), ()
    except FenceTimeout as problem:
        return _ends_in(problem), problem.writable
    except KafkaError:
        # Of a topic, such as a missing permission. It ended the requests for the others.
        settled = await all_settled(until_read_only(cluster, one, timeout=TIMEOUT) for one in each)
    found: dict[TopicPartition, int] = {}
    writable: list[TopicPartition] = []
    for answer in settled:
        if isinstance(answer, FenceTimeout):
            found |= _ends_in(answer)
            writable += answer.writable
        elif not isinstance(answer, KafkaError):
            found |= answer
    return found, writable


def _ends_in(problem: FenceTimeout) -> dict[TopicPartition, int]:
    return {tp: end for tp, end in problem.found.items() if isinstance(end, int)}


async def _high_watermarks(
    cluster: Cluster, tps: Iterable[TopicPartition], *, required: bool = False
) -> dict[TopicPartition, int]:
    """Return the high watermarks.

    A partition that cannot be read is missing, or with *required* its KafkaError is raised.
    """
    answers = await high_watermarks(cluster, dict.fromkeys(tps))
    for answer in answers.values():
        if required and isinstance(answer, KafkaError):
            raise answer
    return {tp: each for tp, each in answers.items() if not isinstance(each, KafkaError)}


def _without_fence(source: str, tps: Iterable[TopicPartition]) -> str:
    return f"{source} accepts producers in {', '.join(map(str, tps))}: it has no fence"


async def _last_timestamps(
    cluster: Cluster, tps: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the largest timestamp of each partition that has records and can be read."""
    answers = await list_offsets(cluster, dict.fromkeys(tps, MAX_TIMESTAMP), timeout=TIMEOUT)
    return {
        tp: each.timestamp
        for tp, each in answers.items()
        if isinstance(each, OffsetAndTimestamp) and each.timestamp >= 0
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _age(timestamp_ms: int) -> str:
    return f"{max(0, _now_ms() - timestamp_ms) / 1000:.1f} s"


async def show_promotion(
    reactor: Any, config: FlowConfig, options: Options, echo: Echo
) -> tuple[int, dict[str, Any] | None]:
    """Promote; return the exit code and the record."""
    promoting = Promotion(reactor, config, options, echo)
    return await promoting.run(), promoting.record
