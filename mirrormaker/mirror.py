"""One direction of the mirror from start to stop: connect, plan, refresh, cut.

Theory of operation
===================
Start: the mirror connects to both clusters and retries until both answer. It checks that the target's brokers support
conditional appends, compares the topics, and starts a link per partition. Then it compares the topics again every
``refresh.topics.interval.seconds``. New topics and partitions get links. The links of a topic that is deleted at the
source are removed, and the target topic stays, or is deleted later (`mirrormaker.deletions`). A topic with a new topic
id gets new links; their lineage check stops them, or declares a gap (`mirrormaker.lineage`).

Several processes share a direction, if the ZooKeeper of its target is configured (`mirrormaker.workers`). Then this
mirror has links for its part of the partitions, and changes topics at the target only while it is elected. With every
change of the workers it compares the topics again at once, and adds and removes links.

With *once* the source's log ends at the creation of the links are the cut. Each link finishes there, and the mirror
with the last link. If nothing is copied for `STALL_TIMEOUT` seconds, the mirror fails with its last error.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeout
from twisted.python.failure import Failure

from kclient.admin.acls import create_topic_acls, describe_topic_acls
from kclient.config import CommonConfig
from kclient.consumer.wakeup import Wakeup
from kclient.errors import ClientError, ConfigError, KafkaError
from kclient.mirror_evidence import evidence_topic
from kclient.mirror_ledger import LINEAGE, ledger_topic
from kclient.net.cluster import Cluster
from kclient.net.waiting import sleep
from kclient.types import TopicPartition
from kclient.wire.errors import PolicyViolation
from mirrormaker.acl_sync import AclSync
from mirrormaker.alarms import Alarms
from mirrormaker.catalog import TIMEOUT, Applied, Catalog
from mirrormaker.config import FlowConfig
from mirrormaker.deletions import TopicDeletions, orphans
from mirrormaker.evidence import Evidence
from mirrormaker.group_sync import GroupMirror
from mirrormaker.heartbeats import Heartbeats
from mirrormaker.ledger import Ledger
from mirrormaker.link import PartitionLink
from mirrormaker.link_state import GapPolicy
from mirrormaker.log_ends import high_watermarks, read_cuts
from mirrormaker.new_lineage import begin_lineages
from mirrormaker.shared_direction import SharedDirection, WholeDirection
from mirrormaker.target import UnsupportedTarget
from mirrormaker.target_offsets import KeptOffsets, RenumberedOffsets, TargetOffsets
from mirrormaker.topics import Plan, Selection, Topic
from mirrormaker.transactional_target import NoTransactions
from mirrormaker.workers import Workers, left_to_elected, partitions_of

STALL_TIMEOUT = 60.0
"""Seconds without progress after which `--once` fails."""

RETRY = 2.0
"""Seconds before a failed request to a cluster is repeated."""

DRAIN = 5.0
"""Seconds that `Mirror.stop` waits for appends in flight."""


class MirrorStalled(ClientError):
    """No record was copied for `STALL_TIMEOUT` seconds; the text has the last error."""


class Comparison(NamedTuple):
    """What a comparison of the topics gives to the links: they follow *plan*, for the topics of *source*.

    The target topics *left* have no links yet: they are to be created or changed first.
    """

    plan: Plan
    source: Mapping[str, Topic]
    left: set[str]


def identity_of(cluster: Cluster, alias: str) -> str:
    """Return what identifies *cluster* in marks, ledgers and records: its id, or *alias* if its brokers send none."""
    return cluster.metadata.cluster_id or alias


class Mirror:
    """Mirrors one direction. *report* gets (subject, event) for the operator.

    *cluster* creates the client of each cluster. With *is_worker* the mirror shares the direction, if the configuration
    names a ZooKeeper; *zookeeper* is passed to `WorkerRegistry`, *worker_id* to `Workers`.
    """

    def __init__(
        self,
        reactor: Any,
        config: FlowConfig,
        *,
        once: bool,
        report: Callable[[str, str], None],
        cluster: Callable[[Any, CommonConfig], Cluster] = Cluster,
        is_worker: bool = False,
        zookeeper: Callable[..., Any] | None = None,
        worker_id: str | None = None,
    ) -> None:
        self.config = config
        self.once = once
        self._reactor = reactor
        self._report_line = report
        self._last_error = ""
        self.source = cluster(reactor, config.source_client)
        self.target = cluster(reactor, config.target_client)
        self._finished: Deferred[None] = Deferred()
        self.ledger = Ledger(
            self.target,
            ledger_topic(config.source),
            lambda: self.source_id,
            replication_factor=config.settings.replication_factor,
        )
        self.offsets = self._target_offsets()
        self._evidence = self._new_evidence()
        self._evidence_running: Deferred[None] | None = None
        self.flow = self.offsets.flow(
            self.source,
            self.target,
            config.settings,
            report=self._report,
            done=self._maybe_finished,
            defect=self._end,
            mark=self._mark,
            too_large=self._too_large,
            record=self.ledger.record,
            rejected=self._rejected,
            evidence=self._evidence,
        )
        self._wakeup = Wakeup(reactor)
        """Ends the wait for the next comparison of the topics."""
        self._direction = WholeDirection()
        if is_worker and config.workers is not None:
            self._direction = SharedDirection(
                reactor,
                config,
                changed=self._wakeup.wake,
                report=report,
                defect=self._end,
                client=zookeeper,
                worker_id=worker_id,
            )
        self._comparison: Comparison | None = None
        """The last one."""
        self.groups = GroupMirror(
            self.source,
            self.target,
            config.settings,
            alias=config.source,
            copies=self._proven_copies,
            translator=self.offsets.translator,
            report=self._report,
        )
        self.alarms = Alarms(
            no_progress=config.settings.alarm_no_progress, lag=config.settings.alarm_lag
        )
        self._groups_running: Deferred[None] | None = None
        self._heartbeats = Heartbeats(
            self.source,
            self.target,
            config,
            is_elected=lambda: self._direction.is_elected,
            report=self._report,
        )
        self._heartbeats_running: Deferred[None] | None = None
        self._selection = Selection(config.source, config.target, config.settings)
        self._source_topics = Catalog(self.source)
        self._target_topics = Catalog(self.target)
        self._deletes_topics = config.settings.topic_deletion_policy == "delete"
        self._deletions = TopicDeletions(
            self._source_topics, self._target_topics, config.settings, report=self._report_line
        )
        self._acls = AclSync(
            config.settings,
            at_source=partial(describe_topic_acls, self.source, timeout=RETRY),
            at_target=partial(describe_topic_acls, self.target, timeout=RETRY),
            create=partial(create_topic_acls, self.target, timeout=TIMEOUT),
            report=self._report_line,
        )
        self._ids: dict[str, Topic] = {}
        self._conflicts: dict[str, str] = {}
        self._configs_due = 0.0
        self._largest: dict[str, int] = {}
        """By source topic, the size of the largest batch that the target rejected as too large."""
        self._raising: set[str] = set()
        self._skipped: Mapping[str, str] = {}
        self._refused: dict[tuple[str, str], str | None] = {}
        """By target topic and config, the value that the target refuses."""
        self._copies: dict[str, UUID | None] = {}
        """The topic ids of the target topics."""
        self._running: Deferred[None] | None = None
        self._planned = False
        self.compared: dict[str, Topic] = {}
        """The source's topics of the last plan."""

    def _new_evidence(self) -> Evidence | None:
        """Return what writes evidence of the copy, if that is enabled."""
        settings = self.config.settings
        if not settings.emit_evidence:
            return None
        return Evidence(
            self.target,
            evidence_topic(self.config.source),
            lambda: self.source_id,
            interval=settings.emit_evidence_interval,
            replication_factor=settings.replication_factor,
            report=self._report,
        )

    def _target_offsets(self) -> TargetOffsets:
        settings = self.config.settings
        if not settings.renumbers:
            return KeptOffsets(self.source, self.target)
        return RenumberedOffsets(
            self.source,
            self.target,
            is_transactional=settings.is_transactional,
            source_id=lambda: self.source_id,
            target_id=lambda: self.target_id,
        )

    # --- start and stop

    def run(self) -> Deferred[None]:
        """Mirror until the cut (once) or until `stop`; fail with the error that ends the mirror."""
        self._running = Deferred.fromCoroutine(self._run())
        self._running.addErrback(self._end)
        return self._finished

    async def open(self) -> None:
        """Connect once and check both clusters as `run` does. Raise KafkaError."""
        await self.source.start()
        await self.target.start()
        self._check_clusters()
        await self.offsets.check_target()

    async def stop(self) -> None:
        """Wait at most `DRAIN` seconds for appends in flight, then close both clients."""
        for running in (
            self._running,
            self._groups_running,
            self._heartbeats_running,
            self._evidence_running,
        ):
            if running is not None:
                running.cancel()
        self.flow.stop()
        until = self._reactor.seconds() + DRAIN
        while self.flow.appends_in_flight and self._reactor.seconds() < until:
            await sleep(self._reactor, 0.02)
        await self.flow.close_sessions()
        await self._write_last_evidence(until)
        await self._direction.stop()
        await self.source.close()
        await self.target.close()
        if not self._finished.called:
            self._finished.callback(None)

    async def _write_last_evidence(self, until: float) -> None:
        """Write the evidence of the last records, if that takes no longer than *until*."""
        if self._evidence is None:
            return
        written = Deferred.fromCoroutine(self._evidence.write())
        written.addTimeout(max(0.1, until - self._reactor.seconds()), self._reactor)
        with suppress(DeferredTimeout):
            await written

    @property
    def stopped_links(self) -> list[PartitionLink]:
        """Links that stopped because of a problem, and do not copy again yet."""
        return [link for link in self.flow.links.values() if link.problem is not None]

    @property
    def workers(self) -> Workers | None:
        """The workers of this direction; None: this process copies everything."""
        return self._direction.workers

    @property
    def conflicts(self) -> dict[str, str]:
        """Topics that cannot be mirrored, with the reason."""
        return self._conflicts

    async def _run(self) -> None:
        await self._connect_cluster(self.source, self.config.source)
        await self._connect_cluster(self.target, self.config.target)
        self._check_clusters()
        while True:
            try:
                await self.offsets.check_target()
                await self._refresh()
                break
            except (UnsupportedTarget, NoTransactions):
                raise
            except KafkaError as problem:
                self._report_error("topics", problem)
                self._check_stalled()
                await sleep(self._reactor, RETRY)
        self._planned = True
        self._direction.compared()
        self._direction.enter(self.source_id)
        if not self.once:
            self._groups_running = Deferred.fromCoroutine(self.groups.run())
            self._groups_running.addErrback(self._end)
            self._heartbeats_running = Deferred.fromCoroutine(self._heartbeats.run())
            self._heartbeats_running.addErrback(self._end)
        if self._evidence is not None:
            self._evidence_running = Deferred.fromCoroutine(self._evidence.run())
            self._evidence_running.addErrback(self._end)
        self._maybe_finished()
        settings = self.config.settings
        while self.once or settings.refresh_topics:
            await self._wakeup.wait(1.0 if self.once else settings.refresh_interval)
            if self.once:
                self._check_stalled()
                continue
            try:
                await self._refresh()
            except KafkaError as problem:
                self._report_error("topics", problem)
                if self._comparison is not None:
                    await self._add_links(self._comparison)
            else:
                self._direction.compared()
            self._direction.update_registration(
                {
                    "partitions": len(self.flow.links),
                    "stopped": len(self.stopped_links),
                    "alarms": len(self.alarms.stalled),
                }
            )

    async def _connect_cluster(self, cluster: Cluster, alias: str) -> None:
        """Connect to *cluster*; retry forever, or with *once* for `STALL_TIMEOUT` seconds."""
        while True:
            try:
                await cluster.start()
                return
            except ConfigError:
                raise
            except KafkaError as problem:
                self._report_error(f"cluster {alias}", problem)
                self._check_stalled()
            await sleep(self._reactor, RETRY)

    def _check_clusters(self) -> None:
        ids = self.source.metadata.cluster_id, self.target.metadata.cluster_id
        if ids[0] is not None and ids[0] == ids[1]:
            raise ConfigError(
                f"{self.config.source} and {self.config.target} are the same cluster ({ids[0]})"
            )

    def _check_stalled(self) -> None:
        since = max(self.flow.progress.changed_at, self.flow.bandwidth.free_at)
        still = self._reactor.seconds() - since
        if self._groups_running is not None:
            return  # all records are copied; each request of the groups has its own timeout
        if self.once and still > STALL_TIMEOUT:
            what = self._last_error or "no error was reported"
            raise MirrorStalled(f"{self.config.name}: nothing was copied for {still:.0f} s: {what}")

    def _maybe_finished(self) -> None:
        """Finish with the last link; the groups are copied last, when the target has the records of their offsets."""
        if not (self.once and self._planned and self.flow.settled) or self._finished.called:
            return
        if self._groups_running is None:
            self._groups_running = Deferred.fromCoroutine(self.groups.run_once())
            self._groups_running.addCallback(self._finish).addErrback(self._end)

    def _finish(self, _: object) -> None:
        if not self._finished.called:
            self._finished.callback(None)

    def _proven_copies(self) -> dict[TopicPartition, TopicPartition]:
        """Return the partitions with offsets that can be copied, or translated, by source partition."""
        if not self._direction.copies_groups:
            return {}
        copies = self.flow.proven_copies()
        return {tp: copy for tp, copy in copies.items() if tp.topic not in self._conflicts}

    def _end(self, failure: Failure) -> None:
        """Fail `run` with *failure*, unless `stop` cancelled it."""
        if self._finished.called or failure.check(CancelledError):
            return
        self._finished.errback(failure)

    def _report_error(self, about: str, problem: KafkaError) -> None:
        self._report(about, str(problem))

    def _report(self, about: str, what: str) -> None:
        self._last_error = f"{about}: {what}"
        self._report_line(about, what)

    def _rejected(self, tp: TopicPartition) -> None:
        """Leave a partition alone that another worker copies, if this one has no session."""
        if self._direction.rejected(tp):
            self._report_line(str(tp), "another worker copies it")
            self.flow.remove(tp)

    # --- topics

    async def plan(self) -> Plan:
        """Compare both clusters' topics."""
        now = self._reactor.seconds()
        configs_too = now >= self._configs_due
        present = await self._source_topics.names()
        wanted = [name for name in present if self._selection.wants(name)]
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
        orphaned = orphans(ids, target, self.source_id)
        target = {name: topic for name, topic in target.items() if name in copies}
        if configs_too:
            self._configs_due = now + self.config.settings.sync_configs_interval
            self._refused.clear()
        self.compared = source = {
            name: topic.with_batches_of(self._largest.get(name, 0))
            for name, topic in source.items()
        }
        unreadable = self._unreadable(source)
        returned = dict.fromkeys(
            await self.offsets.returned(source),
            f"is not copied: its records come from {self.config.target}",
        )
        plan = self._selection.plan(
            {
                name: topic
                for name, topic in source.items()
                if name not in unreadable and name not in returned
            },
            target,
            self.source_id,
            self.target_id,
        )
        plan = replace(
            plan,
            conflicts={**plan.conflicts, **unreadable},
            orphans=orphaned,
            skipped={**plan.skipped, **returned},
        )
        self._drop_replaced({name: topic.topic_id for name, topic in target.items()})
        return plan

    def _possible_copies(self, names: Iterable[str]) -> set[str]:
        """Return which target topics may be mirrors of a deleted source topic, if such are to be deleted."""
        if not self._deletes_topics:
            return set()
        return {name for name in names if self._selection.source_name(name) is not None}

    async def validate(self, plan: Plan) -> Applied:
        """Return what of *plan* the target would refuse; change nothing."""
        return await self._target_topics.validate(
            plan, replication_factor=self.config.settings.replication_factor
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

        The proof is another topic id, or that this process created the topic (`_refresh`). That the metadata lack a
        topic is none: a broker that has just started answers before it knows the topics.
        """
        for copy, topic_id in found.items():
            known = self._copies.get(copy)
            if None not in (known, topic_id) and known != topic_id:
                self._drop_copies(copy)
        self._copies.update(found)

    def _drop_copies(self, copy: str) -> None:
        """Remove the links to a target topic that was deleted; they get new ones."""
        links = self.flow.copied_to(copy)
        if links:
            self._report_line(f"topic {copy}", "was deleted at the target; copied again")
        for tp in links:
            self.flow.remove(tp)

    def _too_large(self, topic: str, size: int) -> None:
        """Raise max.message.bytes at the target: it rejected a batch of *size* bytes that the source has."""
        self._largest[topic] = max(size, self._largest.get(topic, 0))
        if topic in self._raising:
            return
        self._raising.add(topic)
        raising = Deferred.fromCoroutine(self._raise_limit(topic))
        raising.addErrback(self._end)

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

    async def _mark(self, copy: str, source: str, topic_id: str) -> None:
        """Mark the target topic *copy* as a mirror of *source*. Raise KafkaError.

        The source topic is read again first: another mirror may have marked it as a mirror of the target meanwhile.
        """
        upstream = await self._source_topics.upstream_of(source)
        if self.target_id in upstream:
            raise PolicyViolation(f"{source} at the source is a mirror of the target")
        await self._target_topics.mark(copy, self.source_id, topic_id, upstream)

    @property
    def target_id(self) -> str:
        """What identifies the target."""
        return identity_of(self.target, self.config.target)

    @property
    def source_id(self) -> str:
        """What identifies the source."""
        return identity_of(self.source, self.config.source)

    async def _refresh(self) -> None:
        """Compare the topics, change the target's, and add links for new partitions."""
        plan = self._without_refused(await self.plan())
        is_elected = self._direction.is_elected
        applied = Applied({}, {})
        if is_elected:
            waiting = await begin_lineages(
                plan.new_lineages,
                topic_id_of=self._source_topics.topic_id_at_controller,
                ends_of=partial(high_watermarks, self.target),
                record=partial(self.ledger.record, type=LINEAGE),
            )
            plan = plan.without(waiting)
            applied = await self._target_topics.apply(
                plan, replication_factor=self.config.settings.replication_factor
            )
        for tp in self.flow.copied_elsewhere(plan.mirrored):
            self.flow.remove(tp)  # it gets a link to the other target topic
        self._report_refused(plan, applied)
        failed = applied.failed
        conflicts = dict(plan.conflicts)
        conflicts |= {
            name: f"cannot be created or changed at the target: {problem}"
            for name, problem in failed.items()
        }
        for name, conflict in conflicts.items():
            if self._conflicts.get(name) != conflict:
                self._report(f"topic {name}", conflict)
        self._conflicts = conflicts
        self._leave(plan.skipped)
        for name in conflicts:
            for copy in self._selection.target_names(name, self.source.metadata.topic_id(name)):
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
        self.flow.marks.known(marked, plan.unmarked)
        await self._sync_acls(plan.mirrored)
        await self._drop_vanished(self.compared)
        self._comparison = Comparison(plan, self.compared, left)
        await self._add_links(self._comparison)
        if self._deletes_topics and not self.once:
            orphaned = plan.orphans if self._direction.is_elected else {}
            names = {copy: self._selection.source_name(copy) or copy for copy in orphaned}
            await self._deletions.compared(orphaned, names, self.source_id, self._reactor.seconds())
        await self._update_stopped()

    async def _sync_acls(self, mirrored: Mapping[str, str]) -> None:
        if self._direction.is_elected:
            await self._acls.run(
                mirrored,
                wanted=self._selection.wants,
                present=self.source.metadata.topics,
                now=self._reactor.seconds(),
            )

    def _leave(self, skipped: Mapping[str, str]) -> None:
        """Report topics that are not copied, once, and remove their links."""
        for name, reason in skipped.items():
            if self._skipped.get(name) != reason:
                self._report_line(f"topic {name}", reason)
            self._remove_links(name)
        self._skipped = skipped

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
        stopped = {link.tp: link for link in self.stopped_links}
        for tp, offset in (await high_watermarks(self.source, stopped)).items():
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
        return self._direction.is_elected or self.target.metadata.partition(copied) is not None

    def _remove_links(self, topic: str) -> None:
        for tp in [tp for tp in self.flow.links if tp.topic == topic]:
            self.flow.remove(tp)

    async def _add_links(self, comparison: Comparison) -> None:
        """Add links for the partitions that this process copies; remove those that other workers copy."""
        plan, source, left = comparison
        new: dict[TopicPartition, TopicPartition] = {}
        share = self._direction.share(plan, source)
        for tp in partitions_of(plan, source):
            if tp in self.flow.links and tp not in share:
                self.flow.remove(tp)
        for name, copy in plan.mirrored.items():
            if copy in left:
                continue
            self._ids.setdefault(name, source[name])
            for partition in range(source[name].partitions):
                tp, copied = TopicPartition(name, partition), TopicPartition(copy, partition)
                if tp in share and tp not in self.flow.links and self._is_created(copied):
                    new[tp] = copied
        cuts = await read_cuts(self.source, new) if self.once else {}
        for tp, copied in new.items():
            topic = source[tp.topic]
            link = PartitionLink(
                tp,
                topic_id=topic.topic_id,
                lineage=plan.lineages.get(copied.topic),
                cut=cuts.get(tp),
                compacted=topic.compacted,
                gap_policy=GapPolicy(self.config.settings.gap_policy),
                retries=not self.once,
            )
            self.flow.add(link, copied)
