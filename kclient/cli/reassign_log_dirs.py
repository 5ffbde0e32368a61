"""Moves between log directories (KIP-113), for `reassign execute` and `verify`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kclient.admin.log_dir_moves import LogDirPlan, LogDirProgress, log_dir_progress
from kclient.admin.reassignment_plan import LOG_DIRS_RATE
from kclient.net.waiting import sleep

START_S = 10.0
"""Seconds until every replica exists on its broker, and its move has begun; Kafka's tool has the same default."""

RETRY_S = 0.1


async def start_moves(
    reactor: Any,
    admin: Any,
    plan: LogDirPlan,
    report: Callable[[str], None],
    seconds: float = START_S,
) -> None:
    """Begin to move the replicas of *plan*. A replica that its broker does not have yet is tried again.

    Raise the first error of another kind, or TimeoutError after *seconds*.
    """
    from kclient.wire.errors import KafkaError, ReplicaNotAvailable

    pending = {broker: dict(paths) for broker, paths in plan.items()}
    deadline = reactor.seconds() + seconds
    while pending:
        answers = await admin.alter_replica_log_dirs(pending)
        last: KafkaError | None = None
        for broker, answer in sorted(answers.items()):
            if isinstance(answer, KafkaError):
                raise answer
            for tp, problem in sorted(answer.items()):
                if problem is None:
                    path = pending[broker].pop(tp)
                    report(
                        f"Successfully started moving log directory to {path} for replica {tp} with broker {broker}"
                    )
                elif isinstance(problem, ReplicaNotAvailable):
                    last = problem
                else:
                    raise problem
        pending = {broker: paths for broker, paths in pending.items() if paths}
        if pending and reactor.seconds() >= deadline:
            late = [f"{tp}-{broker}" for broker, paths in sorted(pending.items()) for tp in paths]
            s = "" if len(late) == 1 else "s"
            raise TimeoutError(
                f"Timed out before log directory move{s} could be started for: {','.join(late)} ({last})"
            )
        if pending:
            await sleep(reactor, RETRY_S)


async def progress_of_moves(admin: Any, plan: LogDirPlan) -> list[LogDirProgress]:
    """Return where the replicas of *plan* are."""
    if not plan:
        return []
    tps = sorted({tp for paths in plan.values() for tp in paths})
    return log_dir_progress(
        plan, await admin.describe_log_dirs(sorted(plan), tps, raise_errors=False)
    )


async def throttle_copies(
    admin: Any, plan: LogDirPlan, rate: int, report: Callable[[str], None]
) -> None:
    """Set *rate*, bytes per second, on the brokers of *plan*."""
    from kclient.admin.configs import ConfigResource, ResourceType

    await admin.alter_configs(
        {
            ConfigResource(ResourceType.BROKER, str(broker)): {LOG_DIRS_RATE: str(rate)}
            for broker in sorted(plan)
        }
    )
    report(f"The replica-alter-dir throttle limit was set to {rate} B/s")
