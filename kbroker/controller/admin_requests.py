"""What operators ask of the controller, by request or by a znode below /admin, on its way through the machine.

An AdminClient's request waits here for the machine's answer. Classic tools write a znode instead
(/admin/preferred_replica_election, /admin/reassign_partitions) and look whether it is still there: it goes when all
was tried; of the reassignments each goes when it is done. A znode that is there when a controller takes office is
taken up, so that a wish survives the controller that first heard it.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.core import effects as fx
from kbroker.controller.core import events, state_change_log
from kbroker.controller.core.context import Assignment, ControllerContext
from kbroker.controller.core.reassignment import targets_of
from kbroker.controller.zk_client import ControllerZkClient
from kbroker.zk import znodes
from kbroker.zk.errors import PoisonZnode
from kbroker.zk.interface import Node, Watch, ZooKeeper
from kclient.types import TopicPartition as NamedPartition
from kclient.wire.errors import NotController

log = Logger()

ElectionResults = Mapping[TopicPartition, fx.ElectionResult]
ReassignmentResults = Mapping[TopicPartition, fx.ReassignmentResult]


class AdminRequests:
    """The wishes that one term of the controller has heard and not yet answered."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        store: ControllerZkClient,
        *,
        context: Callable[[], ControllerContext],
        feed: Callable[[events.Event], None],
        run: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._zookeeper = zookeeper
        self._store = store
        self._context = context
        self._feed = feed
        self._run = run
        self._waiting: dict[int, Deferred[Any]] = {}
        self._last_id = 0
        self._watches: list[Watch] = []
        self._listed: dict[TopicPartition, tuple[int, ...]] = {}
        """What /admin/reassign_partitions asks for and is under way."""
        self._listed_version = -1
        """Version of that znode; -1 while there is nothing to strike off."""
        self._listed_at = -1
        """When that was written, by ZooKeeper's transaction ids."""
        self._striking = False
        self._closed = False

    def open(self) -> None:
        """Look for wishes in ZooKeeper from now on."""
        watch = self._zookeeper.watch_data
        self._watches = [
            watch(znodes.PREFERRED_REPLICA_ELECTION, self._have_preferred_election),
            watch(znodes.REASSIGN_PARTITIONS, self._have_reassignments),
        ]

    def close(self, reason: str) -> None:
        """Answer nobody any more: NotController for all who wait."""
        self._closed = True
        for watch in self._watches:
            watch.cancel()
        waiting, self._waiting = self._waiting, {}
        for deferred in waiting.values():
            deferred.errback(NotController(reason))

    def _ask(self, event: Callable[[int], events.Event]) -> Deferred[Any]:
        self._last_id += 1
        answer = self._waiting[self._last_id] = Deferred()
        self._feed(event(self._last_id))
        return answer

    # -- elections ---------------------------------------------------------------------------

    def elect(
        self, election: events.ElectionType, partitions: frozenset[TopicPartition] | None
    ) -> Deferred[ElectionResults]:
        """Have leaders elected, for all partitions there are with None."""
        return self._ask(lambda id: events.ElectionRequested(id, election, partitions))

    def answer_election(self, effect: fx.AnswerElection) -> None:
        """Pass the machine's answer on."""
        for (topic, index), result in effect.results.items():
            if result.lost_isr:
                log.warn(
                    "UNCLEAN ELECTION asked for by an operator: {topic}-{index} is led by broker {leader}, which was"
                    " not in its ISR {isr}; committed records that only those had are lost",
                    topic=topic, index=index, leader=result.leader, isr=list(result.lost_isr),
                )  # fmt: skip
        answer = self._waiting.pop(effect.request_id, None)
        if answer is not None:
            answer.callback(effect.results)

    def _have_preferred_election(self, node: Node | None) -> None:
        if node is not None:
            self._run(self._elect_by_znode(node))

    async def _elect_by_znode(self, node: Node) -> None:
        path = znodes.PREFERRED_REPLICA_ELECTION
        try:
            named = znodes.decode_partitions(path, node.data)
        except PoisonZnode as error:
            log.error("removed a wish that makes no sense: {error}", error=error)
            named = []
        results = await self.elect(
            events.ElectionType.PREFERRED, frozenset((t, p) for t, p in named)
        )
        outcomes = {p: result.outcome.value for p, result in sorted(results.items())}
        for line in state_change_log.outcome_lines(outcomes):
            log.info("preferred leader, asked for by {path}, of {line}", path=path, line=line)
        await self._store.delete_admin_znode(path, node.stat.version)

    # -- reassignments -----------------------------------------------------------------------

    def reassign(
        self, targets: Mapping[TopicPartition, tuple[int, ...] | None]
    ) -> Deferred[ReassignmentResults]:
        """Have partitions moved to other replicas, or their moves called off (None)."""
        return self._ask(lambda id: events.ReassignmentRequested(id, targets))

    def reassignments(self) -> Mapping[TopicPartition, Assignment]:
        """Return what is under way."""
        return targets_of(self._context())

    def answer_reassignment(self, effect: fx.AnswerReassignment) -> None:
        """Pass the machine's answer on."""
        refused = {p: result.why for p, result in sorted(effect.results.items()) if result.why}
        for line in state_change_log.outcome_lines(refused):
            log.info("did not reassign {line}", line=line)
        answer = self._waiting.pop(effect.request_id, None)
        if answer is not None:
            answer.callback(effect.results)

    def _have_reassignments(self, node: Node | None) -> None:
        if node is None:
            self._listed, self._listed_version = {}, -1
        else:
            self._run(self._reassign_by_znode(node))

    async def _reassign_by_znode(self, node: Node) -> None:
        try:
            named = znodes.decode_reassignment(node.data)
        except PoisonZnode as error:
            log.error("removed a wish that makes no sense: {error}", error=error)
            named = {}
        wanted = {(t, p): replicas for (t, p), replicas in named.items()}
        fresh = {p: r for p, r in wanted.items() if self._listed.get(p) != r}
        if fresh:
            results = await self.reassign(fresh)
            outcomes = {
                p: f"to {list(fresh[p])}: {result.outcome.value}"
                for p, result in sorted(results.items())
            }
            for line in state_change_log.outcome_lines(outcomes):
                log.info(
                    "reassignment, asked for by {path}, of {line}",
                    path=znodes.REASSIGN_PARTITIONS, line=line,
                )  # fmt: skip
        if node.stat.mzxid > self._listed_at:
            self._listed, self._listed_at = wanted, node.stat.mzxid
            self._listed_version = node.stat.version
        self.maybe_remove_from_zk_reassignment()

    def maybe_remove_from_zk_reassignment(self) -> None:
        """Strike off what the znode lists and is done, or goes elsewhere by now."""
        if self._listed_version >= 0 and not self._striking and not self._closed:
            under_way = self.reassignments()
            left = {
                partition: target
                for partition, target in self._listed.items()
                if partition in under_way and under_way[partition].target == target
            }
            if not left or left != self._listed:
                self._striking = True
                self._run(self._strike(left, self._listed_version))

    async def _strike(self, left: dict[TopicPartition, tuple[int, ...]], version: int) -> None:
        path = znodes.REASSIGN_PARTITIONS
        if left:
            data = znodes.encode_reassignment(
                {NamedPartition(*partition): target for partition, target in left.items()}
            )
            written = await self._store.update_admin_znode(path, data, version)
        else:
            await self._store.delete_admin_znode(path, version)
            written = None
        self._striking = False
        if version == self._listed_version:
            # A znode that is gone, or was written by another meanwhile, is told by the watch.
            self._listed, self._listed_version = left, -1 if written is None else written
        self.maybe_remove_from_zk_reassignment()
