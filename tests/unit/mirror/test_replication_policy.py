"""The names of mirrors: MirrorMaker 2's policies, and those of an operator."""

from __future__ import annotations

import re

import pytest

from mirrormaker.replication_policy import load_policy, sources
from mirrormaker.settings import LinkSettings
from mirrormaker.topics import Selection, Topic


class Suffix:
    """TOPIC-from-SOURCE."""

    def __init__(self, *, separator: str) -> None:
        self._between = f"{separator}from{separator}"

    def format_remote_topic(self, source: str, topic: str) -> str:
        return f"{topic}{self._between}{source}"

    def topic_source(self, topic: str) -> str | None:
        return topic.rpartition(self._between)[2] if self._between in topic else None

    def upstream_topic(self, topic: str) -> str | None:
        return topic.rpartition(self._between)[0] or None


class Lower(Suffix):
    """Two topics get the same name."""

    def format_remote_topic(self, source: str, topic: str) -> str:
        return super().format_remote_topic(source, topic.lower())


class Endless(Suffix):
    """Every topic has a source, also the name of the source topic."""

    def topic_source(self, topic: str) -> str | None:
        return "source"

    def upstream_topic(self, topic: str) -> str | None:
        return "topic"


class Wrong(Suffix):
    """Finds another source than the one it wrote."""

    def topic_source(self, topic: str) -> str | None:
        return "nowhere"


def named(policy: type) -> str:
    return f"{policy.__module__}:{policy.__name__}"


def selection(policy: type) -> Selection:
    settings = LinkSettings(replication_policy=named(policy), separator="-")
    return Selection("east", "west", settings)


@pytest.mark.parametrize("package", ["", "org.apache.kafka.connect.mirror."])
@pytest.mark.parametrize(
    ("name", "copy", "through"),
    [("IdentityReplicationPolicy", "t", []), ("DefaultReplicationPolicy", "a_t", ["a"])],
)
def test_the_policies_of_mirrormaker_2_are_known(
    package: str, name: str, copy: str, through: list[str]
) -> None:
    policy = load_policy(f"{package}{name}", "_")
    assert policy.format_remote_topic("a", "t") == copy
    assert list(sources(policy, copy)) == through


def test_a_class_of_the_operator_names_the_mirrors() -> None:
    plan = selection(Suffix).plan({"orders": Topic(1), "b-from-west": Topic(1)}, {}, "E", "W")
    assert plan.mirrored == {"orders": "orders-from-east"}
    assert list(plan.skipped) == ["b-from-west"], "its records come from the target"
    assert selection(Suffix).source_name("orders-from-east") == "orders"
    assert selection(Suffix).source_name("orders") is None


def test_two_topics_with_one_name_at_the_target_are_a_conflict() -> None:
    plan = selection(Lower).plan({"a": Topic(1), "A": Topic(1), "b": Topic(1)}, {}, "E", "W")
    assert plan.mirrored == {"b": "b-from-east"}
    assert set(plan.conflicts) == {"a", "A"}
    assert "gives 2 source topics the name a-from-east" in plan.conflicts["a"]


def test_a_policy_that_never_ends_is_left_after_some_hops() -> None:
    assert len(list(sources(load_policy(named(Endless)), "t"))) == 100


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("OtherPolicy", "and not MODULE:CLASS of a Python module"),
        ("no.such.module:Policy", "cannot be used: ModuleNotFoundError"),
        ("json:Policy", "cannot be used: AttributeError"),
        ("json:JSONDecoder", "cannot be used: TypeError"),
        (named(Wrong), "finds ('nowhere', 'topic') in that"),
        (":", "cannot be used: ValueError"),
    ],
)
def test_a_policy_that_cannot_be_used_is_refused(name: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        load_policy(name)
