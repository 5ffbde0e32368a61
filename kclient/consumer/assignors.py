"""Who gets which partitions: the assignment strategies a group's leader runs.

Pure functions from (partitions per topic, subscriptions per member) to partitions per member. All strategies are
deterministic: members and topics are taken in sorted order, so that two leaders would decide alike.

range               each topic by itself: consecutive partitions to members in order, the first ones one more
roundrobin          all partitions of all topics dealt like cards
cooperative-sticky  as even as can be, moving as little as can be; what has to move is first only taken away from its
                    owner and given in the next rebalance (KIP-429), so that nobody stops for partitions he keeps

Invariants (property tests cite the numbers):
 1. every partition that somebody subscribes to goes to exactly one member that subscribes to its topic
    (cooperative-sticky: or to nobody, while its former owner gives it up);
 2. cooperative-sticky: where all subscribe alike, loads differ by at most one once nothing is withheld;
 3. cooperative-sticky: an even assignment among the same members is kept as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kclient.errors import ConfigError
from kclient.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Subscription:
    """What one member asked for in its JoinGroup, and what it held then."""

    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1
    """The generation in which it came to own them (KIP-792): the later claim wins."""


Members = Mapping[str, Subscription]
Assignment = dict[str, list[TopicPartition]]
Assignor = Callable[[Mapping[str, int], Members], Assignment]


@dataclass(frozen=True, slots=True)
class Strategy:
    """An assignor with its protocol name."""

    name: str
    assign: Assignor = field(repr=False)
    cooperative: bool = False
    """Members keep what they own while a rebalance goes on, and give up only what they are told to."""


def assign_range(partitions: Mapping[str, int], members: Members) -> Assignment:
    """Assign topic by topic; *partitions* is how many partitions each topic has."""
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
    """Deal all partitions to members in turn, passing over members that do not subscribe."""
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
    """Assign evenly and stickily, withholding what another member still owns."""
    wanted = assign_sticky(partitions, members)
    owners = _owners(partitions, members)
    return {
        member: [tp for tp in places if owners.get(tp, member) == member]
        for member, places in wanted.items()
    }


def assign_sticky(partitions: Mapping[str, int], members: Members) -> Assignment:
    """Assign evenly, keeping every partition with its owner that can stay there."""
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
    """Return who owns what still exists and is still subscribed to; of two claims the later generation's."""
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
    # Two claims of one generation: neither can be believed.
    for tp in contested:
        del owners[tp]
    return owners


def _lightest(tp: TopicPartition, held: Mapping[str, set[TopicPartition]], members: Members) -> str:
    return min(
        (member for member, subscription in members.items() if tp.topic in subscription.topics),
        key=lambda member: (len(held[member]), member),
    )


def _even_out(held: dict[str, set[TopicPartition]], members: Members) -> None:
    """Move partitions from the loaded to the less loaded until no move helps.

    Each move lowers the sum of squared loads, so this ends.
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
"""By the names that travel in JoinGroup, which are Kafka's."""


def strategies_named(names: str) -> list[Strategy]:
    """Return the strategies of a list such as "range,cooperative-sticky"; ConfigError names an unknown one."""
    chosen = []
    for name in names.split(","):
        strategy = STRATEGIES.get(name.strip())
        if strategy is None:
            known = ", ".join(STRATEGIES)
            raise ConfigError(f"partition.assignment.strategy: {name.strip()!r} is none of {known}")
        chosen.append(strategy)
    return chosen
