"""One direction of the mirror from start to stop: connect, compare the topics, cut.

Theory of operation
===================
Start: the mirror connects to both clusters and retries until both answer. It checks that the target's brokers support
conditional appends. `TopicMirror` compares the topics and starts a link per partition, and again every
`LinkSettings.comparison_interval`; `Flow` copies. Groups, heartbeats, evidence and latencies run beside it.

Several processes share a direction, if the ZooKeeper of its target is configured (`mirrormaker.workers`). With every
change of the workers the topics are compared again at once.

With *once* the source's log ends at the creation of the links are the cut. Each link finishes there, and the mirror
with the last link. If nothing is copied for `STALL_TIMEOUT` seconds, the mirror fails with its last error.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeout
from twisted.python.failure import Failure

from kclient.config import CommonConfig
from kclient.consumer.wakeup import Wakeup
from kclient.errors import ClientError, ConfigError, KafkaError
from kclient.mirror_evidence import evidence_topic
from kclient.mirror_latency import latency_topic
from kclient.mirror_ledger import ledger_topic
from kclient.net.cluster import Cluster
from kclient.net.waiting import sleep
from kclient.types import TopicPartition
from mirrormaker.alarms import Alarms
from mirrormaker.config import FlowConfig
from mirrormaker.evidence import Evidence
from mirrormaker.group_sync import GroupMirror
from mirrormaker.heartbeats import Heartbeats
from mirrormaker.latency import Latency
from mirrormaker.ledger import Ledger
from mirrormaker.shared_direction import SharedDirection, WholeDirection
from mirrormaker.target import UnsupportedTarget
from mirrormaker.target_offsets import KeptOffsets, RenumberedOffsets, TargetOffsets
from mirrormaker.topic_mirror import TopicMirror
from mirrormaker.transactional_target import NoTransactions
from mirrormaker.workers import Workers

STALL_TIMEOUT = 60.0
"""Seconds without progress after which `--once` fails."""

RETRY = 2.0
"""Seconds before a failed request to a cluster is repeated."""

DRAIN = 5.0
"""Seconds that `Mirror.stop` waits for appends in flight."""


class MirrorStalled(ClientError):
    """No record was copied for `STALL_TIMEOUT` seconds; the text has the last error."""


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
        self._latency = self._new_latency()
        self._statements: list[Evidence | Latency] = [
            each for each in (self._evidence, self._latency) if each is not None
        ]
        """What this mirror states about its copies, written at intervals and when it stops."""
        self._statements_running: list[Deferred[None]] = []
        self.flow = self.offsets.flow(
            self.source,
            self.target,
            config.settings,
            report=self._report,
            done=self._maybe_finished,
            defect=self._end,
            # The topics are made after the flow, which has their links.
            mark=lambda *given: self.topics.mark(*given),
            too_large=lambda *given: self.topics.too_large(*given),
            record=self.ledger.record,
            rejected=self._rejected,
            evidence=self._evidence,
            latency=self._latency,
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
        self.topics: TopicMirror = TopicMirror(
            self.source,
            self.target,
            config,
            flow=self.flow,
            offsets=self.offsets,
            ledger=self.ledger,
            direction=self._direction,
            source_id=lambda: self.source_id,
            target_id=lambda: self.target_id,
            once=once,
            report=self._report,
            report_line=self._report_line,
            defect=self._end,
        )
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
        self._running: Deferred[None] | None = None
        self._planned = False

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

    def _new_latency(self) -> Latency | None:
        """Return what writes the latencies of the copies, if that is enabled."""
        settings = self.config.settings
        if not settings.emit_latency:
            return None
        return Latency(
            self.target,
            latency_topic(self.config.source),
            lambda: self.source_id,
            interval=settings.emit_latency_interval,
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
            *self._statements_running,
        ):
            if running is not None:
                running.cancel()
        self.flow.stop()
        until = self._reactor.seconds() + DRAIN
        while self.flow.appends_in_flight and self._reactor.seconds() < until:
            await sleep(self._reactor, 0.02)
        await self.flow.close_sessions()
        await self._write_last_statements(until)
        await self._direction.stop()
        await self.source.close()
        await self.target.close()
        if not self._finished.called:
            self._finished.callback(None)

    async def _write_last_statements(self, until: float) -> None:
        """Write evidence and latencies of the last records, if that takes no longer than *until*."""
        statements, self._statements = self._statements, []
        left = max(0.1, until - self._reactor.seconds())
        writes = [
            Deferred.fromCoroutine(each.write()).addTimeout(left, self._reactor)
            for each in statements
        ]
        for each, written in zip(statements, writes, strict=True):
            try:
                await written
            except DeferredTimeout:
                self._report(each.topic, "the last records were not written: no answer in time")

    @property
    def workers(self) -> Workers | None:
        """The workers of this direction; None: this process copies everything."""
        return self._direction.workers

    async def _run(self) -> None:
        await self._connect_cluster(self.source, self.config.source)
        await self._connect_cluster(self.target, self.config.target)
        self._check_clusters()
        while True:
            try:
                await self.offsets.check_target()
                await self.topics.refresh()
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
        for each in self._statements:
            running = Deferred.fromCoroutine(each.run())
            running.addErrback(self._end)
            self._statements_running.append(running)
        self._maybe_finished()
        settings = self.config.settings
        while True:
            await self._wakeup.wait(1.0 if self.once else settings.comparison_interval)
            if self.once:
                self._check_stalled()
                continue
            try:
                await self.topics.refresh()
            except KafkaError as problem:
                self._report_error("topics", problem)
                await self.topics.update_links()
            else:
                self._direction.compared()
            self._direction.update_registration(
                {
                    "partitions": len(self.flow.links),
                    "stopped": len(self.flow.stopped_links),
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
        return {tp: copy for tp, copy in copies.items() if tp.topic not in self.topics.conflicts}

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

    @property
    def target_id(self) -> str:
        """What identifies the target."""
        return identity_of(self.target, self.config.target)

    @property
    def source_id(self) -> str:
        """What identifies the source."""
        return identity_of(self.source, self.config.source)
