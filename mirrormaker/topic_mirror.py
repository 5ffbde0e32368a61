"""The topics of one direction: compared, changed at the target, and linked partition by partition.

A comparison reads the topics of both clusters and plans the copies (`mirrormaker.topics`). Then the target's topics are
created and changed, and new partitions get links. The links of a topic that is deleted at the source are removed, and
the target topic stays, or is deleted later (`mirrormaker.deletions`). A topic with a new topic id gets new links; their
lineage check stops them, or declares a gap (`mirrormaker.lineage`).

Where workers share the direction (`mirrormaker.workers`), this process has links for its part of the partitions, and
changes topics only while it is elected.

Owner: `Mirror`, on the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple
from uuid import UUID

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kclient.admin.acls import create_topic_acls, describe_topic_acls
from kclient.errors import KafkaError
from kclient.mirror_ledger import LINEAGE
from kclient.net.cluster import Cluster
from kclient.types import TopicPartition
from kclient.wire.errors import PolicyViolation
from mirrormaker.acl_sync import AclSync
from mirrormaker.catalog import TIMEOUT, Applied, Catalog
from mirrormaker.config import FlowConfig
from mirrormaker.deletions import TopicDeletions, orphans
from mirrormaker.flow import Flow
from mirrormaker.ledger import Ledger
from mirrormaker.link import PartitionLink
from mirrormaker.link_state import GapPolicy
from mirrormaker.log_ends import high_watermarks, read_cuts
from mirrormaker.new_lineage import begin_lineages
from mirrormaker.shared_direction import WholeDirection
from mirrormaker.target_offsets import TargetOffsets
from mirrormaker.topics import Plan, Selection, Topic, compared_with
from mirrormaker.workers import left_to_elected, partitions_of

ACLS_TIMEOUT = 2.0
"""Seconds for which the ACLs of a cluster are asked for."""


class Comparison(NamedTuple):
    """What a comparison of the topics gives to the links: they follow *plan*, for the topics of *source*.

    The target topics *left* have no links yet: they are to be created or changed first.
    """

    plan: Plan
    source: Mapping[str, Topic]
    left: set[str]


class TopicMirror:
    """Mirrors the topics of one direction by the links of *flow*.

    *report* gets (subject, problem) for the operator, *report_line* other events. *defect* gets a failure that is not a
    KafkaError. *direction* is the share of this process.
    """

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        config: FlowConfig,
        *,
        flow: Flow,
        offsets: TargetOffsets,
        ledger: Ledger,
        direction: WholeDirection,
        source_id: Callable[[], str],
        target_id: Callable[[], str],
        once: bool,
        report: Callable[[str, str], None],
        report_line: Callable[[str, str], None],
        defect: Callable[[Failure], None],
    ) -> None:
        self._source = source
        self._target = target
        self._config = config
        self._flow = flow
        self._offsets = offsets
        self._ledger = ledger
        self._direction = direction
        self._source_id = source_id
        self._target_id = target_id
        self._once = once
        self._report = report
        self._report_line = report_line
        self._defect = defect
        self._seconds: Callable[[], float] = source.reactor.seconds
        self._selection = Selection(config.source, config.target, config.settings)
        self._source_topics = Catalog(source)
        self._target_topics = Catalog(target)
        self._deletes_topics = config.settings.topic_deletion_policy == "delete"
        self._deletions = TopicDeletions(
            self._source_topics, self._target_topics, config.settings, report=self._report_line
        )
        self.acls = AclSync(
            config.settings,
            at_source=partial(describe_topic_acls, source, timeout=ACLS_TIMEOUT),
            at_target=partial(describe_topic_acls, target, timeout=ACLS_TIMEOUT),
            create=partial(create_topic_acls, target, timeout=TIMEOUT),
            report=self._report_line,
        )
        self._ids: dict[str, Topic] = {}
        self._first: frozenset[str] = frozenset()
        """Without refresh.topics.enabled: the source topics of the first comparison that found some."""
        self.conflicts: dict[str, str] = {}
        """Topics that cannot be mirrored, with the reason."""
        self._configs_due = 0.0
        self._largest: dict[str, int] = {}
        """By source topic, the size of the largest batch that the target rejected as too large."""
        self._raising: set[str] = set()
        self.skipped: Mapping[str, str] = {}
        """Topics that need no copy, with the reason: it would be a loop, or a second copy of the same origin."""
        self._refused: dict[tuple[str, str], str | None] = {}
        """By target topic and config, the value that the target refuses."""
        self._copies: dict[str, UUID | None] = {}
        """The topic ids of the target topics."""
        self.compared: dict[str, Topic] = {}
        """The source's topics of the last plan."""
        self._comparison: Comparison | None = None
        """The last one."""

    # --- comparing

    async def plan(self) -> Plan:
        """Compare both clusters' topics."""
        now = self._seconds()
        configs_too = now >= self._configs_due
        present = await self._source_topics.names()
        wanted = [name for name in present if self._selection.wants(name)]
        if not self._config.settings.refresh_topics:
            self._first = self._first or frozenset(wanted)
            wanted = [name for name in wanted if name in self._first]
        source = await self._source_topics.topics(wanted, configs_too=configs_too, present=present)
        copies = {
            copy
            for name, topic in source.items()
            for copy in self._selection.target_names(name, topic.topic_id)
        }
        there = await self._target_topics.names()
        target = await self._target_topics.topics(
            copies | self._possible_copies(there), configs_too=configs_too, present=there
        )
        ids = self._source_topics.topic_ids if self._deletes_topics else ()
        orphaned = orphans(ids, target, self._source_id())
        target = {name: topic for name, topic in target.items() if name in copies}
        if not self._config.settings.refresh_topics:
            source = self._without_new_partitions(source, target)
        if configs_too:
            self._configs_due = now + self._config.settings.sync_configs_interval
            self._refused.clear()
        self.compared = source = {
            name: topic.with_batches_of(self._largest.get(name, 0))
            for name, topic in source.items()
        }
        unreadable = self._unreadable(source)
        returned = dict.fromkeys(
            await self._offsets.returned(source),
            f"its records come from {self._config.target}",
        )
        plan = self._selection.plan(
            {
                name: topic
                for name, topic in source.items()
                if name not in unreadable and name not in returned
            },
            target,
            self._source_id(),
            self._target_id(),
        )
        plan = replace(
            plan,
            conflicts={**plan.conflicts, **unreadable},
            orphans=orphaned,
            skipped={**plan.skipped, **returned},
        )
        self._drop_replaced({name: topic.topic_id for name, topic in target.items()})
        return plan

    def _without_new_partitions(
        self, source: Mapping[str, Topic], target: Mapping[str, Topic]
    ) -> dict[str, Topic]:
        """Return *source* without the partitions that were added since the first comparison.

        Those that *target* has, too, stay: a target with more partitions than the source would be a conflict.
        """
        found = {}
        for name, topic in source.items():
            before = self.compared.get(name)
            if before is not None and before.topic_id == topic.topic_id:
                copies = self._selection.target_names(name, topic.topic_id)
                there = max(
                    (target[copy].partitions for copy in copies if copy in target), default=0
                )
                most = max(before.partitions, there)
                topic = replace(topic, partitions=min(topic.partitions, most))
            found[name] = topic
        return found

    def _possible_copies(self, names: Iterable[str]) -> set[str]:
        """Return which target topics may be mirrors of a deleted source topic, if such are to be deleted."""
        if not self._deletes_topics:
            return set()
        return {name for name in names if self._selection.source_name(name) is not None}

    async def validate(self, plan: Plan) -> Applied:
        """Return what of *plan* the target would refuse; change nothing."""
        return await self._target_topics.validate(
            plan, replication_factor=self._config.settings.replication_factor
        )

    def _unreadable(self, source: Mapping[str, Topic]) -> dict[str, str]:
        """Return the topics with configs that cannot be read, and why. Raise the error if it may pass.

        Without its marks, a target topic could be taken for a new one.
        """
        found = {}
        for name, problem in self._source_topics.unreadable.items():
            # Retriable: it was deleted, or is not in the metadata of all brokers yet.
            if not problem.retriable:
                found[name] = f"its configs cannot be read at the source: {problem}"
        for name, topic in source.items():
            for copy in self._selection.target_names(name, topic.topic_id):
                problem_there = self._target_topics.unreadable.get(copy)
                if problem_there is not None and problem_there.retriable:
                    raise problem_there
                if problem_there is not None:
                    found[name] = f"its configs cannot be read at the target: {problem_there}"
        return found

    def _drop_replaced(self, found: Mapping[str, UUID | None]) -> None:
        """Remove the links of target topics that an operator deleted and created again; they get new ones.

        The proof is another topic id, or that this process created the topic (`refresh`). That the metadata lack a
        topic is none: a broker that has just started answers before it knows the topics.
        """
        for copy, topic_id in found.items():
            known = self._copies.get(copy)
            if None not in (known, topic_id) and known != topic_id:
                self._drop_copies(copy)
        self._copies.update(found)

    def _drop_copies(self, copy: str) -> None:
        """Remove the links to a target topic that was deleted; they get new ones."""
        links = self._flow.copied_to(copy)
        if links:
            self._report_line(f"topic {copy}", "was deleted at the target; copied again")
        for tp in links:
            self._flow.remove(tp)

    # --- what the flow needs at the target

    def too_large(self, topic: str, size: int) -> None:
        """Raise max.message.bytes at the target: it rejected a batch of *size* bytes that the source has."""
        self._largest[topic] = max(size, self._largest.get(topic, 0))
        if topic in self._raising:
            return
        self._raising.add(topic)
        raising = Deferred.fromCoroutine(self._raise_limit(topic))
        raising.addErrback(self._defect)

    def _copy_of(self, topic: str) -> str:
        """Return the target topic of the source topic *topic*, as of the last comparison."""
        mirrored = {} if self._comparison is None else self._comparison.plan.mirrored
        return mirrored.get(topic, self._selection.target_name(topic))

    async def _raise_limit(self, topic: str) -> None:
        copy = self._copy_of(topic)
        try:
            found = await self._source_topics.limit_of(topic)
            there = await self._target_topics.limit_of(copy)  # another worker may have raised it
            limit = max(self._largest[topic], found, there)
            await self._target_topics.set_config(copy, "max.message.bytes", str(limit))
            self._report_line(
                f"topic {copy}",
                f"max.message.bytes is {limit} now: the source has a batch of {self._largest[topic]} bytes",
            )
            self._configs_due = 0.0
        except KafkaError as problem:
            self._report(f"topic {copy}", f"max.message.bytes cannot be raised: {problem}")
        finally:
            self._raising.discard(topic)

    async def mark(self, copy: str, source: str, topic_id: str) -> None:
        """Mark the target topic *copy* as a mirror of *source*. Raise KafkaError.

        The source topic is read again first: another mirror may have marked it as a mirror of the target meanwhile.
        """
        found = Topic(0, None, await self._source_topics.overrides_of(source))
        if self._target_id() in found.upstream:
            raise PolicyViolation(f"{source} at the source is a mirror of the target")
        compared = compared_with(found, self._target_id())
        await self._target_topics.mark(copy, self._source_id(), topic_id, found.upstream, compared)

    # --- changes and links

    async def refresh(self) -> None:
        """Compare the topics, change the target's, and add links for new partitions."""
        plan = self._without_refused(await self.plan())
        is_elected = self._direction.is_elected
        applied = Applied({}, {})
        if is_elected:
            waiting = await begin_lineages(
                plan.new_lineages,
                topic_id_of=self._source_topics.topic_id_at_controller,
                ends_of=partial(high_watermarks, self._target),
                record=partial(self._ledger.record, type=LINEAGE),
            )
            plan = plan.without(waiting)
            applied = await self._target_topics.apply(
                plan, replication_factor=self._config.settings.replication_factor
            )
        for tp in self._flow.copied_elsewhere(plan.mirrored):
            self._flow.remove(tp)  # it gets a link to the other target topic
        self._report_refused(plan, applied)
        failed = applied.failed
        conflicts = dict(plan.conflicts)
        conflicts |= {
            name: f"cannot be created or changed at the target: {problem}"
            for name, problem in failed.items()
        }
        for name, conflict in conflicts.items():
            if self.conflicts.get(name) != conflict:
                self._report(f"topic {name}", conflict)
        self.conflicts = conflicts
        self._leave(plan.skipped)
        for name in conflicts:
            for copy in self._selection.target_names(name, self._source.metadata.topic_id(name)):
                self._target_topics.forget(copy)
        for creation in plan.create if is_elected else ():
            if creation.name not in failed:
                self._drop_copies(creation.name)
                self._copies.pop(creation.name, None)
                self._report_line(
                    f"topic {creation.name}", f"created with {creation.partitions} partitions"
                )
        left = set(failed)
        if not is_elected:
            left = left_to_elected(plan)
            for copy in left | plan.unmarked:
                self._target_topics.forget(copy)
        marked = set(plan.mirrored.values()) - plan.unmarked - left
        self._flow.marks.known(marked, plan.unmarked)
        await self._sync_acls(plan.mirrored)
        await self._drop_vanished(self.compared)
        self._comparison = Comparison(plan, self.compared, left)
        await self.update_links()
        if self._deletes_topics and not self._once:
            orphaned = plan.orphans if self._direction.is_elected else {}
            names = {copy: self._selection.source_name(copy) or copy for copy in orphaned}
            await self._deletions.compared(orphaned, names, self._source_id(), self._seconds())
        await self._update_stopped()

    async def _sync_acls(self, mirrored: Mapping[str, str]) -> None:
        if not self._direction.is_elected:
            self.acls.left_to_another()
            return
        await self.acls.run(
            mirrored,
            wanted=self._selection.wants,
            present=self._source.metadata.topics,
            now=self._seconds(),
        )

    def _leave(self, skipped: Mapping[str, str]) -> None:
        """Report topics that are not copied, once, and remove their links."""
        for name, reason in skipped.items():
            if self.skipped.get(name) != reason:
                self._report_line(f"topic {name}", f"is not copied: {reason}")
            self._remove_links(name)
        self.skipped = skipped

    def _without_refused(self, plan: Plan) -> Plan:
        """Return *plan* without the configs that the target refused since the configs were last read."""
        kept = {
            topic: {
                name: value
                for name, value in changes.items()
                if (topic, name) not in self._refused or self._refused[topic, name] != value
            }
            for topic, changes in plan.set_configs.items()
        }
        return replace(plan, set_configs={topic: each for topic, each in kept.items() if each})

    def _report_refused(self, plan: Plan, applied: Applied) -> None:
        """Report configs that the target refuses as drift: the topic is copied nevertheless."""
        wanted = {c.name: c.configs for c in plan.create} | dict(plan.set_configs)
        for (topic, name), problem in applied.refused.items():
            value = wanted[topic].get(name)
            self._refused[topic, name] = value
            self._report(f"topic {topic}", f"DRIFT {name}={value} is not set: {problem}")

    async def _update_stopped(self) -> None:
        """Read the source's high watermarks for the lag of stopped links, which fetch nothing."""
        stopped = {link.tp: link for link in self._flow.stopped_links}
        for tp, offset in (await high_watermarks(self._source, stopped)).items():
            if isinstance(offset, int):
                stopped[tp].source_advanced(offset)

    async def _drop_vanished(self, source: dict[str, Topic]) -> None:
        """Remove the links of topics that were deleted, or deleted and created again; the latter get new links."""
        deleted = await self._source_topics.deleted(self._ids.keys() - source.keys())
        for name, known in list(self._ids.items()):
            found = source.get(name)
            if found is None and name not in deleted:
                continue
            if found is None:
                stays = "" if self._deletes_topics else "; the target topic stays"
                self._report_line(f"topic {name}", f"was deleted at the source{stays}")
                self._remove_links(name)
                del self._ids[name]
            elif found.topic_id != known.topic_id and known.topic_id is not None:
                self._remove_links(name)
                self._ids[name] = found

    def _is_created(self, copied: TopicPartition) -> bool:
        """Return whether a target partition exists: created by this process, or in the target's metadata."""
        return self._direction.is_elected or self._target.metadata.partition(copied) is not None

    def _remove_links(self, topic: str) -> None:
        for tp in [tp for tp in self._flow.links if tp.topic == topic]:
            self._flow.remove(tp)

    async def update_links(self) -> None:
        """Add links for the partitions that this process copies; remove those that other workers copy.

        By the last comparison, if there is one.
        """
        if self._comparison is None:
            return
        plan, source, left = self._comparison
        new: dict[TopicPartition, TopicPartition] = {}
        share = self._direction.share(plan, source)
        for tp in partitions_of(plan, source):
            if tp in self._flow.links and tp not in share:
                self._flow.remove(tp)
        for name, copy in plan.mirrored.items():
            if copy in left:
                continue
            self._ids.setdefault(name, source[name])
            for partition in range(source[name].partitions):
                tp, copied = TopicPartition(name, partition), TopicPartition(copy, partition)
                if tp in share and tp not in self._flow.links and self._is_created(copied):
                    new[tp] = copied
        cuts = await read_cuts(self._source, new) if self._once else {}
        for tp, copied in new.items():
            topic = source[tp.topic]
            link = PartitionLink(
                tp,
                topic_id=topic.topic_id,
                lineage=plan.lineages.get(copied.topic),
                cut=cuts.get(tp),
                compacted=topic.compacted,
                gap_policy=GapPolicy(self._config.settings.gap_policy),
                retries=not self._once,
            )
            self._flow.add(link, copied)
