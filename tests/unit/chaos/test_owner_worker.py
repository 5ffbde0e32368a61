"""The facts of a member of a group: what it owns, in the generation in which it owns it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kclient.types import TopicPartition
from tests.chaos.owner_worker import GROUP, Facts
from tests.chaos.recorder import Recorder
from tests.kit.consumer_fixture import ConsumerFixture


class Member:
    """A member on scripted brokers, and what it writes down."""

    def __init__(self, recorder: Recorder) -> None:
        self.it = ConsumerFixture(3, group_id=GROUP, partition_assignment_strategy="range")
        self.recorder = recorder
        self.facts = Facts(self.it.consumer, self.recorder, 7)
        self.it.share = [TopicPartition("t", 0), TopicPartition("t", 2)]
        self.it.consumer.subscribe(["t"], listener=self.facts)
        self.settle()

    def settle(self) -> None:
        """Let the group come to rest."""
        for _ in range(4):
            self.it.poll()
            self.it.scripted.pass_time(0.5)

    @property
    def noted(self) -> list[tuple[Any, ...]]:
        """Generation and keys of every fact."""
        found = [one.v for one in self.recorder.events if one.f == "assigned"]
        assert {one["member"] for one in found} <= {"m-1"}
        return [(one["generation"], *one["keys"]) for one in found]


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    made = Recorder(tmp_path / "history.jsonl")
    yield made
    made.close()


@pytest.fixture
def member(recorder: Recorder) -> Member:
    return Member(recorder)


def test_what_is_owned_is_noted_once_by_the_listener(member: Member) -> None:
    assert member.noted == [(1, "t-0", "t-2")]
    member.facts.look()
    assert member.noted == [(1, "t-0", "t-2")]


def test_every_generation_is_a_fact_of_its_own(member: Member) -> None:
    member.it.rebalance(1)
    member.settle()
    member.facts.look()
    assert (2, "t-1") in member.noted
    assert all(fact[0] < 2 or set(fact[1:]) <= {"t-1"} for fact in member.noted)


def test_outside_of_a_generation_there_are_none(recorder: Recorder) -> None:
    it = ConsumerFixture(1, group_id=GROUP)
    Facts(it.consumer, recorder, 7).look()
    assert recorder.events == []


def test_nor_for_a_member_that_has_left(member: Member) -> None:
    member.it.consumer.unsubscribe()
    member.it.scripted.pass_time(1)
    assert member.it.consumer.group_metadata().generation_id == -1
    member.facts.look()
    assert member.noted == [(1, "t-0", "t-2")]


class Moving:
    """A consumer with a generation that changes while its assignment is read."""

    def __init__(self, it: ConsumerFixture) -> None:
        self._it = it

    def group_metadata(self) -> Any:
        return self._it.consumer.group_metadata()

    def assignment(self) -> Any:
        found = self._it.consumer.assignment()
        member = self._it.consumer._subscription.member
        assert member is not None
        member.identity = type(member.identity)(member.generation_id + 1, "m-1")
        return found


def test_a_generation_that_changes_meanwhile_proves_nothing(member: Member) -> None:
    Facts(Moving(member.it), member.recorder, 7).look()
    assert member.noted == [(1, "t-0", "t-2")]
