"""kafka-reassign-partitions: moves partitions to other brokers, and replicas to other log directories."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from kclient.admin import reassignment_plan as plans
from kclient.cli.kafka_tools.java_errors import described, message_of
from kclient.cli.kafka_tools.java_numbers import integer
from kclient.cli.kafka_tools.options import Given, Option, not_honoured
from kclient.cli.kafka_tools.tool import (
    FAILED,
    Failure,
    Tool,
    UsageError,
    admin_settings,
    one_action,
    require,
    run_admin,
    text_of,
)
from kclient.cli.kafka_tools.topics import NO_ZOOKEEPER
from kclient.errors import KafkaError
from kclient.types import TopicPartition

T = TypeVar("T")
_Replicas = dict[TopicPartition, tuple[int, ...]]

_ACTIONS = ("generate", "execute", "verify", "cancel", "list")
_FILE = "reassignment-json-file"
_REQUIRED = {
    "verify": (_FILE,),
    "generate": ("topics-to-move-json-file", "broker-list"),
    "execute": (_FILE,),
    "cancel": (_FILE,),
    "list": (),
}
_PERMITTED = {
    "verify": ("preserve-throttles",),
    "generate": ("disable-rack-aware",),
    "execute": ("additional", "throttle", "replica-alter-log-dirs-throttle", "timeout"),
    "cancel": ("preserve-throttles", "timeout"),
    "list": (),
}
_ALWAYS = ("bootstrap-server", "command-config")

_EXISTING = (
    "Cannot execute because there is an existing partition assignment.  Use --additional to override this and "
    "create a new partition assignment in addition to the existing one. The --additional flag can also be used to "
    "change the throttle by resubmitting the current reassignment."
)
_VERIFY_LATER = (
    "Warning: You must run --verify periodically, until the reassignment completes, to ensure the throttle "
    "is removed."
)

OPTIONS = (
    Option("verify", "Show whether a reassignment is completed; remove its throttles if it is."),
    Option("generate", "Propose a reassignment; nothing is moved."),
    Option("execute", "Start a reassignment."),
    Option("cancel", "Cancel a reassignment."),
    Option("list", "List the active reassignments."),
    Option("bootstrap-server", "The brokers to connect to; required.", "Server(s) to use for bootstrapping"),
    Option("command-config", "Properties file of the admin client.", "Admin client property file"),
    Option(_FILE, "JSON of partitions with their replicas, and optionally their log_dirs.",
           "manual assignment json file path"),
    Option("topics-to-move-json-file", 'JSON: {"version":1,"topics":[{"topic":"foo"}]}',
           "topics to reassign json file path"),
    Option("broker-list", "Brokers for a proposal, 1,2,3.", "brokerlist"),
    Option("disable-rack-aware", "Propose without regard to racks."),
    Option("throttle", "Limit of moves between brokers, in bytes per second.", "throttle", int, -1),
    Option("replica-alter-log-dirs-throttle", "Limit of moves within a broker, in bytes per second.",
           "replicaAlterLogDirsThrottle", int, -1),
    Option("timeout", "Time for moves within a broker to begin, in ms.", "timeout", int, 10_000),
    Option("additional", "Start it beside other active ones."),
    Option("preserve-throttles", "Do not change throttles."),
    not_honoured("zookeeper", NO_ZOOKEEPER, kafka=False),
)  # fmt: skip


class _Terse(Failure):
    """A failure with a text that is printed as it is."""


def main(given: Given) -> int | None:
    """Check the command line and run the action."""
    listed = ", ".join(f"--{name}" for name in _ACTIONS)
    action = one_action(given, _ACTIONS, f"Command must include exactly one action: {listed}")
    if not given.has("bootstrap-server"):
        raise UsageError("Please specify --bootstrap-server")
    require(given, *_REQUIRED[action])
    for name in given.order:
        if name not in (action, *_REQUIRED[action], *_PERMITTED[action], *_ALWAYS):
            raise UsageError(f'Option "[{name}]" can\'t be used with action "[{action}]"')
    try:
        settings = admin_settings(given, {"client.id": "reassign-partitions-tool"})
    except Failure as problem:
        return _failed(problem)

    async def body(admin: Any) -> int:
        await _BODIES[action](admin, given)
        return 0

    return run_admin(TOOL.print_usage, settings, body, _failed)


def _failed(problem: BaseException) -> int:
    text = described(problem) if isinstance(problem, KafkaError) else message_of(problem)
    print(text if isinstance(problem, _Terse) else f"Error: {text}")
    return FAILED


def _read(given: Given, name: str, parse: Callable[[str], T]) -> T:
    path = given.value(name)
    try:
        return parse(text_of(path))
    except plans.PlanError as problem:
        raise Failure(f"{path}: {problem}") from None


def _joined(tps: Iterable[TopicPartition]) -> str:
    return ",".join(map(str, sorted(tps)))


def _s(things: Any) -> str:
    return "" if len(things) == 1 else "s"


async def _replicas(admin: Any, topics: Iterable[str]) -> _Replicas:
    """Return the replicas of every partition of *topics*; raise for a topic that does not exist."""
    found = await admin.describe_topics(sorted(set(topics)), raise_errors=False)
    for name, topic in found.items():
        if isinstance(topic, KafkaError):
            unknown = "org.apache.kafka.common.errors.UnknownTopicOrPartitionException"
            raise Failure(f"{unknown}: Topic {name} not found.")
    return {
        TopicPartition(t.name, n): p.replicas
        for t in found.values()
        for n, p in t.partitions.items()
    }


# --- generate, list


async def _generate(admin: Any, given: Given) -> None:
    brokers = [integer(part) for part in given.value("broker-list").split(",")]
    twice = sorted({broker for broker in brokers if brokers.count(broker) > 1})
    if twice:
        raise Failure(f"Broker list contains duplicate entries: {twice}")
    topics = _read(given, "topics-to-move-json-file", plans.read_topics)
    current = await _replicas(admin, topics)
    live = (await admin.describe_cluster()).brokers
    chosen = [broker for broker in brokers if broker in live]
    racks = (
        {} if given.has("disable-rack-aware") else {n: live[n].rack for n in chosen if live[n].rack}
    )
    if racks and len(racks) < len(chosen):
        raise Failure(
            "Not all brokers have rack information. Add --disable-rack-aware in command line to make replica "
            "assignment without rack information."
        )
    start = random.randrange(len(chosen)) if chosen else 0
    proposed = plans.propose(current, chosen, racks, start_index=start)
    print(f"Current partition replica assignment\n{plans.plan_as_json(current)}\n")
    print(f"Proposed partition reassignment configuration\n{plans.plan_as_json(proposed)}")


async def _list(admin: Any, _given: Given) -> None:
    found = await admin.list_partition_reassignments()
    if not found:
        print("No partition reassignments found.")
        return
    print("Current partition reassignments:")
    for tp, moving in sorted(found.items()):
        line = f"{tp}: replicas: {_ids(moving.replicas)}."
        line += f" adding: {_ids(moving.adding)}." if moving.adding else ""
        line += f" removing: {_ids(moving.removing)}." if moving.removing else ""
        print(line)


def _ids(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))


# --- execute


async def _execute(admin: Any, given: Given) -> None:
    from kclient.cli.reassign_log_dirs import throttle_copies
    from kclient.cli.reassign_throttles import throttle_moves

    plan = _read(given, _FILE, plans.read_plan)
    moves = _read(given, _FILE, plans.read_log_dirs)
    throttle = given.value("throttle")
    copy_throttle = given.value("replica-alter-log-dirs-throttle")
    timeout = given.value("timeout")
    under_way = await admin.list_partition_reassignments()
    if under_way and not given.has("additional"):
        raise _Terse(_EXISTING)
    live = (await admin.describe_cluster()).brokers
    unknown = sorted({broker for replicas in plan.values() for broker in replicas} - set(live))
    if unknown:
        raise Failure(f"Unknown broker id {unknown[0]}")
    current = await _replicas(admin, (tp.topic for tp in plan))
    missing = sorted(plan.keys() - current.keys())
    if missing:
        raise Failure(
            "org.apache.kafka.common.errors.UnknownTopicOrPartitionException: Unable to find partition: "
            f"{', '.join(map(str, missing))}"
        )
    rollback = plans.plan_as_json({tp: current[tp] for tp in plan})
    print(
        f"Current partition replica assignment\n\n{rollback}\n\n"
        "Save this to use as the --reassignment-json-file option during rollback"
    )
    if throttle >= 0 or copy_throttle >= 0:
        print(_VERIFY_LATER)
    if throttle >= 0:
        await throttle_moves(admin, plans.throttles_of(plan, current, under_way), throttle, print)
    if copy_throttle >= 0:
        await throttle_copies(admin, moves, copy_throttle, print)
    await _alter(admin, plan, "Error reassigning partition(s):")
    print(f"Successfully started partition reassignment{_s(plan)} for {_joined(plan)}")
    if moves:
        await _move(admin, moves, timeout)


async def _alter(admin: Any, targets: Mapping[TopicPartition, Any], failed: str) -> None:
    answers = await admin.alter_partition_reassignments(targets, raise_errors=False)
    problems = [f"{tp}: {message_of(p)}" for tp, p in sorted(answers.items()) if p is not None]
    if problems:
        raise _Terse("\n".join([failed, *problems]))


async def _move(
    admin: Any, moves: Mapping[int, Mapping[TopicPartition, str]], timeout: int
) -> None:
    from kclient.cli.reassign_log_dirs import start_moves

    def report(line: str) -> None:
        # The space is Kafka's.
        print(f"{line} ", flush=True)

    try:
        await start_moves(admin.cluster.reactor, admin, moves, report, timeout / 1000)
    except TimeoutError as problem:
        raise _Terse(str(problem).rpartition(" (")[0] or str(problem)) from None


# --- verify, cancel


async def _verify(admin: Any, given: Given) -> None:
    from kclient.cli.reassign_log_dirs import progress_of_moves

    plan = _read(given, _FILE, plans.read_plan)
    moves = _read(given, _FILE, plans.read_log_dirs)
    under_way = await admin.list_partition_reassignments()
    current: _Replicas = {}
    found = await admin.describe_topics(sorted({tp.topic for tp in plan}), raise_errors=False)
    for topic in found.values():
        if not isinstance(topic, KafkaError):
            current |= {
                TopicPartition(topic.name, n): p.replicas for n, p in topic.partitions.items()
            }
    print("Status of partition reassignment:")
    for each in plans.progress_of(plan, current, under_way):
        print(each)
    progress = await progress_of_moves(admin, moves)
    print("\n".join(map(str, progress)))
    # As Kafka: any active reassignment keeps the throttles.
    if (
        not under_way
        and not any(each.is_active for each in progress)
        and not given.has("preserve-throttles")
    ):
        await _clear_throttles(admin, plan)


async def _clear_throttles(admin: Any, plan: _Replicas) -> None:
    from kclient.admin.configs import ConfigResource, ResourceType

    live = (await admin.describe_cluster()).brokers
    brokers = sorted({*live, *(broker for replicas in plan.values() for broker in replicas)})
    topics = sorted({tp.topic for tp in plan})
    print(f"Clearing broker-level throttles on broker{_s(brokers)} {_ids(brokers)}", flush=True)
    await admin.alter_configs(
        {
            ConfigResource(ResourceType.BROKER, str(broker)): dict.fromkeys(plans.BROKER_THROTTLES)
            for broker in brokers
        }
    )
    print(f"Clearing topic-level throttles on topic{_s(topics)} {','.join(topics)}", flush=True)
    await admin.alter_configs(
        {
            ConfigResource(ResourceType.TOPIC, topic): dict.fromkeys(plans.TOPIC_THROTTLES)
            for topic in topics
        }
    )


async def _cancel(admin: Any, given: Given) -> None:
    from kclient.cli.reassign_log_dirs import progress_of_moves

    plan = _read(given, _FILE, plans.read_plan)
    moves = _read(given, _FILE, plans.read_log_dirs)
    found = await admin.list_partition_reassignments(plan)
    active = sorted(found)
    if active:
        await _alter(
            admin,
            dict.fromkeys(active),
            f"Error cancelling partition reassignment{_s(active)} for:",
        )
        print(f"Successfully cancelled partition reassignment{_s(active)} for: {_joined(active)}")
    else:
        print("None of the specified partition reassignments are active.")
    back: dict[int, dict[TopicPartition, str]] = {}
    for each in await progress_of_moves(admin, moves):
        if each.is_active and each.current is not None:
            back.setdefault(each.broker, {})[each.tp] = each.current
    if back:
        await _move(admin, back, given.value("timeout"))
    else:
        # There is no line end in Kafka's tool, either.
        print("None of the specified partition moves are active.", end="")
    if not given.has("preserve-throttles"):
        await _clear_throttles(admin, plan)


_BODIES = {
    "generate": _generate,
    "execute": _execute,
    "verify": _verify,
    "cancel": _cancel,
    "list": _list,
}

TOOL = Tool(
    "kafka-reassign-partitions",
    "This tool helps to move topic partitions between replicas.",
    OPTIONS,
    main,
    differs=(
        "A JSON file is checked completely: the text about an invalid one is kclient's.",
        "--cancel also cancels a reassignment that only adds replicas; Kafka 3.9 leaves it as it is.",
    ),
)
