"""Administrative requests that classic tools write as znodes below /admin.

/admin/preferred_replica_election names partitions; it is deleted when their elections have been tried.
/admin/reassign_partitions names partitions and their replicas. A partition is removed from it when its reassignment is
completed or replaced by another one. The last one takes the znode with it. Both znodes outlive the controller: the next
one processes what it finds. (Requests by ElectLeaders and AlterPartitionReassignments need no znode of their own.)

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Collection

from twisted.logger import Logger

from kbroker.common.topic_partition import TopicPartition
from kbroker.common.turns import WorkerTurns
from kbroker.controller.core import effects as fx
from kbroker.controller.core import events, state_change_log
from kbroker.controller.core.reassignment import targets_of
from kbroker.controller.core.state_machine import ControllerStateMachine
from kbroker.controller.effect_performer import EffectPerformer
from kbroker.controller.zk_client import ControllerZkClient
from kbroker.zk import znodes
from kbroker.zk.errors import PoisonZnode
from kbroker.zk.interface import Node, Stat

log = Logger()


class ZkAdminRequests:
    """The administrative znodes, as one controller epoch processes them."""

    def __init__(
        self, performer: EffectPerformer, machine: ControllerStateMachine, zk: ControllerZkClient
    ) -> None:
        self._performer = performer
        self._machine = machine
        self._zk = zk
        self._listed: dict[TopicPartition, tuple[int, ...]] = {}
        """Reassignments that /admin/reassign_partitions lists and that were given to the machine."""
        self._listed_stat: Stat | None = None
        """The record of that znode; None while nothing is to be removed from it."""

    async def elect_preferred(self, node: Node, turns: WorkerTurns) -> None:
        """Elect the preferred leaders that /admin/preferred_replica_election names; delete the znode."""
        path = znodes.PREFERRED_REPLICA_ELECTION
        try:
            named = znodes.decode_partitions(path, node.data)
        except PoisonZnode as error:
            log.error("deleted a request that cannot be read: {error}", error=error)
            named = []
        request = events.ElectionRequested(events.ElectionType.PREFERRED, frozenset(named))
        answer = await self._performer.handle(request, turns)
        if isinstance(answer, fx.AnswerElection):
            outcomes = {p: result.outcome.value for p, result in sorted(answer.results.items())}
            for line in state_change_log.outcome_lines(outcomes):
                log.info(
                    "preferred leader election requested by {path}: {line}", path=path, line=line
                )
        await self._performer.unless_ended(self._zk.delete_admin_znode(path, node.stat))

    async def reassign(self, node: Node | None, turns: WorkerTurns) -> None:
        """Begin the reassignments that /admin/reassign_partitions lists; remove those that are completed already."""
        if node is None:
            self._listed, self._listed_stat = {}, None
            return
        try:
            wanted = znodes.decode_reassignment(node.data)
        except PoisonZnode as error:
            log.error("deleted a request that cannot be read: {error}", error=error)
            wanted = {}
        fresh = {p: r for p, r in wanted.items() if self._listed.get(p) != r}
        if fresh:
            answer = await self._performer.handle(events.ReassignmentRequested(fresh), turns)
            if isinstance(answer, fx.AnswerReassignment):
                _log_reassignment(fresh, answer)
        self._listed, self._listed_stat = wanted, node.stat
        await self.maybe_remove_from_zk_reassignment()

    async def maybe_remove_from_zk_reassignment(self) -> None:
        """Remove from /admin/reassign_partitions what is completed, or was replaced by another reassignment."""
        current = targets_of(self._machine.context)
        await self._keep(
            {
                partition: target
                for partition, target in self._listed.items()
                if partition in current and current[partition].target_replicas == target
            }
        )

    async def replace(self, partitions: Collection[TopicPartition]) -> None:
        """Remove *partitions* from /admin/reassign_partitions before a request by the API changes them.

        Afterwards would be too late: if this controller fails in between, the next one begins again what was replaced.
        """
        await self._keep({p: t for p, t in self._listed.items() if p not in partitions})

    async def _keep(self, left: dict[TopicPartition, tuple[int, ...]]) -> None:
        """Write *left* to /admin/reassign_partitions; delete that if nothing is left."""
        stat = self._listed_stat
        if stat is None:
            return
        if not left:
            await self._performer.unless_ended(
                self._zk.delete_admin_znode(znodes.REASSIGN_PARTITIONS, stat)
            )
            self._listed, self._listed_stat = {}, None
        elif left != self._listed:
            written = await self._performer.unless_ended(
                self._zk.update_admin_znode(
                    znodes.REASSIGN_PARTITIONS,
                    znodes.encode_reassignment(left),
                    stat.version,
                )
            )
            # Of a znode that is gone, or that a tool has written meanwhile, the watch brings another event.
            self._listed = left
            self._listed_stat = None if written is None else stat._replace(version=written)


def _log_reassignment(
    targets: dict[TopicPartition, tuple[int, ...]], answer: fx.AnswerReassignment
) -> None:
    outcomes = {
        p: f"to {list(targets[p])}: {result.outcome.value}"
        for p, result in sorted(answer.results.items())
    }
    for line in state_change_log.outcome_lines(outcomes):
        log.info(
            "reassignment requested by {path}: {line}",
            path=znodes.REASSIGN_PARTITIONS, line=line,
        )  # fmt: skip
