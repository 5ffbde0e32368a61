"""A topic that a broker's metadata lack: it was deleted, or the broker has just started and does not know it yet."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kclient.types import TopicPartition
from kclient.wire.error_codes import ErrorCode
from kclient.wire.schema import create_topics, describe_acls, describe_configs
from kclient.wire.versions import ApiKey
from mirrormaker.config import MirrorConfig
from mirrormaker.mirror import Mirror
from tests.kit.scripted_cluster import ScriptedCluster

TP = TopicPartition("orders", 0)
TOPIC_CONFIG = 1


def described(request: describe_configs.DescribeConfigsRequest) -> Any:
    """Return an answer in which every topic has the config that the target needs."""
    config = describe_configs.DescribeConfigsResourceResult(
        name="message.timestamp.type", value="CreateTime", config_source=TOPIC_CONFIG
    )
    return describe_configs.DescribeConfigsResponse(
        results=[
            describe_configs.DescribeConfigsResult(
                resource_type=each.resource_type,
                resource_name=each.resource_name,
                configs=[config],
            )
            for each in request.resources
        ]
    )


def without_authorizer(_request: describe_acls.DescribeAclsRequest) -> Any:
    return describe_acls.DescribeAclsResponse(error_code=int(ErrorCode.SECURITY_DISABLED))


class Mirrored:
    """A mirror with a link for the partition of its one topic. The controllers know the topics *at_controller*."""

    def __init__(self) -> None:
        self.source, self.target = ScriptedCluster({"orders": 1}), ScriptedCluster({"orders": 1})
        self.target.clock = self.source.clock
        self.at_controller = {"orders"}
        for name, scripted in (("east", self.source), ("west", self.target)):
            scripted.answers[ApiKey.DESCRIBE_CONFIGS] = described
            scripted.answers[ApiKey.DESCRIBE_ACLS] = without_authorizer
            scripted.answers[ApiKey.METADATA] = partial(self._metadata, name, scripted)
        self.target.answers[ApiKey.CREATE_TOPICS] = self._create
        self.events: list[str] = []
        clusters = iter([self.source, self.target])

        def report(about: str, what: str) -> None:
            self.events.append(f"{about}: {what}")

        self.mirror = Mirror(
            self.source.clock,
            MirrorConfig.of(
                {
                    "clusters": "east, west",
                    "east.bootstrap.servers": "a:1",
                    "west.bootstrap.servers": "b:1",
                    "east->west.enabled": "true",
                }
            ).flows[0],
            once=False,
            report=report,
            cluster=lambda _, client: next(clusters).cluster(client),
        )
        self.compare()
        self.link = self.mirror.flow.links[TP]
        self.events.clear()

    def _metadata(self, cluster_id: str, scripted: ScriptedCluster, request: Any) -> Any:
        """Answer for all topics as a broker, for one topic as the controller."""
        asked = (
            scripted
            if request.topics is None
            else ScriptedCluster(dict.fromkeys(self.at_controller, 1))
        )
        return replace(asked._metadata(request), cluster_id=cluster_id)

    def _create(self, request: create_topics.CreateTopicsRequest) -> Any:
        (wanted,) = request.topics
        error = ErrorCode.TOPIC_ALREADY_EXISTS if wanted.name in self.at_controller else 0
        if not error:
            self.target.topics[wanted.name] = 1
        result = create_topics.CreatableTopicResult(name=wanted.name, error_code=int(error))
        return create_topics.CreateTopicsResponse(topics=[result])

    def compare(self) -> None:
        """Compare the topics, as every refresh.topics.interval.seconds."""
        Deferred.fromCoroutine(self.mirror.topics.refresh()).addErrback(lambda _failure: None)
        self.source.pass_time(1.0)


@pytest.fixture
def mirrored() -> Mirrored:
    return Mirrored()


def test_a_target_broker_that_does_not_know_its_topics_yet_proves_no_deletion(
    mirrored: Mirrored,
) -> None:
    mirrored.target.topics.clear()
    mirrored.compare()
    assert mirrored.mirror.flow.links == {TP: mirrored.link}
    mirrored.target.topics["orders"] = 1
    mirrored.compare()
    assert mirrored.mirror.flow.links == {TP: mirrored.link}
    assert not any("deleted" in event for event in mirrored.events)


def test_a_source_broker_that_does_not_know_its_topics_yet_proves_no_deletion(
    mirrored: Mirrored,
) -> None:
    mirrored.source.topics.clear()
    mirrored.compare()
    assert mirrored.mirror.flow.links == {TP: mirrored.link}
    assert not any("deleted" in event for event in mirrored.events)


def test_a_topic_that_had_to_be_created_again_at_the_target_was_deleted(
    mirrored: Mirrored,
) -> None:
    mirrored.at_controller.clear()
    mirrored.target.topics.clear()
    mirrored.compare()
    assert "topic orders: was deleted at the target; copied again" in mirrored.events
    assert mirrored.mirror.flow.links[TP] is not mirrored.link


def test_a_topic_that_the_sources_controller_does_not_know_was_deleted(
    mirrored: Mirrored,
) -> None:
    mirrored.at_controller.clear()
    mirrored.source.topics.clear()
    mirrored.compare()
    assert "topic orders: was deleted at the source; the target topic stays" in mirrored.events
    assert not mirrored.mirror.flow.links
