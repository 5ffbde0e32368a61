"""Group commit of one log: what counts as this replica's copy was synced if flush.messages or flush.ms asks for it."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.config.log import LogConfig
from kbroker.log.pending_flush import PendingFlush

NEVER = 1 << 60


class GroupCommit(RuleBasedStateMachine):
    """A log with slow syncs; a power loss would leave what was synced."""

    @initialize(messages=st.sampled_from([1, 1, 3, 10]), ms=st.sampled_from([0, 3, NEVER, NEVER]))
    def begin(self, messages: int, ms: int) -> None:
        self.config = LogConfig(flush_messages=messages, flush_ms=ms)
        self.now_ms = 0
        self.required = 0
        """The end of the last append that had to be synced."""
        self.appended_at: list[tuple[int, int]] = []
        """The end of each record, and when it was appended."""
        self.pending = PendingFlush()
        self.end = self.recovery_point = 0
        self.syncing: tuple[int, int] | None = None
        """The end that the running sync covers, and the number of truncations when it began."""
        self.former = 0
        """Where the log ended before it began again, as far as it counted: a power loss brings it back."""
        self.truncations = 0
        self.waiting: list[tuple[int, int]] = []
        """Base and end offsets of appends that a sync has to cover before they count."""

    @property
    def counts_up_to(self) -> int:
        held_at = self.pending.held_at
        return self.end if held_at is None else held_at

    @rule(count=st.integers(1, 4))
    def append(self, count: int) -> None:
        base, self.end = self.end, self.end + count
        self.appended_at += [(end, self.now_ms) for end in range(base + 1, self.end + 1)]
        covered = max(self.recovery_point, self.required)
        first_ms = min(at for end, at in self.appended_at if end > covered)
        is_due = (
            self.end - covered >= self.config.flush_messages
            or self.now_ms - first_ms >= self.config.flush_ms
        )
        waits = self.pending.appended(base, self.end, self.recovery_point, self.config, self.now_ms)
        assert waits == is_due
        if waits:
            self.required = self.end
            self.waiting.append((base, self.end))
        self.sync()

    @rule(ms=st.integers(1, 4))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @precondition(lambda self: self.syncing is None)
    @rule()
    def the_timer_syncs(self) -> None:
        self.recovery_point = self.end
        self.waiting = []
        self.pending.synced(self.recovery_point)

    def sync(self) -> None:
        if self.syncing is None and self.pending.held_at is not None:
            self.syncing = (self.end, self.truncations)

    @precondition(lambda self: self.syncing is not None)
    @rule()
    def sync_ends(self) -> None:
        assert self.syncing is not None
        (up_to, truncations), self.syncing = self.syncing, None
        if truncations == self.truncations:
            self.recovery_point = max(self.recovery_point, up_to)
        self.waiting = [each for each in self.waiting if each[1] > self.recovery_point]
        self.pending.synced(self.recovery_point)
        self.sync()

    @rule(cut=st.integers(1, 6))
    def truncate(self, cut: int) -> None:
        self.end = max(self.end - cut, 0)
        self.truncations += 1
        self.recovery_point = min(self.recovery_point, self.end)
        self.former = min(self.former, self.end)
        self.waiting = [(base, min(end, self.end)) for base, end in self.waiting if base < self.end]
        self.required = min(self.required, self.end)
        self.appended_at = [each for each in self.appended_at if each[0] <= self.end]
        self.pending.truncated(self.end)

    @rule(further=st.integers(-4, 4))
    def truncate_fully(self, further: int) -> None:
        former_end = self.counts_up_to
        self.end = max(self.end + further, 0)
        self.truncations += 1
        self.recovery_point = 0
        self.former = min(former_end, self.end)
        self.waiting = []
        self.appended_at = []
        self.required = min(self.required, self.end)
        if self.pending.truncated_fully(former_end, self.end):
            self.required = self.end
            self.waiting.append((former_end, self.end))
        self.sync()

    @rule()
    def begin_a_role(self) -> None:
        if self.pending.opened(self.end, self.recovery_point, self.config):
            self.required = self.end
            self.waiting.append((self.recovery_point, self.end))
        self.sync()

    @invariant()
    def what_waits_does_not_count(self) -> None:
        unsynced = [end for _, end in self.waiting if end > self.recovery_point]
        if unsynced:
            assert self.counts_up_to < min(unsynced)

    @invariant()
    def no_more_than_flush_messages_count_without_a_sync(self) -> None:
        synced = max(self.recovery_point, self.former)
        assert self.counts_up_to - synced < self.config.flush_messages or (
            self.counts_up_to <= synced
        )

    @invariant()
    def what_is_held_is_being_synced(self) -> None:
        if self.pending.held_at is not None:
            assert self.syncing is not None
            assert self.pending.held_at <= self.pending.up_to <= self.end


TestGroupCommit = GroupCommit.TestCase
