"""The attribution of a finding never contradicts what was really changed: against brute force over the changes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kclient.mirror_evidence import MASK, Extent
from kclient.types import TopicPartition
from spark_jobs.attribution import MOST_DIFFERING, Batch, Reason, Where, judge
from tests.kit.audit_evidence import audited, evidence_of
from tests.kit.audit_logs import Log, Rec, hashed, log_of
from tests.kit.property_tests import examples

TP = TopicPartition("t", 0)
CHANGES = st.sampled_from(["keep"] * 6 + ["change", "lose"])
STEPS = st.lists(st.tuples(st.integers(1, 4), CHANGES, CHANGES), min_size=1, max_size=20)


def changed(log: list[Batch], changes: list[str], side: str) -> list[Batch]:
    """Return *log* with a change of each batch, and another batch for each that changed."""
    return [
        each if change == "keep" else each._replace(hash=hashed((side, each)))
        for each, change in zip(log, changes, strict=True)
        if change != "lose"
    ]


@given(STEPS)
def test_a_batch_is_of_the_log_that_changed_it(steps: list[tuple[int, str, str]]) -> None:
    original: list[Batch] = []
    end = 0
    for size, _, _ in steps:
        original.append(Batch(end, end + size, hashed((size, end))))
        end += size
    source = changed(original, [each[1] for each in steps], "source")
    target = changed(original, [each[2] for each in steps], "target")
    total = sum(each.hash for each in original) & MASK
    found = judge(Extent(0, end, len(original), total, total), source, target)
    differing = set(source) ^ set(target)
    if isinstance(found, Reason):
        assert found is Reason.MANY
        assert len(differing) > MOST_DIFFERING
        return
    assert {(each.low, each.high) for each in found} == {each[:2] for each in differing}
    truth = {
        batch[:2]: {
            name for name, log in (("source", source), ("target", target)) if batch not in log
        }
        for batch in original
    }
    # A batch that neither log has left is in no sum: then no batch of the extent is attributed.
    lost = any(of_batch == {"source", "target"} for of_batch in truth.values())
    for each in found:
        of_batch = truth[each.low, each.high]
        expected = Where.NEITHER if lost else Where(*of_batch)
        assert each.where is expected


RECORDS = 60
OFFSETS = st.sets(st.integers(0, RECORDS - 1), max_size=4)


@settings(max_examples=examples(50))
@given(OFFSETS, OFFSETS, OFFSETS, OFFSETS, st.integers(5, RECORDS))
def test_no_finding_accuses_a_log_that_has_what_was_copied(
    at_source: set[int],
    at_target: set[int],
    lost_source: set[int],
    lost_target: set[int],
    window: int,
) -> None:
    original = log_of(*(Rec(b"k", b"v%d" % n, n) for n in range(RECORDS)))

    def side(name: bytes, other: set[int], lost: set[int]) -> Log:
        log = original.copy()
        log.records |= {at: Rec(b"k", name, at) for at in other}
        log.records = {at: each for at, each in log.records.items() if at not in lost}
        return log

    source, target = side(b"s", at_source, lost_source), side(b"t", at_target, lost_target)
    run = audited({TP: source}, {TP: target}, evidence_of(TP, original, window=window))
    changes = {"source": at_source | lost_source, "target": at_target | lost_target}
    for finding in run.findings:
        if finding.where in changes:
            # The batch of the finding has about eight offsets.
            assert any(abs(finding.position - at) < RECORDS for at in changes[finding.where])
            assert changes[finding.where]
    if not changes["source"]:
        assert {each.where for each in run.findings} <= {"target"}
    if not changes["target"]:
        assert {each.where for each in run.findings} <= {"source"}
