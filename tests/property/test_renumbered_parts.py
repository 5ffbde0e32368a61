"""Renumbered targets with faults anywhere, drawn: one alignment against parts of any size with runs of findings.

How a partition is divided may change what is opposite of what. It may change neither the verdict nor the exit code. The
records of the findings are the same while no fault is longer than a part, and what is true of a mirror without faults
is found in every way.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from kclient.types import TopicPartition
from spark_jobs.accounting import AcceptedGap
from spark_jobs.comparison import Options
from spark_jobs.digest import WindowShape
from spark_jobs.engine import Engine
from spark_jobs.findings import FindingClass
from spark_jobs.in_step import Sizes
from spark_jobs.reconcile import Reconciliation, TimeBuckets, reconcile
from spark_jobs.verdict import ExitCode, Limits, Verdict
from tests.kit.audit_batches import BatchEngine, Layout
from tests.kit.audit_logs import Log, MemoryEngine, Rec, snapshot
from tests.kit.property_tests import examples

pytestmark = pytest.mark.slow

TP = TopicPartition("t", 0)
MARKER = Rec(b"", b"", 1, control=True)
WINDOW = 50

RECORDS: dict[str, Callable[[int], Rec]] = {
    "keyed": lambda n: Rec(b"k%d" % n, b"v%d" % n, 1_000 + n),
    "few keys": lambda n: Rec(b"k%d" % (n % 7), b"v%d" % n, 1_000 + n),
    "at once": lambda n: Rec(None, b"v%d" % n, 5_000),
    "one device": lambda n: Rec(b"device", b"v%d" % n, 5_000),
    "one value": lambda n: Rec(None, b"beat", 1_000 + n),
    "bursts": lambda n: Rec(None, b"beat", 1_000 + n // 4),
    "long bursts": lambda n: Rec(None, b"beat", 1_000 + n // 20),
    "pairs": lambda n: Rec(b"k%d" % (n // 2), b"v%d" % (n // 2), 1_000 + n // 2),
    "keyed bursts": lambda n: Rec(b"k%d" % (n // 4 % 3), b"v%d" % (n // 4), 1_000 + n // 4),
    "long keyed bursts": lambda n: Rec(b"k%d" % (n // 20 % 2), b"v%d" % (n // 20), 1_000 + n // 20),
}
"""What the records of a topic have in common."""

KEYED_BURSTS = ("keyed bursts", "long keyed bursts")
BURSTS = ("bursts", "long bursts", "pairs", *KEYED_BURSTS)
CHANGED = 9_000
"""The first timestamp of damaged records without another value."""
ONE_VALUE = ("one value", "bursts", "long bursts")


@dataclass
class Drawn:
    """Two logs, and what happened to them."""

    kind: str
    source: Log = field(default_factory=Log)
    target: Log = field(default_factory=Log)
    behind: int = 0
    """Records that were not copied yet, as the logs show it: a repeated record of a burst may be the next one."""
    again: int = 0
    """Copies beside those."""
    faults: list[tuple[str, int]] = field(default_factory=list)
    """Their names and lengths."""
    repeated: int = 0
    accepted: list[tuple[int, int]] = field(default_factory=list)
    compacted: tuple[bool, bool] = (False, False)
    complete: bool = False

    @property
    def is_healthy(self) -> bool:
        """Whether the mirror copied everything in order, and maybe some of it twice."""
        return not any(name in ("damage", "loss", "strangers") for name, _ in self.faults)


class Seen(NamedTuple):
    """What an audit came to."""

    verdict: Verdict
    exit_code: ExitCode
    records: dict[str, int]
    """Of the findings, by class."""
    lagging: int
    verified: int
    explained: int


def drawn(rng: random.Random, *, faults: bool) -> Drawn:
    """Draw two logs; without *faults* the mirror has copied all records in order, and repeated some."""
    made = Drawn(rng.choice(list(RECORDS)), complete=rng.random() < 0.2)
    new = RECORDS[made.kind]
    markers = rng.choice([0.0, 0.0, 0.2])
    for number in range(rng.choice([30, 120, 300, 500])):
        made.source.append(new(number))
        if rng.random() < markers:
            made.source.append(MARKER)
    written = [(at, each) for at, each in sorted(made.source.records.items()) if not each.control]
    copied = rng.choice([len(written), *[rng.randrange(len(written) + 1) for _ in range(3)], 5])
    copied = min(copied, len(written))
    target = [each for _, each in written[:copied]]
    names = ("damage", "loss", "strangers", "repeat") if faults else ("repeat",)
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        if target:
            fault(rng, made, target, rng.choice(names), written)
    received = following([each for _, each in written], target)
    made.behind, made.again = len(written) - received, len(target) - received
    ends = rng.choice([0.0, 0.1])
    for each in target:
        made.target.append(each)
        if rng.random() < ends:
            made.target.append(MARKER)
    if faults and rng.random() < 0.2:
        low = rng.randrange(made.source.end)
        made.accepted.append((low, low + rng.choice([1, 10, 100])))
    compact(rng, made)
    return made


def compact(rng: random.Random, made: Drawn) -> None:
    """Let one log or both be compacted, and maybe let cleaners remove records."""
    if made.kind == "few keys" and rng.random() < 0.7:
        made.compacted = rng.choice([(False, True), (True, False), (True, True)])
        for log, cleans in zip((made.source, made.target), made.compacted, strict=True):
            if cleans:
                for offset in log.superseded(log.end // 2):
                    del log.records[offset]
    elif made.kind in KEYED_BURSTS and rng.random() < 0.7:
        made.compacted = True, True  # No cleaner has run yet.


def following(written: list[Rec], target: list[Rec]) -> int:
    """Return how many of the first records *written* are in *target*, in order."""
    count = 0
    for each in target:
        count += count < len(written) and written[count] == each
    return count


def fault(
    rng: random.Random, made: Drawn, target: list[Rec], name: str, written: list[tuple[int, Rec]]
) -> None:
    """Change *target*: at its end, or anywhere."""
    size = min(rng.choice([1, 3, 12] if name == "repeat" else [1, 3, 12, 25, 90]), len(target))
    at = len(target) - size if rng.random() < 0.4 else rng.randrange(len(target) - size + 1)
    made.faults.append((name, size))
    match name:
        case "damage":
            part = "timestamp" if made.kind in ONE_VALUE else "value"
            for n in range(at, at + size):
                changed = CHANGED + n if part == "timestamp" else b"changed %d" % n
                target[n] = target[n]._replace(**{part: changed})
        case "loss":
            if rng.random() < 0.3:
                offsets = [each for each, record in written if record in target[at : at + size]]
                if offsets:
                    made.accepted.append((min(offsets), max(offsets) + 1))
            del target[at : at + size]
        case "strangers":
            target[at:at] = [
                Rec(b"other", b"%d %d" % (len(made.faults), n), 7) for n in range(size)
            ]
        case "repeat":
            made.repeated += size
            target[at + size : at + size] = target[at : at + size]


def audit(made: Drawn, engine: Engine, limits: Limits) -> Seen:
    source, target = (
        snapshot(name, {TP: log}, frozenset(["t"] if cleans else []))
        for name, log, cleans in zip(
            ("source", "target"), (made.source, made.target), made.compacted, strict=True
        )
    )
    options = Options(
        WINDOW,
        made.complete,
        renumbered=True,
        limits=limits,
        accepted=tuple(AcceptedGap("t", 0, *each, "a cause") for each in made.accepted),
    )
    return seen(reconcile(engine, source, target, options, buckets=TimeBuckets(0, 1_000)))


def seen(run: Reconciliation) -> Seen:
    records: Counter[str] = Counter()
    for each in run.findings:
        records[each.finding_class.value] += each.records
    counts = run.counts
    return Seen(
        run.outcome.verdict,
        run.outcome.exit_code,
        dict(records),
        counts.lagging,
        counts.verified,
        counts.explained,
    )


def in_parts(rng: random.Random, made: Drawn, sizes: Sizes, keep: int) -> Engine:
    return BatchEngine(
        {TP: made.source},
        {TP: made.target},
        WindowShape(WINDOW, 0, 1_000, 4),
        (Layout(records=rng.choice([1, 8, 30])), Layout(records=rng.choice([1, 8, 30]))),
        keep=keep,
        keep_compacted=keep,
        sizes=sizes,
    )


def drawn_limits(rng: random.Random) -> Limits:
    """Draw what fails; copies alone need not."""
    if rng.random() < 0.5:
        return Limits()
    return Limits(max_lag=1_000, fail_on=frozenset(FindingClass) - {FindingClass.DUPLICATE})


SIZES = [
    Sizes(part=20, sample=4, step=10, shortest=5, reach=200),
    Sizes(part=50, sample=8, step=20, shortest=8, reach=200),
    Sizes(part=10, sample=4, step=5, shortest=3, reach=200),
]
"""A fifth of the reach is more than a mirror repeats here: so it is by far with the sizes of Spark's tasks."""


def data(log: Log) -> int:
    return sum(not each.control for each in log.records.values())


def of_source(found: Seen) -> int:
    """Return how many records of the source have a class."""
    classes = ("missing", "corrupt", "reordered", "truncated")
    return found.verified + found.lagging + sum(found.records.get(each, 0) for each in classes)


def of_target(found: Seen) -> int:
    """Return how many records of the target have a class."""
    classes = ("extra", "corrupt", "reordered", "duplicate")
    return found.verified + sum(found.records.get(each, 0) for each in classes)


def of_faults(found: Seen, made: Drawn) -> dict[str, int]:
    """Return the records of the classes that do not depend on which records of a burst are opposite each other.

    Which of them was lost, nothing shows. So compaction may explain a MISSING one here, and not there.
    """
    classes = {"corrupt", "extra", "reordered"} | (set() if any(made.compacted) else {"missing"})
    return {each: count for each, count in found.records.items() if each in classes}


def has_damage(made: Drawn) -> bool:
    """Return whether the target has a damaged record, and no log was cleaned, which may explain one."""
    return made.kind != "few keys" and any(
        each.timestamp >= CHANGED or (each.value or b"").startswith(b"changed")
        for each in made.target.records.values()
    )


@pytest.mark.parametrize("seed", range(examples(100)))
def test_a_mirror_without_faults_has_none_in_parts_of_any_size(seed: int) -> None:
    rng = random.Random(f"healthy renumbered {seed}")
    made, limits = drawn(rng, faults=False), drawn_limits(rng)
    if made.repeated and any(made.compacted):
        return  # Which copy of a repeated record is left is the cleaner's choice.
    engines = [in_parts(rng, made, sizes, 1_000) for sizes in (Sizes(), *SIZES)]
    whole = audit(made, MemoryEngine({TP: made.source}, {TP: made.target}, WINDOW), limits)
    if not any(made.compacted):
        assert whole.records.get("duplicate", 0) == made.again
        assert set(whole.records) <= {"duplicate", "truncated"}
        if data(made.target):  # Of an empty target the source's markers lag, too.
            assert whole.lagging + whole.records.get("truncated", 0) == made.behind
    for engine in engines:
        found = audit(made, engine, limits)
        assert found[:2] == whole[:2]
        if made.kind in BURSTS:  # A repeated record may be the next one of its burst.
            assert set(found.records) <= {"duplicate", "truncated"}
            assert (of_source(found), of_target(found)) == (of_source(whole), of_target(whole))
        else:
            assert found == whole


@pytest.mark.parametrize("seed", range(examples(100)))
def test_parts_of_any_size_change_neither_the_verdict_nor_the_exit_code(seed: int) -> None:
    rng = random.Random(f"renumbered with faults {seed}")
    made, limits = drawn(rng, faults=True), drawn_limits(rng)
    if made.repeated and any(made.compacted):
        return
    # A copy in a run is EXTRA.
    keep = 1_000 if made.repeated else rng.choice([0, 5, 1_000])
    whole = audit(made, MemoryEngine({TP: made.source}, {TP: made.target}, WINDOW), limits)
    found = audit(made, in_parts(rng, made, Sizes(), keep), limits)
    if made.kind in BURSTS:
        assert of_faults(found, made) == of_faults(whole, made), keep
    else:
        assert found == whole, keep
    assert found[:2] == whole[:2], keep
    assert whole.exit_code is not ExitCode.CONSISTENT or not has_damage(made)
    for sizes in SIZES:
        found = audit(made, in_parts(rng, made, sizes, keep), limits)
        assert found[:2] == whole[:2], (sizes, keep)
        if whole.verified and not any(made.compacted):
            assert of_source(found) + found.explained == data(made.source), (sizes, keep)
            assert of_target(found) == data(made.target), (sizes, keep)


@pytest.mark.parametrize("seed", range(examples(150)))
def test_damage_in_bursts_is_corrupt_in_parts_of_any_size(seed: int) -> None:
    """Also if compaction would explain a record that is lost and one that the source does not have."""
    rng = random.Random(f"damage in bursts {seed}")
    longest = rng.choice([2, 4, 6, 20, 40])
    written = [
        Rec(b"k%d" % (burst % 3), b"v%d" % burst, 1_000 + burst)
        for burst in range(rng.randrange(1, 6))
        for _ in range(rng.randrange(1, longest + 1))
    ]
    copies = list(written)
    count = 0
    for _ in range(rng.choice([1, 1, 2])):
        at = rng.randrange(len(copies))
        for number in range(at, min(at + rng.randrange(1, 4), len(copies))):
            count += copies[number] == written[number]
            copies[number] = copies[number]._replace(value=b"changed %d" % number)
    lagging = 0
    if rng.random() < 0.7:
        ends = [Rec(b"k%d" % n, b"end", 3_000) for n in range(rng.choice([3, 20]))]
        written, copies = [*written, *ends], [*copies, *ends]
    else:
        while lagging < longest // 2 and copies[-2:-1] and copies[-1] == written[len(copies) - 1]:
            copies.pop()
            lagging += 1
    if not any(one == other for one, other in zip(written, copies, strict=False)):
        return  # Nothing shows what the copies are copies of.
    for compacted in ((False, False), (True, True)):
        made = Drawn("bursts", compacted=compacted)
        for each in written:
            made.source.append(each)
        for each in [*[MARKER] * rng.choice([0, 0, 1, 3]), *copies]:
            made.target.append(each)
        whole = audit(made, MemoryEngine({TP: made.source}, {TP: made.target}, WINDOW), Limits())
        assert (whole.exit_code, whole.records) == (ExitCode.DIVERGED, {"corrupt": count})
        assert whole.lagging == lagging
        for sizes in (Sizes(), *SIZES):
            found = audit(made, in_parts(rng, made, sizes, 1_000), Limits())
            assert found[:5] == whole[:5], sizes
