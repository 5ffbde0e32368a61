"""Committed offsets on their way to ZooKeeper: many commits, few multis.

All commits of one turn of the reactor, of any group, become the next multis; while several are in flight, the next ones
fill up. A multi begins with one check for every shard that it writes for. Outcomes:

- done: the offsets are served from now on, and every commit is answered;
- a check failed: the state of that partition is read. Its commits fail if another broker leads; all others are sent
  again;
- one operation was refused (a znode exists or is missing unexpectedly): the offsets of that group are read again, and
  all commits are sent again;
- no answer: the outcome is unknown. The commits fail with a retriable error, and the offsets of these groups are read
  again before they are written again.

A request without an answer of ZooKeeper for `offsets.commit.timeout.ms` gets REQUEST_TIMED_OUT; its commits remain on
their way.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.common.reactor import Clock
from kbroker.coordinator.group.commits_under_way import CommitsUnderWay
from kbroker.coordinator.group.committed_offsets import is_detail
from kbroker.coordinator.group.core.commits import (
    CommitKey,
    CommitQueue,
    OffsetCommit,
    PendingCommit,
)
from kbroker.coordinator.group.group_metadata import GroupMetadata
from kbroker.coordinator.shard_fence import BATCH_BYTES, ShardFence, size_of
from kbroker.zk.errors import ConnectionLoss, SessionExpired, ZooKeeperError
from kbroker.zk.interface import Create, Operation, SetData
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import NotCoordinator

log = Logger()

COMMITS_AT_ONCE = 300
"""Commits in one multi, at most."""

IN_FLIGHT = 6
"""Multis in flight at a time."""

REFUSALS = 5
"""How often a commit may make a multi fail before that commit fails."""


class _Request:
    """One OffsetCommit request, with the result of each of its offsets."""

    __slots__ = ("deadline", "done", "errors", "left", "number")

    def __init__(self, count: int, deadline: float, number: int) -> None:
        self.deadline = deadline
        self.number = number
        """Of `CommitsUnderWay`, until all of its offsets are written or refused."""
        self.errors = [ErrorCode.UNKNOWN_SERVER_ERROR] * count
        self.left = count
        self.done: Deferred[list[ErrorCode]] = Deferred()


Waiter = tuple[_Request, int]
Commit = PendingCommit[Waiter]


class _Multi(NamedTuple):
    """A multi in flight: the checks, and the commit and group behind every operation after them."""

    fences: list[ShardFence]
    operations: list[Create | SetData]
    origins: list[tuple[Commit, GroupMetadata]]

    @property
    def commits(self) -> dict[Commit, GroupMetadata]:
        """Return the commits with their groups."""
        return dict(self.origins)


class OffsetWriter:
    """Writes the offsets of all groups. *find* returns a loaded group; a request waits *timeout* seconds at most."""

    def __init__(
        self,
        clock: Clock,
        find: Callable[[str], GroupMetadata | None],
        now_ms: Callable[[], int],
        under_way: CommitsUnderWay,
        *,
        timeout: float = 5.0,
    ) -> None:
        self._clock = clock
        self._under_way = under_way
        self._timeout = timeout
        self._requests: deque[_Request] = deque()
        """Requests in the order of their deadlines; some are done already."""
        self._watching = False
        self._find = find
        self._now_ms = now_ms
        self._queue: CommitQueue[Waiter] = CommitQueue()
        self.is_pending = self._queue.is_pending
        self.has_pending = self._queue.has_pending
        self._in_flight = 0
        self._woken = False

    def commit(
        self, group_id: str, offsets: Sequence[tuple[str, int, OffsetCommit]], number: int
    ) -> Deferred[list[ErrorCode]]:
        """Write offsets, at least one, of a loaded group with known offsets; the result is an error for each.

        The commit's *number* (`CommitsUnderWay`) ends when all are written or refused, also after the timeout.
        """
        deadline = self._clock.seconds() + self._timeout
        request = _Request(len(offsets), deadline, number)
        requests = self._requests
        while requests and requests[0].done.called:
            requests.popleft()
        requests.append(request)
        if not self._watching:
            self._watching = True
            self._clock.callLater(self._timeout, self._time_out)
        add = self._queue.add
        for index, (topic, partition, value) in enumerate(offsets):
            add(CommitKey(group_id, topic, partition), value, (request, index))
        self._wake()
        return request.done

    def fail_queued(self, group_ids: Iterable[str], error: ErrorCode) -> None:
        """Fail the queued commits of these groups, which are unloaded."""
        for commit in self._queue.take_groups(set(group_ids)):
            self._finish(self._queue.settle(commit, error), error)

    def _time_out(self) -> None:
        """Fail the requests past their deadline, and schedule the next deadline."""
        now = self._clock.seconds()
        requests = self._requests
        while requests and (requests[0].done.called or requests[0].deadline <= now):
            request = requests.popleft()
            if not request.done.called:
                request.done.callback([ErrorCode.REQUEST_TIMED_OUT] * len(request.errors))
        self._watching = bool(requests)
        if requests:
            self._clock.callLater(requests[0].deadline - now, self._time_out)

    # --- sending ------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._woken and self._in_flight < IN_FLIGHT:
            self._woken = True
            self._clock.callLater(0, self._send)

    def _send(self) -> None:
        self._woken = False
        while len(self._queue) and self._in_flight < IN_FLIGHT:
            for multi in self._multis(self._queue.take(COMMITS_AT_ONCE)):
                self._in_flight += 1
                checks: list[Operation] = [fence.check for fence in multi.fences]
                zookeeper = multi.fences[0].zookeeper
                zookeeper.multi([*checks, *multi.operations]).addCallbacks(
                    self._written, self._failed, callbackArgs=(multi,), errbackArgs=(multi,)
                ).addErrback(self._broken, multi)

    def _multis(self, commits: list[Commit]) -> list[_Multi]:
        """Build the multis for *commits*; a commit that cannot be sent now is answered or waits."""
        multis: list[_Multi] = []
        fences: dict[ShardFence, None] = {}
        operations: list[Create | SetData] = []
        origins: list[tuple[Commit, GroupMetadata]] = []
        size = 0
        for commit in commits:
            group = self._find(commit.key.group_id)
            if group is None or group.fence.resigned:
                self._settle(commit, ErrorCode.NOT_COORDINATOR)
                continue
            if not group.znodes.offsets_known:
                self._again_when_known(group, [commit])
                continue
            _, topic, partition = commit.key
            new = group.znodes.offsets.operations(topic, partition, commit.value)
            fences[group.fence] = None
            operations += new
            origins += [(commit, group)] * len(new)
            size += sum(map(size_of, new))
            if size > BATCH_BYTES:
                multis.append(_Multi(list(fences), operations, origins))
                fences, operations, origins, size = {}, [], [], 0
        if operations:
            multis.append(_Multi(list(fences), operations, origins))
        return multis

    # --- outcomes -----------------------------------------------------------------------------

    def _written(self, _results: object, multi: _Multi) -> None:
        self._landed()
        now_ms = self._now_ms()
        for commit, group in multi.commits.items():
            _, topic, partition = commit.key
            group.znodes.offsets.acknowledged(topic, partition, commit.value, now_ms)
            self._settle(commit, ErrorCode.NONE)

    def _failed(self, failure: Failure, multi: _Multi) -> None:
        self._landed()
        error = failure.value
        if isinstance(error, SessionExpired):
            for commit in multi.commits:
                self._settle(commit, ErrorCode.NOT_COORDINATOR)
        elif not isinstance(error, ZooKeeperError) or isinstance(error, ConnectionLoss):
            if not isinstance(error, ZooKeeperError):
                log.failure("offsets could not be written", failure=failure)
            for commit, group in multi.commits.items():
                group.znodes.offsets_known = False
                self._settle(commit, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif error.index is not None and error.index < len(multi.fences):
            self._undone(multi)
            Deferred.fromCoroutine(self._look_into(multi.fences[error.index], multi))
        else:
            self._refused(error, multi)

    def _broken(self, failure: Failure, multi: _Multi) -> None:
        """Handle an unexpected error: every commit of *multi* fails."""
        log.failure("offset commits failed", failure=failure)
        for commit in multi.commits:
            if commit.error is None:
                self._settle(commit, ErrorCode.UNKNOWN_SERVER_ERROR)

    def _landed(self) -> None:
        self._in_flight -= 1
        if len(self._queue):
            self._wake()

    def _undone(self, multi: _Multi) -> None:
        """Have the offsets of groups read again if the failed *multi* had more than new offsets for them.

        `GroupOffsets` counts znodes and details as written when they are sent.
        """
        for (_, group), operation in zip(multi.origins, multi.operations, strict=True):
            if isinstance(operation, Create) or is_detail(operation.path):
                group.znodes.offsets_known = False

    async def _look_into(self, fence: ShardFence, multi: _Multi) -> None:
        """Send *multi* again, without the commits of the shard of *fence* if it is lost."""
        try:
            error = ErrorCode.NONE if await fence.still_leads() else ErrorCode.NOT_COORDINATOR
        except ZooKeeperError:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        again = []
        for commit, group in multi.commits.items():
            if error is not ErrorCode.NONE and group.fence is fence:
                self._settle(commit, error)
            else:
                again.append(commit)
        self._again(again)

    def _refused(self, error: ZooKeeperError, multi: _Multi) -> None:
        self._undone(multi)
        commits = multi.commits
        if error.index is None:
            culprits = list(commits) if len(commits) == 1 else []
        else:
            culprit, group = multi.origins[error.index - len(multi.fences)]
            group.znodes.offsets_known = False
            culprits = [culprit]
        for commit in culprits:
            commit.refusals += 1
            if commit.refusals >= REFUSALS:
                log.error("offset of {key} cannot be written: {error}", key=commit.key, error=error)
                del commits[commit]
                self._settle(commit, ErrorCode.UNKNOWN_SERVER_ERROR)
        if not culprits:
            log.error(
                "ZooKeeper refused a multi of {n} commits: {error}", n=len(commits), error=error
            )
            for commit in commits:
                self._settle(commit, ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        self._again(commits)

    def _again(self, commits: Iterable[Commit]) -> None:
        for commit in commits:
            error, waiters = self._queue.retry(commit)
            self._finish(waiters, error)
        self._wake()

    def _again_when_known(self, group: GroupMetadata, commits: list[Commit]) -> None:
        def known(_: object) -> None:
            self._again(commits)

        def unknown(failure: Failure) -> None:
            moved = isinstance(failure.value, NotCoordinator | SessionExpired)
            error = ErrorCode.NOT_COORDINATOR if moved else ErrorCode.COORDINATOR_NOT_AVAILABLE
            for commit in commits:
                self._settle(commit, error)

        Deferred.fromCoroutine(group.znodes.load_offsets()).addCallbacks(known, unknown)

    def _settle(self, commit: Commit, error: ErrorCode) -> None:
        self._finish(self._queue.settle(commit, error), error)

    def _finish(self, waiters: list[Waiter], error: ErrorCode) -> None:
        for request, index in waiters:
            request.errors[index] = error
            request.left -= 1
            if not request.left:
                self._under_way.end(request.number)
                if not request.done.called:
                    request.done.callback(request.errors)
