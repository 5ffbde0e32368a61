"""The report of `kclient cluster health` while brokers are down that the cluster still counts as live."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from kclient.admin.health import Health
from kclient.admin.health_check import MIN_ISR, describe_health
from kclient.config import AdminConfig
from kclient.errors import ConnectionClosed
from kclient.wire.error_codes import ErrorCode
from kclient.wire.schema.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from kclient.wire.schema.describe_log_dirs import DescribeLogDirsResponse
from kclient.wire.schema.list_partition_reassignments import ListPartitionReassignmentsResponse
from kclient.wire.versions import ApiKey
from tests.kit.scripted_broker import Outcome
from tests.kit.scripted_cluster import ScriptedCluster

CONTROLLER = 1


def scripted_cluster(*, min_isr_code: int = 0) -> ScriptedCluster:
    """Three brokers and a topic; the controller is broker 1."""
    scripted = ScriptedCluster({"t": 1}, brokers=3)
    scripted.answers[ApiKey.DESCRIBE_LOG_DIRS] = lambda _: DescribeLogDirsResponse()
    scripted.answers[ApiKey.LIST_PARTITION_REASSIGNMENTS] = lambda _: (
        ListPartitionReassignmentsResponse()
    )

    def configs(request: Any) -> DescribeConfigsResponse:
        return DescribeConfigsResponse(
            results=[
                DescribeConfigsResult(
                    error_code=min_isr_code,
                    resource_type=r.resource_type,
                    resource_name=r.resource_name,
                    configs=[]
                    if min_isr_code
                    else [DescribeConfigsResourceResult(name=MIN_ISR, value="1")],
                )
                for r in request.resources
            ]
        )

    scripted.answers[ApiKey.DESCRIBE_CONFIGS] = configs
    return scripted


def report(scripted: ScriptedCluster, *, timeout: float = 10.0) -> tuple[Health, float]:
    """Return the health, and the seconds that it took."""
    config = AdminConfig.load(bootstrap_servers="one:1,two:2")
    cluster = scripted.cluster(config)
    before = scripted.clock.seconds()
    outcome = Outcome(Deferred.fromCoroutine(describe_health(cluster, timeout=timeout)))
    while not outcome.fired and scripted.clock.seconds() < before + 60:
        scripted.pass_time(0.1)
    return outcome.value, scripted.clock.seconds() - before


def test_a_cluster_that_answers_is_asked_for_everything() -> None:
    found, _ = report(scripted_cluster())
    assert "does not answer" not in str(found.reasons)
    assert found.unchecked == ()


def test_a_killed_controller_that_counts_as_live_is_in_the_report() -> None:
    """4 s after the kill, before ZooKeeper expires its session, the command ended with one error."""
    scripted = scripted_cluster()
    scripted.down = {CONTROLLER}
    found, seconds = report(scripted)
    assert found.silent == (CONTROLLER,)
    assert found.reasons[0] == "broker 1 (the controller) does not answer"
    [unknown] = found.unchecked
    assert unknown.startswith("reassignments are unknown: ")
    assert unknown in found.reasons
    assert not found.is_healthy
    assert found.expected == (1, 2, 3)
    assert seconds < 5


def test_a_new_controller_is_asked_within_the_timeout() -> None:
    scripted = scripted_cluster()
    answers = [ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER, 0]
    scripted.answers[ApiKey.LIST_PARTITION_REASSIGNMENTS] = lambda _: (
        ListPartitionReassignmentsResponse(error_code=answers.pop(0))
    )
    found, _ = report(scripted)
    assert (found.silent, found.unchecked) == ((), ())


def test_metadata_lost_on_the_way_are_asked_for_again() -> None:
    scripted = scripted_cluster()
    knows = scripted.answers[ApiKey.METADATA]
    lost: list[Any] = []

    def metadata(request: Any) -> Any:
        if request.topics is None and len(lost) < 5:
            lost.append(request)
            return ConnectionClosed("the connection was lost")
        return knows(request)

    scripted.answers[ApiKey.METADATA] = metadata
    found, _ = report(scripted)
    assert found.expected == (1, 2, 3)


def test_an_answer_that_refuses_is_no_silence() -> None:
    refusal = DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    scripted = scripted_cluster(min_isr_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    scripted.answers[ApiKey.DESCRIBE_LOG_DIRS] = lambda _: refusal
    found, _ = report(scripted)
    assert found.silent == ()
    log_dirs, min_isr = found.unchecked[:3], found.unchecked[3]
    assert "log directories of broker 2 are unknown: CLUSTER_AUTHORIZATION_FAILED" in log_dirs[1]
    assert "min.insync.replicas is unknown: TOPIC_AUTHORIZATION_FAILED" in min_isr
    assert not found.is_healthy


def test_a_topic_that_was_deleted_in_between_is_no_problem() -> None:
    found, _ = report(scripted_cluster(min_isr_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    assert found.unchecked == ()
