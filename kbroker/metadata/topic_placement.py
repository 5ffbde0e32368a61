"""The placement of replicas: brokers for new topics, and for new partitions of existing topics.

Nothing is read or written here: the live brokers are given.

In: a new topic, or an existing one with a new count   Out: an assignment; KafkaError if there is none
Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from twisted.logger import Logger

from kbroker.config import KafkaConfig
from kbroker.metadata.core.replica_assignment import (
    InvalidAssignmentError,
    assign_replicas,
    check_manual_assignment,
    row_of,
)
from kbroker.metadata.core.topic_rules import check_partition_count, check_replication_factor
from kbroker.metadata.metadata_cache import BrokerMetadata
from kbroker.zk import znodes
from kclient.wire.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    ReassignmentInProgress,
)

log = Logger()


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 stands for the broker's default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignment: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """A manual assignment {partition: replicas}; then the two numbers above must be -1."""
    configs: Mapping[str, str | None] = field(default_factory=dict)


class TopicPlacement:
    """Places replicas on live brokers; *random_below* chooses the first one."""

    def __init__(
        self, config: Callable[[], KafkaConfig], random_below: Callable[[int], int]
    ) -> None:
        self._config = config
        self._random_below = random_below

    def of_new(
        self, new: NewTopic, live: Mapping[int, BrokerMetadata]
    ) -> dict[int, tuple[int, ...]]:
        """Return the replicas of every partition of *new*, on the *live* brokers, which are given by id.

        InvalidPartitions, InvalidReplicationFactor, InvalidReplicaAssignment.
        """
        if new.assignment:
            check_partition_count(len(new.assignment))
            try:
                given = check_manual_assignment(new.assignment, frozenset(live))
            except InvalidAssignmentError as error:
                raise InvalidReplicaAssignment(str(error)) from None
            check_replication_factor(len(given[0]), len(live))
            return given
        config = self._config()
        partitions = config.num_partitions if new.partitions == -1 else new.partitions
        factor = new.replication_factor
        if factor == -1:
            factor = config.default_replication_factor
        check_partition_count(partitions)
        check_replication_factor(factor, len(live))
        start = self._random_below(len(live))
        racks = _racks(live)
        return assign_replicas(live.keys(), partitions, factor, start_index=start, racks=racks)

    def grown(
        self,
        name: str,
        topic: znodes.TopicAssignment,
        count: int,
        given: Sequence[Sequence[int]] | None,
        live: Mapping[int, BrokerMetadata],
    ) -> znodes.TopicAssignment:
        """Return *topic* with *count* partitions, the new ones on *live* brokers; their replicas may be *given*.

        InvalidPartitions, InvalidReplicaAssignment, InvalidReplicationFactor, ReassignmentInProgress.
        """
        present = len(topic.partitions)
        if any(
            assignment.adding or assignment.removing for assignment in topic.partitions.values()
        ):
            raise ReassignmentInProgress(
                f"partitions of topic {name} are being reassigned",
                hint="wait until that is done, or call it off",
            )
        check_partition_count(count)
        if count == present:
            raise InvalidPartitions(f"topic {name} already has {present} partitions")
        if count < present:
            raise InvalidPartitions(
                f"topic {name} has {present} partitions, which is more than the {count} asked for: "
                "partitions cannot be taken away"
            )
        first = topic.partitions.get(0)
        factor = len(first.replicas) if first is not None else 1
        more = (
            _more(present, count, factor, first.replicas[0] if first is not None else None, live)
            if given is None
            else _more_given(name, present, count, factor, given, live)
        )
        added = {p: znodes.ReplicaAssignment(r) for p, r in more.items()}
        return replace(topic, partitions={**topic.partitions, **added})


def _more_given(
    name: str,
    present: int,
    count: int,
    factor: int,
    given: Sequence[Sequence[int]],
    live: Mapping[int, BrokerMetadata],
) -> dict[int, tuple[int, ...]]:
    if len(given) != count - present:
        raise InvalidReplicaAssignment(
            f"{count - present} partitions are added, but {len(given)} are assigned"
        )
    try:
        more = check_manual_assignment(
            {present + i: replicas for i, replicas in enumerate(given)},
            frozenset(live),
            first_partition=present,
        )
    except InvalidAssignmentError as error:
        raise InvalidReplicaAssignment(str(error)) from None
    if len(more[present]) != factor:
        raise InvalidReplicaAssignment(
            f"topic {name} has replication factor {factor}, the new partitions {len(more[present])}"
        )
    return more


def _more(
    present: int,
    count: int,
    factor: int,
    first_leader: int | None,
    live: Mapping[int, BrokerMetadata],
) -> dict[int, tuple[int, ...]]:
    """Continue as Kafka does, from the first replica of partition 0."""
    if factor > len(live):
        raise InvalidReplicationFactor(
            f"replication factor {factor} is larger than the {len(live)} available brokers"
        )
    racks = _racks(live)
    row = row_of(live.keys(), racks)
    leader = first_leader if first_leader is not None else row[0]
    return assign_replicas(
        live.keys(),
        count - present,
        factor,
        start_index=row.index(leader) if leader in live else 0,
        first_partition=present,
        racks=racks,
    )


def _racks(live: Mapping[int, BrokerMetadata]) -> dict[int, str]:
    """Return broker.rack of the live brokers; nothing unless all have one, because a part of the racks misleads."""
    brokers = live.values()
    racks = {broker.broker_id: broker.rack for broker in brokers if broker.rack}
    if racks and len(racks) < len(brokers):
        # Kafka refuses: while racks are being given to the brokers, one by one, no topic could be created.
        without = sorted(broker.broker_id for broker in brokers if not broker.rack)
        log.warn("replicas are assigned without racks: {ids} have no broker.rack", ids=without)
        return {}
    return racks
