"""What a running mirror compares, and how often; without refresh.topics.enabled only new topics are left out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from kclient.config import CommonConfig
from kclient.net.cluster import Cluster
from kclient.types import TopicPartition
from kclient.wire.error_codes import ErrorCode
from kclient.wire.schema import create_topics, describe_acls
from kclient.wire.versions import ApiKey
from mirrormaker.config import MirrorConfig
from mirrormaker.mirror import Mirror
from mirrormaker.topics import MARK
from tests.kit.scripted_cluster import ScriptedCluster, batch_of, part

ORDERS = TopicPartition("orders", 0)
SETTINGS = {
    "clusters": "east, west",
    "east.bootstrap.servers": "a:1",
    "west.bootstrap.servers": "b:1",
    "east->west.enabled": "true",
}
WITHOUT_REFRESH = {"refresh.topics.enabled": "false"}
AS_MIRRORMAKER_2 = {"refresh.topics.interval.seconds": "600"}


def _always(answer: Any, _request: Any) -> Any:
    return answer


class Running:
    """A mirror of one topic that runs between scripted brokers."""

    def __init__(self, settings: Mapping[str, str], *, ends: tuple[int, int] = (0, 0)) -> None:
        self.east, self.west = ScriptedCluster({"orders": 1}), ScriptedCluster({"orders": 1})
        self.west.clock = self.east.clock
        self.east.cluster_id, self.west.cluster_id = "E", "W"
        self.at_east: dict[str, dict[str, str]] = {}
        self.at_west: dict[str, dict[str, str]] = {}
        for scripted, configs in ((self.east, self.at_east), (self.west, self.at_west)):
            scripted.serve_configs(configs)
            scripted.serve_log_ends(0)
            scripted.answers[ApiKey.DESCRIBE_ACLS] = lambda _: describe_acls.DescribeAclsResponse(
                error_code=int(ErrorCode.SECURITY_DISABLED)
            )
        for scripted, end in zip((self.east, self.west), ends, strict=True):
            scripted.serve_offsets({ORDERS: (0, end)})
            fetched = scripted.fetched((ORDERS, part(0, batch_of(8, b"8"))))
            scripted.answers[ApiKey.FETCH] = partial(_always, fetched)
        self.west.answers[ApiKey.CREATE_TOPICS] = self._create
        clusters = iter([self.east, self.west])
        self.events: list[str] = []

        def cluster(reactor: Any, config: CommonConfig) -> Cluster:
            return next(clusters).attach(Cluster(reactor, config))

        (flow,) = MirrorConfig.of({**SETTINGS, **settings}).flows
        self.mirror = Mirror(
            self.east.clock,
            flow,
            once=False,
            report=lambda about, what: self.events.append(f"{about}: {what}"),
            cluster=cluster,
        )
        self.failures: list[Any] = []
        self.mirror.run().addErrback(self.failures.append)
        self.wait(5)

    def _create(self, request: create_topics.CreateTopicsRequest) -> Any:
        self.west.topics |= {each.name: each.num_partitions for each in request.topics}
        results = [create_topics.CreatableTopicResult(name=each.name) for each in request.topics]
        return create_topics.CreateTopicsResponse(topics=results)

    def wait(self, seconds: float) -> None:
        self.east.pass_time(seconds, 0.25)
        assert not self.failures

    @property
    def links(self) -> set[TopicPartition]:
        return set(self.mirror.flow.links)


@pytest.mark.parametrize("settings", [WITHOUT_REFRESH, AS_MIRRORMAKER_2])
def test_configs_and_promotions_are_noticed_at_their_own_interval(
    settings: dict[str, str],
) -> None:
    """Without refresh.topics.enabled never; with MirrorMaker 2's interval of it after 600 seconds."""
    running = Running(settings)
    assert running.links == {ORDERS}
    running.at_east["orders"] = {"retention.ms": "5"}
    running.wait(65)
    assert running.at_west["orders"]["retention.ms"] == "5"
    running.at_east["orders"][MARK] = "W"
    running.at_west["orders"][MARK] = ""
    running.wait(65)
    assert running.links == set()
    assert any(event.startswith("topic orders: is not copied") for event in running.events)


def test_without_a_refresh_new_topics_and_partitions_are_left_out() -> None:
    running = Running(WITHOUT_REFRESH)
    running.east.topics |= {"orders": 2, "later": 1}
    running.wait(130)
    assert running.links == {ORDERS}
    assert running.west.topics == {"orders": 1}
    assert running.mirror.topics.conflicts == {}
    running.west.topics["orders"] = 2  # another client added it there
    running.wait(65)
    assert running.mirror.topics.conflicts == {}
    looking = Running({})
    looking.east.topics |= {"later": 1}
    looking.wait(10)
    assert TopicPartition("later", 0) in looking.links


def test_without_a_refresh_the_lag_of_stopped_partitions_is_read_again() -> None:
    running = Running(WITHOUT_REFRESH, ends=(5, 9))
    running.wait(40)
    (link,) = running.mirror.flow.stopped_links
    assert link.source_high_watermark == 5
    running.east.serve_offsets({link.tp: (0, 30)})
    running.wait(65)
    assert link.source_high_watermark == 30
