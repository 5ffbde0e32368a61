"""Throttles of reassignments (KIP-73): set by `reassign execute --throttle`, removed by `verify` and `cancel`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kclient.admin import reassignment_plan as plans
from kclient.cli.output import print_error

UNTHROTTLE_S = 5.0
"""Seconds that a broker may take to return its throttles."""


async def throttle_moves(
    admin: Any, throttles: plans.Throttles, rate: int, report: Callable[[str], None]
) -> None:
    """Set *rate*, bytes per second, on the live brokers of a reassignment, then list the throttled replicas."""
    from kclient.admin.configs import ConfigResource, ResourceType

    rates = {plans.LEADER_RATE: str(rate), plans.FOLLOWER_RATE: str(rate)}
    live = admin.cluster.metadata.brokers
    await admin.alter_configs(
        {
            ConfigResource(ResourceType.BROKER, str(broker)): rates
            for broker in sorted(throttles.brokers)
            if broker in live
        }
    )
    await admin.alter_configs(
        {ConfigResource(ResourceType.TOPIC, topic): c for topic, c in throttles.topics.items()}
    )
    report(f"The inter-broker throttle limit was set to {rate} B/s")


async def unthrottle(admin: Any, topics: set[str], report: Callable[[str], None]) -> None:
    """Remove the throttles of *topics* and of all brokers.

    A broker that does not answer keeps its throttle and is reported; the reassignments are complete all the same.
    """
    from kclient.admin.configs import ConfigResource, ResourceType
    from kclient.wire.errors import KafkaError

    for kind, what, names in (
        (ResourceType.BROKER, "broker", [str(n) for n in sorted(admin.cluster.metadata.brokers)]),
        (ResourceType.TOPIC, "topic", sorted(topics)),
    ):
        cleared = []
        for name in names:
            try:
                if await _cleared(admin, ConfigResource(kind, name)):
                    cleared.append(name)
            except KafkaError as problem:
                print_error(f"throttles of {what} {name} may remain: {problem}")
        if cleared:
            s = "" if len(cleared) == 1 else "s"
            report(f"Clearing {what}-level throttles on {what}{s} {','.join(cleared)}")


async def _cleared(admin: Any, resource: Any) -> bool:
    """Remove the throttles of one broker or topic; return whether it had any."""
    wanted = [*plans.BROKER_THROTTLES, *plans.TOPIC_THROTTLES]
    answers = await admin.describe_configs([resource], names=wanted, timeout=UNTHROTTLE_S)
    entries = answers[resource].values()
    its_own = {e.name: None for e in entries if e.source.name == resource.type.name}
    if its_own:
        await admin.alter_configs({resource: its_own}, timeout=UNTHROTTLE_S)
    return bool(its_own)
