"""The topics of a cluster: configs that cannot be read, and topics that another client created."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kclient.config import CommonConfig
from kclient.errors import KafkaError, KafkaTimeoutError
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import InvalidConfig
from kclient.wire.schema import create_topics, describe_configs
from kclient.wire.versions import ApiKey
from mirrormaker.catalog import Catalog
from mirrormaker.config import MirrorConfig
from mirrormaker.lineage import SOURCE_TOPIC_ID
from mirrormaker.mirror import Mirror
from mirrormaker.topics import MARK, PATH, PROMOTION, Creation, Plan
from tests.kit.scripted_cluster import ScriptedCluster

TOPIC_CONFIG = 1


def described(
    request: describe_configs.DescribeConfigsRequest, errors: Mapping[str, ErrorCode]
) -> Any:
    """Return an answer in which every topic has the mark of a mirror, or its error."""
    mark = describe_configs.DescribeConfigsResourceResult(
        name=MARK, value="east", config_source=TOPIC_CONFIG
    )
    return describe_configs.DescribeConfigsResponse(
        results=[
            describe_configs.DescribeConfigsResult(
                error_code=int(errors.get(each.resource_name, ErrorCode.NONE)),
                resource_type=each.resource_type,
                resource_name=each.resource_name,
                configs=[mark],
            )
            for each in request.resources
        ]
    )


class Described:
    """A cluster with two topics; *errors* are the error codes of their configs."""

    def __init__(self) -> None:
        self.scripted = ScriptedCluster({"orders": 1, "other": 2})
        self.errors: dict[str, ErrorCode] = {}
        self.scripted.answers[ApiKey.DESCRIBE_CONFIGS] = self._describe
        self.catalog = Catalog(
            self.scripted.cluster(CommonConfig.load({"bootstrap.servers": "a:1"}))
        )

    def _describe(self, request: describe_configs.DescribeConfigsRequest) -> Any:
        return described(request, self.errors)

    def done(self, coroutine: Any) -> Any:
        """Return the result of *coroutine*, or raise its error."""
        results: list[Any] = []
        Deferred.fromCoroutine(coroutine).addBoth(results.append)
        self.scripted.pass_time(1.0)
        (result,) = results
        if isinstance(getattr(result, "value", None), KafkaError):
            raise result.value
        return result

    def topics(self) -> Any:
        present = self.done(self.catalog.names())
        return self.done(
            self.catalog.topics(["orders", "other"], present=present, configs_too=True)
        )


@pytest.mark.parametrize(
    "error", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
)
def test_a_topic_with_configs_that_cannot_be_read_hides_no_other(error: ErrorCode) -> None:
    cluster = Described()
    cluster.errors["orders"] = error
    assert list(cluster.topics()) == ["other"]
    assert [problem.code for problem in cluster.catalog.unreadable.values()] == [error]
    del cluster.errors["orders"]
    assert list(cluster.topics()) == ["orders", "other"]
    assert cluster.catalog.unreadable == {}


def test_a_topic_is_not_taken_for_a_deleted_one_while_its_broker_cannot_read_the_configs() -> None:
    """A broker without ZooKeeper has the topics and not their configs; `kmirror status` found nothing to mirror."""
    cluster = Described()
    cluster.errors["orders"] = ErrorCode.REQUEST_TIMED_OUT
    with pytest.raises(KafkaError, match="REQUEST_TIMED_OUT"):
        cluster.topics()
    cluster.errors.clear()
    assert list(cluster.topics()) == ["orders", "other"]


def test_configs_that_were_read_before_stay_known_while_they_cannot_be_read() -> None:
    cluster = Described()
    before = cluster.topics()
    assert before["orders"].upstream == ("east",)
    cluster.errors["orders"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert cluster.topics() == before
    assert cluster.catalog.unreadable == {}


@pytest.mark.parametrize("refused", [(), (PROMOTION,)])
def test_all_marks_are_set_in_one_change_also_by_a_broker_that_refuses_the_promotion(
    refused: tuple[str, ...],
) -> None:
    """Before, such a broker got them one by one, and a kill in between left a mirror of another topic id."""
    cluster = Described()
    configs = {"orders": {PATH: "older", SOURCE_TOPIC_ID: "before"}}
    accepted = cluster.scripted.serve_configs(configs, refused=refused)
    compared = {PROMOTION: '{"compared":1}'}
    marks = {PATH: None, MARK: "east", SOURCE_TOPIC_ID: "now"}
    cluster.done(cluster.catalog.mark("orders", "east", "now", (), compared))
    assert accepted == [marks if refused else {**marks, **compared}]
    problem = cluster.done(cluster.catalog.promoted("orders", "found"))
    assert accepted[1:] == [{MARK: ""} if refused else {MARK: "", PROMOTION: "found"}]
    assert ("INVALID_CONFIG" in problem) == bool(refused)


@pytest.mark.parametrize("compared", [None, {PROMOTION: '{"compared":1}'}])
def test_a_mark_that_is_refused_sets_nothing(compared: dict[str, str] | None) -> None:
    """Apache Kafka does not know the marks. Before, the configs that it knew were set if there was a promotion."""
    cluster = Described()
    configs: dict[str, dict[str, str]] = {}
    accepted = cluster.scripted.serve_configs(configs, refused=(MARK,))
    with pytest.raises(InvalidConfig):
        cluster.done(cluster.catalog.mark("orders", "east", "now", ("far",), compared))
    assert (accepted, configs) == ([], {})


def test_a_topic_that_another_client_created_meanwhile_is_compared_before_it_is_copied_to() -> None:
    """Its marks are not those of the plan."""
    cluster = Described()
    exists = create_topics.CreatableTopicResult(
        name="new", error_code=int(ErrorCode.TOPIC_ALREADY_EXISTS)
    )
    cluster.scripted.answers[ApiKey.CREATE_TOPICS] = lambda _: create_topics.CreateTopicsResponse(
        topics=[exists]
    )
    plan = Plan({"new": "new"}, (Creation("new", 1, {MARK: "east"}),))
    with pytest.raises(KafkaTimeoutError, match="new was created by another client"):
        cluster.done(cluster.catalog.apply(plan, replication_factor=1))


@pytest.mark.parametrize("policy", ["keep", "delete"])
def test_a_comparison_reads_the_metadata_of_each_cluster_once(policy: str) -> None:
    source, target = ScriptedCluster({"orders": 1}), ScriptedCluster({"orders": 1, "gone": 1})
    target.clock = source.clock
    for scripted in (source, target):
        scripted.answers[ApiKey.DESCRIBE_CONFIGS] = lambda request: described(request, {})
    clusters = iter([source, target])
    config = MirrorConfig.of(
        {
            "clusters": "east, west",
            "east.bootstrap.servers": "a:1",
            "west.bootstrap.servers": "b:1",
            "east->west.enabled": "true",
            "east->west.topic.deletion.policy": policy,
        }
    ).flows[0]
    mirror = Mirror(
        source.clock,
        config,
        once=False,
        report=lambda _about, _what: None,
        cluster=lambda _, client: next(clusters).cluster(client),
    )
    before = source.count(ApiKey.METADATA), target.count(ApiKey.METADATA)
    plans: list[Plan] = []
    Deferred.fromCoroutine(mirror.topics.plan()).addCallback(plans.append)
    source.pass_time(1.0)
    assert len(plans) == 1
    after = source.count(ApiKey.METADATA), target.count(ApiKey.METADATA)
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1]
