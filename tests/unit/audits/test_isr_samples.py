"""Each predicate over samples is seen violated, and each excuse is seen to hold and to end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.audits.isr_samples import IsrAt, Known, Loss, Mark, Sample, SampleAudit, judge

KEY = "t-0"
STATE = Known(version=4, leader=1, leader_epoch=2, isr=(1, 2, 3))


def sample(at: int = 100, **changed: Any) -> Sample:
    """Take one in which all is well: broker 1 leads, and all that is committed is everywhere."""
    fine = Sample(
        at, at + 5, KEY, STATE, {1: Mark(2, 10)}, {1: 12, 2: 10, 3: 11}, after=STATE
    )  # fmt: skip
    return fine._replace(**changed)


def rules(audit: SampleAudit) -> list[str]:
    return [problem.rule for problem in audit.problems]


def test_what_is_committed_is_on_every_member() -> None:
    audit = judge([sample(), sample(at=200)])
    assert not audit.problems
    assert (audit.samples, audit.unsettled, audit.compared) == (2, 0, 4)


def test_strong_isr() -> None:
    audit = judge([sample(ends={1: 12, 2: 9, 3: 11})])
    assert rules(audit) == ["strong-isr"]
    assert "broker 2" in audit.problems[0].text


def test_strong_isr_holds_for_every_broker_that_considers_itself_leader() -> None:
    zombie = sample(marks={1: Mark(2, 10), 3: Mark(1, 11)}, ends={1: 12, 2: 10, 3: 11})
    audit = judge([zombie])
    assert rules(audit) == ["strong-isr"]
    assert "broker 2" in audit.problems[0].text


@pytest.mark.parametrize(
    "changed",
    [
        {"after": STATE._replace(version=5, isr=(1, 3))},
        {"before": STATE._replace(isr=(1, 3)), "after": STATE._replace(isr=(1, 3))},
        {"ends": {1: 12, 3: 11}},
        {"marks": {}},
    ],
)
def test_an_isr_that_changed_an_unknown_replica_or_a_missing_sample_proves_nothing(
    changed: Any,
) -> None:
    assert not judge([sample(**{"ends": {1: 12, 2: 9, 3: 11}, **changed})]).problems


@pytest.mark.parametrize(
    "state", [STATE._replace(isr=(2, 3)), STATE._replace(isr=()), STATE._replace(leader=-1, isr=())]
)
@pytest.mark.parametrize("where", ["before", "after"])
def test_leader_in_isr(state: Known, where: str) -> None:
    state = state._replace(version=5)
    assert rules(judge([sample(marks={}, **{where: state})])) == ["leader-in-isr"]


def test_a_partition_may_be_without_a_leader() -> None:
    waiting = STATE._replace(leader=-1, isr=(3,))
    assert not judge([sample(before=waiting, after=waiting, marks={})]).problems


def test_a_watermark_is_not_above_its_own_log_end() -> None:
    assert rules(judge([sample(ends={1: 9, 2: 10, 3: 11})])) == ["valid-high-watermark"]


def test_a_watermark_does_not_fall_in_its_epoch() -> None:
    fallen = sample(at=200, marks={1: Mark(2, 8)})
    assert rules(judge([sample(), fallen])) == ["valid-high-watermark"]
    assert not judge([sample(), sample(at=200, marks={1: Mark(3, 8)})]).problems


def test_an_epoch_has_one_leader() -> None:
    other = sample(at=200, marks={2: Mark(2, 10)})
    assert rules(judge([sample(), other])) == ["one-leader"]
    assert rules(judge([sample(marks={1: Mark(2, 10), 2: Mark(2, 10)})])) == ["one-leader"]


@pytest.mark.parametrize("key", [None, KEY])
def test_a_replica_that_lost_its_disk_is_excused_until_the_isr_was_without_it(
    key: str | None,
) -> None:
    behind = sample(ends={1: 12, 2: 0, 3: 11})
    lost = [Loss(50, 2, key)]
    assert not judge([behind], lost).problems
    assert not judge([behind], lost, [IsrAt(20, KEY, frozenset({1, 3}))]).problems
    gone_and_back = [IsrAt(60, KEY, frozenset({1, 3})), IsrAt(70, KEY, frozenset({1, 2, 3}))]
    assert rules(judge([behind], lost, gone_and_back)) == ["strong-isr"]


@pytest.mark.parametrize("loss", [Loss(50, 3, None), Loss(50, 2, "t-1"), Loss(900, 2, None)])
def test_no_other_replica_is_excused(loss: Loss) -> None:
    assert rules(judge([sample(ends={1: 12, 2: 9, 3: 11})], [loss])) == ["strong-isr"]


def test_of_many_equal_problems_the_first_are_reported() -> None:
    audit = judge([sample(at=n, ends={1: 12, 2: 9, 3: 11}) for n in range(10, 100, 10)])
    assert rules(audit) == ["strong-isr"] * 3


def test_an_unclean_election_ends_what_an_old_leader_promised() -> None:
    zombie = sample(marks={1: Mark(2, 10), 3: Mark(1, 11)}, ends={1: 12, 2: 10, 3: 11})
    assert not judge([zombie], unclean_election=True).problems
    behind = sample(ends={1: 12, 2: 9, 3: 11})
    assert rules(judge([behind], unclean_election=True)) == ["strong-isr"]
