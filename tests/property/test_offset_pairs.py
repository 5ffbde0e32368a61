"""Translated offsets against a brute-force look at both logs: never behind a record that was not consumed."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from mirrormaker.offset_pairs import MOST, OffsetPair
from mirrormaker.position import Position, read_position
from tests.kit.property_tests import examples

batches = st.lists(st.booleans(), max_size=4)
"""The source's offsets of one batch: whether each has a visible record."""
runs = st.lists(
    st.tuples(
        st.lists(batches, max_size=3),
        st.integers(0, 3),  # offsets of aborted records at the target before these
        st.integers(0, 2),  # and of markers behind them
    ),
    max_size=60,
)


FIRST = Position(0, target_topic_id="id")


@dataclass
class Logs:
    """Both logs of a partition, and the position after each transaction."""

    source_end: int = 0
    target_end: int = 0
    copies: dict[int, int] = field(default_factory=dict)
    """By source offset, the target offset of each visible record."""
    begins: list[int] = field(default_factory=lambda: [0])
    """The source offsets that transactions, and batches with visible records, begin at."""
    position: Position = FIRST

    def copy(self, batches: list[list[bool]], aborted: int, markers: int) -> None:
        """Copy source batches in one transaction."""
        self.target_end += aborted
        end, appended = self.position.target_end, []
        for offsets in batches:
            if any(offsets):
                self.begins.append(self.source_end)
                appended.append(OffsetPair(self.source_end, self.target_end))
            for is_visible in offsets:
                if is_visible:
                    self.copies[self.source_end] = self.target_end
                    self.target_end += 1
                    end = self.target_end
                self.source_end += 1
        self.target_end += markers
        pairs = self.position.pairs_for(self.source_end, "", "id")
        self.position = Position(self.source_end, target_topic_id="id", pairs=pairs).appended(
            end, appended[::-1]
        )
        self.begins.append(self.source_end)

    def first_unread(self, offset: int) -> int:
        """Return the target offset of the first record that a group at this source offset has not read."""
        return min((at for source, at in self.copies.items() if source >= offset), default=1 << 60)


@given(runs)
@settings(max_examples=examples(60))
def test_a_translated_offset_is_never_ahead_and_repeats_no_more_than_it_states(parts):
    logs = Logs()
    for part in parts:
        logs.copy(*part)
    position = read_position(logs.position.committed())
    assert position == logs.position
    assert len(position.pairs) <= MOST
    assert len(position.committed().metadata) < 1000
    before = -1
    for offset in range(logs.source_end + 3):
        found = position.translate(offset)
        assert found is not None
        assert found.offset <= logs.first_unread(offset)
        again = [
            source for source, at in logs.copies.items() if found.offset <= at and source < offset
        ]
        assert all(source >= offset - found.again for source in again)
        assert found.ahead == max(0, offset - logs.source_end)
        if found.is_exact:
            assert not again
        assert before <= found.offset
        before = found.offset
        _check_distance(logs, offset, found.again)


def _check_distance(logs: Logs, offset: int, again: int) -> None:
    """What is read again is a part of one batch, or in proportion to the distance from the position."""
    begin = max(each for each in logs.begins if each <= offset)
    if offset < logs.source_end and again > offset - begin:
        assert again <= 16 * (logs.source_end - offset)


@given(runs, st.integers(0, 5))
@settings(max_examples=examples(20))
def test_pairs_of_an_earlier_topic_are_forgotten(parts, offset):
    logs = Logs()
    for part in parts:
        logs.copy(*part)
    for ids in (("", "other"), ("other", "id")):
        assert logs.position.pairs_for(logs.source_end + 1, *ids) == ()
    by_hand = Position(logs.source_end + offset)
    assert by_hand.translate(offset) is None
    assert by_hand.pairs_for(logs.source_end + 10, "", "") == ()
