"""The gate gives kaudit the form of the target's names, and judges its report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kclient.types import TopicPartition
from mirrormaker.audit_gate import target_form
from mirrormaker.audit_proof import aged_out_of, not_proven
from mirrormaker.command_exit import Refused
from spark_jobs.accounting import AcceptedGap
from spark_jobs.comparison import Options
from spark_jobs.engine import FailureKind
from tests.kit.audit_logs import Fault, Log, Rec, audit, log_of
from tests.kit.audit_reports import report_of

TP = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("copies", "form"),
    [
        ({}, ""),
        ({"orders": "orders", "a": "a"}, ""),
        ({"orders": "east.orders", "a": "east.a"}, "east.{}"),
        ({"orders": "orders.from.east"}, "{}.from.east"),
        # The name is in the alias too: only one place is the same for both topics.
        ({"a": "xay.a", "b": "xay.b"}, "xay.{}"),
        ({"a": "a.a"}, "{}.a"),
        ({"aa": "aaa"}, "{}a"),
    ],
)
def test_the_form_has_one_place_for_every_name(copies: dict[str, str], form: str) -> None:
    assert target_form(copies) == form
    assert all(copy == (form or "{}").replace("{}", name) for name, copy in copies.items())


@pytest.mark.parametrize("copies", [{"orders": "EAST.ORDERS"}, {"a": "east.a", "b": "b.east"}])
def test_names_without_a_common_form_are_refused(copies: dict[str, str]) -> None:
    with pytest.raises(Refused, match="--no-audit copies without the proof"):
        target_form(copies)


def left_open(source: Log, target: Log, cut: int, options: Options | None = None) -> str:
    """Return what the gate finds open in the report of an audit of two compacted logs."""
    compacted = frozenset({"t"})
    run = audit(
        {TP: source},
        {TP: target},
        options,
        source_compacted=compacted,
        target_compacted=compacted,
    )
    return not_proven(report_of(run).document, {TP: cut}, source_id="source", target_id="target")


ASK = """
import sys
from pathlib import Path
from twisted.internet.task import react
from mirrormaker.audit_gate import proven_by_audit
from mirrormaker.config import MirrorConfig
from mirrormaker.command_exit import Refused

out = Path(sys.argv[1])
sys.executable = str(out / "kaudit")

async def ask(reactor):
    flow = MirrorConfig.load(out / "mirror.properties").flows[0]
    try:
        await proven_by_audit(reactor, flow, out / "report", {}, source_id="E", target_id="W", options=())
    except Refused as refusal:
        print(refusal)

react(ask)
"""


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("kill -TERM $$", "kaudit was ended by signal 15"),
        ("echo broken >&2; exit 3", "kaudit ended with exit code 3: broken"),
        ("exit 0", "kaudit's report in "),
        ("exit 5", "kaudit's report in "),
    ],
)
def test_a_kaudit_that_ends_without_a_report_is_no_proof(
    script: str, reason: str, tmp_path: Path
) -> None:
    """Before, a signal ended the promotion without an undo: the source stayed read-only."""
    kaudit = tmp_path / "kaudit"
    kaudit.write_text(f"#!/bin/sh\n{script}\n")
    kaudit.chmod(0o755)
    (tmp_path / "mirror.properties").write_text(
        "clusters = east, west\neast.bootstrap.servers = a:1\nwest.bootstrap.servers = b:1\n"
        "east->west.enabled = true\n"
    )
    command = [sys.executable, "-c", ASK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith(reason), done


@pytest.mark.parametrize("end", [0, 400])
def test_a_topic_that_is_empty_on_both_sides_may_be_promoted(end: int) -> None:
    assert left_open(Log(start=end, end=end), Log(start=end, end=end), end) == ""


def test_an_empty_source_that_the_target_never_followed_is_not_proven() -> None:
    assert left_open(Log(start=400, end=400), Log(), 400) == "the verdict is LAGGING"


def of_two(source: Log, target: Log, cut: int) -> tuple[str, int]:
    """Return what the gate finds open beside a partition that is equal, and what was not compared."""
    other = TopicPartition("t", 1)
    logs = [
        {TP: log, other: log_of(*(Rec(b"k", b"v", n) for n in range(5)))}
        for log in (source, target)
    ]
    report = report_of(audit(logs[0], logs[1])).document
    cuts = {TP: cut, other: 5}
    return not_proven(report, cuts, source_id="source", target_id="target"), aged_out_of(report)


def ten() -> Log:
    return log_of(*(Rec(b"k%d" % n, b"v", n) for n in range(10)))


@pytest.mark.parametrize(
    ("at_source", "at_target", "aged_out"), [(4, 0, 4), (0, 4, 4), (3, 7, 4), (10, 0, 10)]
)
def test_logs_that_begin_at_different_offsets_are_proven_from_there_on(
    at_source: int, at_target: int, aged_out: int
) -> None:
    """Retention makes it so: every promotion with an audit was refused, after producers had waited for it."""
    source, target = ten(), ten()
    source.delete_below(at_source)
    target.delete_below(at_target)
    assert of_two(source, target, 10) == ("", aged_out)


def test_records_that_retention_deletes_during_the_audit_leave_nothing_open() -> None:
    source, target = ten(), ten()
    source.faults.append(Fault(0, 3, FailureKind.DELETED))
    assert of_two(source, target, 10) == ("", 3)
    target.end = target.stable = 9
    del target.records[9]
    assert of_two(source, target, 10)[0] != ""


@pytest.mark.parametrize("problem", ["missing", "other", "unread", "lag", "garbled", "open"])
def test_offsets_that_aged_out_excuse_nothing_else(problem: str) -> None:
    source, target = ten(), ten()
    source.delete_below(4)
    if problem == "missing":
        del target.records[6]
    elif problem == "other":
        target.records[6] = Rec(b"k6", b"other", 6)
    elif problem == "lag":
        del target.records[9]
        target.end = 9
    elif problem == "open":
        target.stable = 6
    else:
        kind = FailureKind.UNREADABLE if problem == "unread" else FailureKind.UNDECODABLE
        target.faults.append(Fault(6, 7, kind))
    assert of_two(source, target, 10)[0] != ""


@pytest.mark.parametrize(
    "changes",
    [
        {"in_scope": 16},
        {"not_read": 1},
        {"unknown_partitions": 1},
        {"unreadable": [1]},
        {"findings": {"missing": 1}},
        {"different": {"gap": 1}},
        {"exit_codes": [5, 3]},
    ],
    ids=str,
)
def test_an_incomplete_audit_with_any_other_cause_proves_nothing(changes: dict[str, Any]) -> None:
    """The logs above give other verdicts in most cases: their reports do not show that each cause counts."""
    source, target = ten(), ten()
    source.delete_below(4)
    report = report_of(audit({TP: source}, {TP: target})).document
    assert report["verdict"] == "INCOMPLETE"
    assert report["totals"]["aged_out"] == 4

    def left_open() -> str:
        return not_proven(report, {TP: 10}, source_id="source", target_id="target")

    assert left_open() == ""
    (report if "exit_codes" in changes else report["totals"]).update(changes)
    assert left_open() == "the verdict is INCOMPLETE"


def test_logs_without_a_common_offset_prove_nothing() -> None:
    source, target = ten(), ten()
    source.delete_below(10)
    assert left_open(source, target, 10) == "no offset was compared: each is in one log only"


def test_what_compaction_and_accepted_gaps_explain_may_be_promoted() -> None:
    source, target = (log_of(*(Rec(b"k%d" % (n % 4), b"v", n) for n in range(40))) for _ in "ab")
    del target.records[3]  # compacted: a later record has its key
    del target.records[39]  # the last of its key: a loss, which the operator accepts
    target.append(Rec(b"end", b"v", 40))
    source.append(Rec(b"end", b"v", 40))
    assert left_open(source, target, 41) == "the verdict is DIVERGED"
    accepted = Options(window=10, accepted=(AcceptedGap("t", 0, 39, 40, "known"),))
    assert left_open(source, target, 41, accepted) == ""
