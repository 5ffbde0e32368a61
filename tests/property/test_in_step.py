"""Logs that are read in step, in pieces and parts, against an alignment of all records at once."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from kclient.types import TopicPartition
from spark_jobs.align import Alignment, align
from spark_jobs.digest import WindowShape
from spark_jobs.engine import Modes
from spark_jobs.findings import FindingClass, RecordDigest
from spark_jobs.folding import Folding
from spark_jobs.in_step import Sizes
from tests.kit.audit_sequences import PARTITION, TOPIC, Sequences, aligned_in_step, drawn
from tests.kit.property_tests import examples

pytestmark = pytest.mark.slow

ALL = ("missing", "extra", "duplicate", "corrupt", "moved")
UNREPEATED = ("missing", "extra", "corrupt", "moved")
TP = TopicPartition(TOPIC, PARTITION)
MANY = 1 << 40


def whole(sequences: Sequences) -> Alignment:
    """Align all records at once."""
    known, unread = sequences.known, sequences.unread
    sides = (known[0] + unread[0], known[1] + unread[1]) if sequences.renumbered else ([], [])
    return align(*TP, *sequences.readable(), renumbered=sequences.renumbered, unread=sides)


def in_step(sequences: Sequences, rng: random.Random, sizes: Sizes, offsets: int) -> Alignment:
    """Read both logs in pieces, and align what differs."""
    source, target = sequences.reads(rng)
    alignment, unread = aligned_in_step(
        TP,
        {"east": source, "west": target},
        Modes(renumbered=sequences.renumbered, unread={TP: sequences.known}),
        offsets=offsets,
        folding=Folding(1 << 30, WindowShape(100, 0, 1000, 4)),
        sizes=sizes,
    )
    assert len(unread) == len(sequences.unread[0]) + len(sequences.unread[1])
    return alignment


def drawn_sizes(rng: random.Random, *, parts: bool) -> Sizes:
    """Draw how much is held at a time; without *parts* all records of a log may wait."""
    return Sizes(
        part=rng.randrange(1, 60) if parts else MANY,
        sample=1,
        step=rng.randrange(1, 10),
        shortest=rng.randrange(3, 9),
        reach=rng.randrange(90, 140) if parts else MANY,
    )


def contents_after(source: list[RecordDigest], alignment: Alignment) -> Counter[int | None]:
    """Return the contents of the target according to the source and the findings."""
    found: Counter[int | None] = Counter(each.content for each in source)
    for each in alignment.findings:
        if each.finding_class in (FindingClass.MISSING, FindingClass.CORRUPT):
            found[each.source_hash] -= 1
        if each.finding_class in (
            FindingClass.EXTRA,
            FindingClass.DUPLICATE,
            FindingClass.CORRUPT,
        ):
            found[each.target_hash] += 1
    return found


def check_accounts(sequences: Sequences, alignment: Alignment) -> None:
    """The findings explain the target's contents, and each offset is counted once."""
    source, target = sequences.readable()
    if not sequences.deleted and not (sequences.renumbered and any(sequences.unread)):
        after = contents_after(source, alignment)
        assert all(count >= 0 for count in after.values())
        assert +after == Counter(each.content for each in target)
    if not sequences.renumbered:
        owned = sum(each.owns for each in alignment.findings)
        offsets = {each.offset for side in (source, target) for each in side}
        assert alignment.verified + alignment.shifted + owned == len(offsets)


@pytest.mark.parametrize("seed", range(examples(600)))
def test_the_findings_are_those_of_all_records_at_once(seed: int) -> None:
    rng = random.Random(f"in step {seed}")
    sequences = drawn(rng, faults=UNREPEATED, unread=rng.random() < 0.5)
    offsets = rng.choice([1, MANY])
    found = in_step(sequences, rng, drawn_sizes(rng, parts=False), offsets)
    want = whole(sequences)
    assert (found.proven or (0, 0))[1] <= (want.proven or (0, 0))[1]
    assert replace(found, proven=None) == replace(want, proven=None)


@pytest.mark.parametrize("contents", ["unique", "bursts", "few"])
@pytest.mark.parametrize("seed", range(examples(200)))
def test_parts_find_a_difference_if_there_is_one_and_count_each_offset_once(
    seed: int, contents: str
) -> None:
    rng = random.Random(f"in parts {seed}")
    unread = contents == "unique" and rng.random() < 0.5
    sequences = drawn(rng, faults=ALL, contents=contents, unread=unread)
    found = in_step(sequences, rng, drawn_sizes(rng, parts=rng.random() < 0.8), MANY)
    assert bool(found.findings) == bool(whole(sequences).findings)
    check_accounts(sequences, found)


@pytest.mark.parametrize("seed", range(examples(200)))
def test_what_was_not_read_of_logs_without_a_difference_is_no_finding(seed: int) -> None:
    rng = random.Random(f"unread {seed}")
    contents = rng.choice(["unique", "bursts"])
    sequences = drawn(rng, faults=(), contents=contents, unread=True)
    sizes = drawn_sizes(rng, parts=rng.random() < 0.8)
    if contents == "bursts":
        sequences.unread = [], []  # Which records of a burst were not read cannot be known.
        if len(sequences.source) <= sizes.shortest:
            return
    if not sequences.renumbered:
        sequences.target = list(sequences.source)
    found = in_step(sequences, rng, sizes, MANY)
    assert found.findings == []
    check_accounts(sequences, found)
