"""The topics of a cluster: configs that cannot be read, and topics that another client created."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kclient.config import CommonConfig
from kclient.errors import KafkaError, KafkaTimeoutError
from kclient.wire.error_codes import ErrorCode
from kclient.wire.schema import create_topics, describe_configs
from kclient.wire.versions import ApiKey
from mirrormaker.catalog import Catalog
from mirrormaker.topics import MARK, Creation, Plan
from tests.kit.paper_cluster import PaperCluster

TOPIC_CONFIG = 1


class Described:
    """A cluster with two topics; *errors* are the error codes of their configs."""

    def __init__(self) -> None:
        self.paper = PaperCluster({"orders": 1, "other": 2})
        self.errors: dict[str, ErrorCode] = {}
        self.paper.answers[ApiKey.DESCRIBE_CONFIGS] = self._describe
        self.catalog = Catalog(self.paper.cluster(CommonConfig.load({"bootstrap.servers": "a:1"})))

    def _describe(self, request: describe_configs.DescribeConfigsRequest) -> Any:
        mark = describe_configs.DescribeConfigsResourceResult(
            name=MARK, value="east", config_source=TOPIC_CONFIG
        )
        return describe_configs.DescribeConfigsResponse(
            results=[
                describe_configs.DescribeConfigsResult(
                    error_code=int(self.errors.get(each.resource_name, ErrorCode.NONE)),
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                    configs=[mark],
                )
                for each in request.resources
            ]
        )

    def done(self, coroutine: Any) -> Any:
        """Return the result of *coroutine*, or raise its error."""
        results: list[Any] = []
        Deferred.fromCoroutine(coroutine).addBoth(results.append)
        self.paper.pass_time(1.0)
        (result,) = results
        if isinstance(getattr(result, "value", None), KafkaError):
            raise result.value
        return result

    def topics(self) -> Any:
        return self.done(self.catalog.topics(["orders", "other"], configs_too=True))


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


def test_configs_that_were_read_before_stay_known_while_they_cannot_be_read() -> None:
    cluster = Described()
    before = cluster.topics()
    assert before["orders"].upstream == ("east",)
    cluster.errors["orders"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert cluster.topics() == before
    assert cluster.catalog.unreadable == {}


def test_a_topic_that_another_client_created_meanwhile_is_compared_before_it_is_copied_to() -> None:
    """Its marks are not those of the plan."""
    cluster = Described()
    exists = create_topics.CreatableTopicResult(
        name="new", error_code=int(ErrorCode.TOPIC_ALREADY_EXISTS)
    )
    cluster.paper.answers[ApiKey.CREATE_TOPICS] = lambda _: create_topics.CreateTopicsResponse(
        topics=[exists]
    )
    plan = Plan({"new": "new"}, (Creation("new", 1, {MARK: "east"}),))
    with pytest.raises(KafkaTimeoutError, match="new was created by another client"):
        cluster.done(cluster.catalog.apply(plan, replication_factor=1))
