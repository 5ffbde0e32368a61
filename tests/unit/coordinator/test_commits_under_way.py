"""Which commits a look for the offsets of a deleted topic waits for."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kbroker.coordinator.group.commits_under_way import CommitsUnderWay


def test_without_a_commit_nothing_is_waited_for() -> None:
    commits = CommitsUnderWay()
    commits.end(commits.begin())
    assert commits.all_of_now().called


def test_commits_that_begin_later_are_not_waited_for() -> None:
    commits = CommitsUnderWay()
    first, second = commits.begin(), commits.begin()
    both = commits.all_of_now()
    third = commits.begin()
    all_three = commits.all_of_now()
    commits.end(second)
    assert not both.called
    commits.end(first)
    assert both.called
    assert not all_three.called
    commits.end(third)
    assert all_three.called


def test_a_later_commit_that_ends_first_changes_nothing() -> None:
    commits = CommitsUnderWay()
    first = commits.begin()
    of_now = commits.all_of_now()
    commits.end(commits.begin())
    assert not of_now.called
    commits.end(first)
    assert of_now.called


def test_a_commit_that_fails_has_ended() -> None:
    commits = CommitsUnderWay()
    work: Deferred[int] = Deferred()
    result = Deferred.fromCoroutine(commits.during(work))
    of_now = commits.all_of_now()
    assert not of_now.called
    work.errback(ValueError("lost"))
    assert of_now.called
    problems: list[Failure] = []
    result.addErrback(problems.append)
    assert [str(each.value) for each in problems] == ["lost"]
