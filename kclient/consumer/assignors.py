"""The assignment strategies that a group's leader runs (partition.assignment.strategy).

Pure functions from (partition count per topic, subscription per member) to partitions per member. All strategies are
deterministic: they sort members and topics, so any two leaders assign alike.

range               per topic: consecutive partitions to members in order, the first members get one more
roundrobin          all partitions of all topics in turn to the members in order
cooperative-sticky  as even as possible with as few moves as possible; a moving partition is first revoked from its
                    owner and assigned in the next rebalance (KIP-429), so members keep consuming the others

Invariants (property tests cite the numbers):
 1. every partition of a subscribed topic is assigned to one member that subscribes to the topic (cooperative-sticky: or
    none, while its former owner revokes it);
 2. cooperative-sticky: if all subscriptions are equal, loads differ by at most one once no revocation is pending;
 3. cooperative-sticky: an even assignment among the same members does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kclient.errors import ConfigError
from kclient.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Subscription:
    """The subscription of a member in its JoinGroup, and the partitions that it owned then."""

    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1
    """The generation of that ownership (KIP-792): of two claims the later generation wins."""


Members = Mapping[str, Subscription]
Assignment = dict[str, list[TopicPartition]]
Assignor = Callable[[Mapping[str, int], Members], Assignment]


@dataclass(frozen=True, slots=True)
class Strategy:
    """An assignor with its protocol name."""

    name: str
    assign: Assignor = field(repr=False)
    cooperative: bool = False
    """Whether members keep their partitions during a rebalance and revoke only those that move (KIP-429)."""


def assign_range(partitions: Mapping[str, int], members: Members) -> Assignment:
    """Assign each topic by itself; *partitions* is the partition count per topic."""
    assignment: Assignment = {member: [] for member in members}
    for topic in sorted(partitions):
        subscribed = sorted(
            m for m, subscription in members.items() if topic in subscription.topics
        )
        if not subscribed:
            continue
        share, more = divmod(partitions[topic], len(subscribed))
        first = 0
        for rank, member in enumerate(subscribed):
            count = share + (rank < more)
            assignment[member] += [
                TopicPartition(topic, number) for number in range(first, first + count)
            ]
            first += count
    return assignment


def assign_round_robin(partitions: Mapping[str, int], members: Members) -> Assignment:
    """Assign all partitions to members in turn, skipping members without a subscription to the topic."""
    assignment: Assignment = {member: [] for member in members}
    order = sorted(members)
    turn = 0
    for tp in _subscribed_partitions(partitions, members):
        while tp.topic not in members[order[turn % len(order)]].topics:
            turn += 1
        assignment[order[turn % len(order)]].append(tp)
        turn += 1
    return assignment


def assign_cooperative_sticky(partitions: Mapping[str, int], members: Members) -> Assignment:
    """Assign evenly with few moves, without partitions that another member still owns."""
    wanted = assign_sticky(partitions, members)
    owners = _owners(partitions, members)
    return {
        member: [tp for tp in places if owners.get(tp, member) == member]
        for member, places in wanted.items()
    }


def assign_sticky(partitions: Mapping[str, int], members: Members) -> Assignment:
    """Assign evenly; a partition stays with its owner if that keeps the assignment even."""
    held: dict[str, set[TopicPartition]] = {member: set() for member in members}
    owners = _owners(partitions, members)
    for tp, owner in owners.items():
        held[owner].add(tp)
    for tp in _subscribed_partitions(partitions, members):
        if tp not in owners:
            held[_lightest(tp, held, members)].add(tp)
    _even_out(held, members)
    return {member: sorted(places) for member, places in held.items()}


def _subscribed_partitions(partitions: Mapping[str, int], members: Members) -> list[TopicPartition]:
    wanted = frozenset[str]().union(*(subscription.topics for subscription in members.values()))
    return [
        TopicPartition(topic, number)
        for topic in sorted(partitions)
        if topic in wanted
        for number in range(partitions[topic])
    ]


def _owners(partitions: Mapping[str, int], members: Members) -> dict[TopicPartition, str]:
    """Return the owner of each subscribed partition; of two claims the later generation wins."""
    owners: dict[TopicPartition, str] = {}
    contested: set[TopicPartition] = set()
    for member in sorted(members):
        subscription = members[member]
        for tp in subscription.owned:
            if tp.topic not in subscription.topics:
                continue
            if not 0 <= tp.partition < partitions.get(tp.topic, 0):
                continue
            rival = owners.get(tp)
            if rival is None or members[rival].generation < subscription.generation:
                owners[tp] = member
                contested.discard(tp)
            elif members[rival].generation == subscription.generation:
                contested.add(tp)
    # Two claims in one generation: neither is valid.
    for tp in contested:
        del owners[tp]
    return owners


def _lightest(tp: TopicPartition, held: Mapping[str, set[TopicPartition]], members: Members) -> str:
    return min(
        (member for member, subscription in members.items() if tp.topic in subscription.topics),
        key=lambda member: (len(held[member]), member),
    )


def _even_out(held: dict[str, set[TopicPartition]], members: Members) -> None:
    """Move partitions from members with more to members with fewer, until no move helps.

    Each move lowers the sum of squared loads, so the loop ends.
    """
    moved = True
    while moved:
        moved = False
        for giver in sorted(held, key=lambda member: (-len(held[member]), member)):
            for taker in sorted(held, key=lambda member: (len(held[member]), member)):
                if len(held[giver]) - len(held[taker]) < 2:
                    break
                movable = [p for p in held[giver] if p.topic in members[taker].topics]
                if movable:
                    tp = max(movable)
                    held[giver].remove(tp)
                    held[taker].add(tp)
                    moved = True
                    break


RANGE = Strategy("range", assign_range)
ROUND_ROBIN = Strategy("roundrobin", assign_round_robin)
COOPERATIVE_STICKY = Strategy("cooperative-sticky", assign_cooperative_sticky, cooperative=True)

STRATEGIES = {strategy.name: strategy for strategy in (RANGE, ROUND_ROBIN, COOPERATIVE_STICKY)}
"""The strategies by Kafka's protocol names in JoinGroup."""


def strategies_named(names: str) -> list[Strategy]:
    """Return the strategies of a list such as "range,cooperative-sticky"; ConfigError for an unknown name."""
    chosen = []
    for name in names.split(","):
        strategy = STRATEGIES.get(name.strip())
        if strategy is None:
            known = ", ".join(STRATEGIES)
            raise ConfigError(
                f"partition.assignment.strategy: {name.strip()!r} is not one of {known}"
            )
        chosen.append(strategy)
    return chosen
