"""One seed: draws a case and its storage, audits it, and compares the result with the judge and the seeded faults."""

from __future__ import annotations

import itertools
import random
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from kclient.types import TopicPartition
from spark_jobs.comparison import Options
from spark_jobs.cut import LogRange
from spark_jobs.digest import WindowShape
from spark_jobs.engine import Engine
from spark_jobs.gap_ledger import LedgerRead
from spark_jobs.in_step import Sizes
from spark_jobs.reconcile import Reconciliation, TimeBuckets, reconcile
from spark_jobs.snapshot import ClusterSnapshot
from spark_jobs.verdict import ExitCode, Verdict
from tests.audit_search.cases import KINDS, change, drawn, may_meet
from tests.audit_search.judge import Judgement, judge, problems
from tests.audit_search.kinds import SearchCase
from tests.audit_search.renumbered_judge import false_distances, judge_renumbered
from tests.kit.audit_batches import BatchEngine, Layout
from tests.kit.audit_faults import TOPIC, Expected
from tests.kit.audit_logs import Logs, classes, snapshot

PAIRS = [pair for pair in itertools.combinations(KINDS, 2) if may_meet(*pair)]


class Storage(NamedTuple):
    """How a case is stored and read: none of it may change the result."""

    window: int
    layouts: tuple[Layout, Layout]
    slice_offsets: int
    sizes: Sizes | None
    keep: int = 1 << 30
    """Findings of a class that are single; runs have no place that could be compared with the seeded faults."""
    keep_compacted: int = 1 << 30
    """The same of what compaction may explain."""


def storage(rng: random.Random) -> Storage:
    """Draw windows, batches, codecs, tasks, and whether and in which pieces logs are read in step."""
    layouts = [
        Layout(
            rng.randrange(CODECS),
            rng.choice([2, 8, 30, 500]),
            rng.getrandbits(30),
            leaves_empty=rng.random() < 0.5,
            delete_horizon=rng.random() < 0.3,
        )
        for _ in range(2)
    ]
    return Storage(
        rng.choice([7, 10, 20, 33, 50, 1000]),
        (layouts[0], layouts[1]),
        rng.choice([11, 40, 1 << 30]),
        rng.choice(
            [
                None,
                Sizes(
                    part=1 << 30,
                    sample=rng.randrange(1, 5),
                    step=rng.randrange(1, 30),
                    shortest=rng.randrange(3, 9),
                    reach=1 << 30,
                ),
            ]
        ),
    )


def options(case: SearchCase, window: int) -> Options:
    """Return the options that an operator would audit *case* with."""
    ledger = LedgerRead(("ledger",), tuple(case.ledger)) if case.ledger else None
    return Options(
        window,
        case.complete,
        renumbered=case.renumbered,
        accepted=tuple(case.accepted),
        ledger=ledger,
    )


def snapshots(case: SearchCase) -> tuple[ClusterSnapshot, ClusterSnapshot]:
    """Return both clusters before the run."""
    found = []
    for name, logs in (("source", case.source), ("target", case.target)):
        cluster = snapshot(
            name, logs, frozenset({TOPIC}) if name in case.compacted_at else frozenset()
        )
        unknown = {tp: "no leader" for side, tp in case.unknown if side == name}
        known = {tp: each for tp, each in cluster.ranges.items() if tp not in unknown}
        if (
            case.renumbered
        ):  # It is read with read_committed: the logs end at their last stable offsets.
            known = {tp: LogRange(each.start, each.stable_end) for tp, each in known.items()}
        committed = case.renumbered
        found.append(replace(cluster, ranges=known, unreadable=unknown, read_committed=committed))
    return found[0], found[1]


def audited(case: SearchCase, stored: Storage) -> Reconciliation:
    """Audit *case*; its changes happen during the run, to copies of its logs."""
    logs = tuple(
        {tp: log.copy() for tp, log in side.items()} for side in (case.source, case.target)
    )
    source, target = logs
    if case.changes:
        case.after = [replace(case, source=source, target=target, changes=[])]
    engine: Engine = BatchEngine(
        source,
        target,
        WindowShape(stored.window, 0, 20_000, 60),
        stored.layouts,
        slice_offsets=stored.slice_offsets,
        sizes=stored.sizes,
        keep=stored.keep,
        keep_compacted=stored.keep_compacted,
        meanwhile=_changes(case, (source, target)) if case.changes else None,
    )
    return reconcile(
        engine, *snapshots(case), options(case, stored.window), buckets=TimeBuckets(0, 20_000)
    )


def _changes(case: SearchCase, logs: tuple[Logs, Logs]) -> Callable[[int], None]:
    def meanwhile(read: int) -> None:
        for each in case.changes:
            if each.before_read == read:
                change(case, logs, each)

    return meanwhile


CODECS = 5


def with_codecs(stored: Storage, number: int) -> Storage:
    """Return *stored* with the codecs of *number*: 25 numbers in a row have every codec beside every other."""
    source, target = stored.layouts
    here, there = divmod(number % CODECS**2, CODECS)
    return stored._replace(layouts=(source._replace(codec=here), target._replace(codec=there)))


def disagreements(seed: int, kinds: Sequence[str], number: int) -> list[str]:
    """Return where the audit of a seed's case and the judge, or the seeded faults, disagree; *number*: the codecs."""
    case = drawn(seed, *kinds)
    stored = with_codecs(storage(random.Random(f"storage {seed} {kinds}")), number)
    return compared(case, audited(case, stored))


def compared(case: SearchCase, run: Reconciliation) -> list[str]:
    """Return where *run* and what is known of *case* disagree."""
    if case.renumbered:
        return list(_compared_renumbered(case, run))
    compare = _compared_while_changing if case.changes else _compared
    return list(compare(case, judge(case), run))


def _compared_renumbered(case: SearchCase, run: Reconciliation) -> Iterator[str]:
    found, expected = _found(run), Counter(case.findings)
    if found != expected:
        yield f"invented {dict(found - expected)}, overlooked {dict(expected - found)}"
    judged = judge_renumbered(case)
    yield from false_distances(case, list(run.findings))
    if run.outcome.verdict is not judged.verdict:
        yield f"verdict {run.outcome.verdict.value}, not {judged.verdict.value}"
    codes = set(run.outcome.applicable) - {ExitCode.CONSISTENT}
    if codes != judged.codes:
        yield f"exit codes {sorted(codes)}, not {sorted(judged.codes)}"
    ours, theirs = _class_counts(run), judged.total
    if ours != +theirs:
        yield f"classes {dict(ours)}, not {dict(theirs)}"


class Tally(NamedTuple):
    """How many findings the faults of some cases seed, how many an audit made, and how many of both are the same."""

    seeded: int = 0
    made: int = 0
    same: int = 0

    def plus(self, other: Tally) -> Tally:
        """Return the sum."""
        return Tally(*map(sum, zip(self, other, strict=True)))

    def to_text(self) -> str:
        """Return precision and recall with their denominators."""
        if not self.seeded or not self.made:
            return f"{self.seeded} findings seeded, {self.made} made"
        return (
            f"precision {self.same / self.made} ({self.same} of {self.made} findings), "
            f"recall {self.same / self.seeded} ({self.same} of {self.seeded} seeded)"
        )


def tally(case: SearchCase, run: Reconciliation) -> Tally | None:
    """Return the counts of *run*; None if the findings depend on the moment of a change, or on a cleaner."""
    if case.changes or (case.moved_end and case.compacted_at):
        return None
    found = _found(run)
    expected = Counter(case.findings) if case.renumbered else _expected(case, judge(case))
    return Tally(expected.total(), found.total(), (found & expected).total())


class Outcome(NamedTuple):
    """What one seed of some kinds came to."""

    seed: int
    kinds: tuple[str, ...]
    wrong: list[str]
    """The disagreements; an exception is one."""
    tally: Tally | None
    """None: not counted, see `tally`; the judge alone decides."""


def outcome(task: tuple[int, tuple[str, ...]]) -> Outcome:
    """Return what comes of one seed."""
    seed, kinds = task
    try:
        case = drawn(seed, *kinds)
        run = audited(case, storage(random.Random(f"storage {seed} {kinds}")))
        return Outcome(seed, kinds, compared(case, run), tally(case, run))
    except Exception:
        return Outcome(seed, kinds, [traceback.format_exc()], None)


def _found(run: Reconciliation) -> Counter[Expected]:
    return Counter(
        Expected(f.finding_class.value, f.partition, f.source_offset, f.target_offset, f.records)
        for f in run.findings
    )


def _expected(case: SearchCase, judged: Judgement) -> Counter[Expected]:
    """Return the seeded findings that compaction does not explain; a gap of a compacted topic has aged out."""
    explained = {(tp.partition, at_source, offset) for tp, at_source, offset in judged.explained}
    return Counter(
        each
        for seeded in case.findings
        for each in (_halves(seeded, case) if seeded.finding_class == "misrouted" else [seeded])
        if (each.partition, True, each.source_offset) not in explained
        and (
            each.finding_class == "misrouted"
            or (each.partition, False, each.target_offset) not in explained
        )
        and not (each.finding_class == "gap" and each.partition < 8 and case.compacted_at)
    )


def _halves(misrouted: Expected, case: SearchCase) -> list[Expected]:
    """Return *misrouted*, or what its two halves are if one of them is explained: each is found on its own."""
    explained = judge(case).explained
    here = TopicPartition(TOPIC, misrouted.partition)
    lost_at, extra_at = misrouted.source_offset, misrouted.target_offset
    assert lost_at is not None
    assert extra_at is not None
    record = case.source[here].records[lost_at]
    there = next(
        tp
        for tp, log in case.target.items()
        if tp.topic == TOPIC and tp != here and log.records.get(extra_at) == record
    )
    if (here, True, lost_at) in explained:
        return [Expected("extra", there.partition, None, extra_at)]
    if (there, False, extra_at) in explained:
        return [Expected("missing", here.partition, lost_at, None)]
    return [misrouted]


def _compared(case: SearchCase, judged: Judgement, run: Reconciliation) -> Iterator[str]:
    found, expected = _found(run), _expected(case, judged)
    # Records that moved behind a loss that compaction explains are shifted.
    exact = not (case.moved_end and case.compacted_at)
    if exact and found != expected:
        yield f"invented {dict(found - expected)}, overlooked {dict(expected - found)}"
    yield from problems(case, judged, list(run.findings))
    if run.outcome.verdict is not judged.verdict:
        yield f"verdict {run.outcome.verdict.value}, not {judged.verdict.value}"
    ours, theirs = _class_counts(run), judged.total
    if case.moved_end:
        yield from _sums(ours, theirs)
        return
    codes = set(run.outcome.applicable) - {ExitCode.CONSISTENT}
    if codes != judged.codes:
        yield f"exit codes {sorted(codes)}, not {sorted(judged.codes)}"
    if ours != +theirs:
        yield f"classes {dict(ours)}, not {dict(theirs)}"


def _is_left(found: Expected, case: SearchCase) -> bool:
    """Return whether *found* is what a change may leave of a seeded one: part of a run, or one of two records."""
    for seeded in case.findings:
        if seeded.partition != found.partition:
            continue
        classes = seeded.finding_class, found.finding_class
        if classes in _LEFT and found[2:4] in (
            seeded[2:4],
            (None, seeded.target_offset),
            (seeded.source_offset, None),
            (seeded.target_offset, seeded.target_offset),
        ):
            return True
        is_copy = classes == ("duplicate", "reordered")
        if is_copy and seeded.target_offset == found.target_offset:
            return True
        is_run = classes in (("gap", "gap"), ("visibility", "visibility"))
        within = (seeded.source_offset or 0) <= (found.source_offset or 0)
        if is_run and within and found.records < seeded.records:
            return True
    return False


_LEFT = {
    ("duplicate", "extra"),
    ("duplicate", "corrupt"),
    ("corrupt", "extra"),
    ("corrupt", "missing"),
}
"""Classes of a seeded finding, and of what is found once the other record of it is gone."""


def _sums(ours: Counter[str], theirs: Counter[str]) -> Iterator[str]:
    if ours.total() != theirs.total():
        yield f"{ours.total()} offsets, not {theirs.total()}: {dict(ours)}, {dict(theirs)}"
    if ours["verified"] > theirs["verified"]:
        yield f"{ours['verified']} offsets are verified, only {theirs['verified']} are equal"


def _class_counts(run: Reconciliation) -> Counter[str]:
    """Return the classes of offsets as `Judgement` names them."""
    counts: Counter[str] = Counter()
    names = ("verified", "empty", "explained", "aged out", "not read", "lagging")
    for name, count in classes(run).items():
        kept = (*names, "truncated", "gap", "undecodable")
        counts[name if name in kept else "different"] += count
    return counts


def _compared_while_changing(
    case: SearchCase, judged: Judgement, run: Reconciliation
) -> Iterator[str]:
    """Yield what no moment of the change excuses: more findings, more proof, other offsets."""
    found, expected = _found(run), _expected(case, judged)
    kinds = {each.kind for each in case.changes}
    changed = {each.tp for each in case.changes}
    moved = case.moved_end or any(
        each.finding_class in ("reordered", "misrouted", "shifted") for each in case.findings
    )
    # Of a record that moved, one place may be gone: then the other one is what is left to find.
    invented = found - Counter(case.findings)
    if kinds - {"growth", "creation"}:
        invented = Counter(
            {
                each: count
                for each, count in invented.items()
                if TopicPartition(TOPIC, each.partition) not in changed or not _is_left(each, case)
            }
        )
    if invented and not (moved and kinds - {"growth", "creation"}):
        yield f"invented {dict(invented)}"
    overlooked = expected - found
    gone = {each.tp for each in case.changes if each.kind not in ("growth", "creation")}
    lost = {each: n for each, n in overlooked.items() if TopicPartition(TOPIC, each[1]) not in gone}
    if lost and not {"misrouted"} & {each[0] for each in lost}:
        yield f"overlooked {lost}"
    ours, theirs = _class_counts(run), judged.total
    yield from _sums(ours, theirs)
    exact = found == expected and (case.moved_end or ours == +theirs)
    if kinds <= {"growth", "creation"} and not exact:
        yield f"a change above the cut matters: {dict(ours)}, not {dict(theirs)}"
    equal = ours["verified"] + ours["empty"] + ours["explained"] == ours.total()
    # A cleaner may remove the difference before it is read.
    verdicts = {judged.verdict, *(judge(each).verdict for each in case.after)}
    if run.outcome.verdict is Verdict.CONSISTENT and not (equal and Verdict.CONSISTENT in verdicts):
        yield f"CONSISTENT, not {judged.verdict.value}: {dict(ours)}"
