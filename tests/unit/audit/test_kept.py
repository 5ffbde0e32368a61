"""What a later run takes from an earlier one: nothing from files that do not fit, or from logs that were replaced."""

from __future__ import annotations

import io
import itertools
import json
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from kclient.types import TopicPartition
from spark_jobs import cli
from spark_jobs.accounting import AcceptedGap
from spark_jobs.comparison import Options
from spark_jobs.engine import FailureKind
from spark_jobs.later_looks import Moment
from spark_jobs.ranges import merged
from spark_jobs.reconcile import TimeBuckets, reconcile
from spark_jobs.report.contents import json_text
from spark_jobs.report.digests import DIGESTS
from spark_jobs.report.files import (
    DIGESTS_REPORT,
    keep_digests,
    remove_report,
    write_error,
    write_report,
)
from spark_jobs.report.kept_files import KeptUnusable, kept_digests, load_kept
from spark_jobs.report.screen import first_screen
from spark_jobs.settle import Patience
from spark_jobs.verdict import ExitCode, Verdict
from tests.kit.audit_histories import History
from tests.kit.audit_logs import Fault, Log, Rec, named
from tests.kit.audit_reports import META, violations
from tests.kit.killed_processes import in_turn, killed


@pytest.fixture
def history(tmp_path: Path) -> History:
    """Two partitions of 45 records, mirrored, compared and kept."""
    made = History(tmp_path, random.Random(7))
    made.write(45)
    made.mirror()
    assert made.start().outcome.verdict is Verdict.CONSISTENT
    return made


def reasons(history: History, recheck: float = 0.0) -> list[str]:
    """Return why the next run carries nothing of a partition."""
    run = history.audit(load_kept(history.out), recheck)
    assert {each.partition for each in run.carried.refused} in ({0, 1}, {0}, set())
    assert not run.carried.carried.get(history.tps[0]) or not run.carried.refused
    return [each.reason for each in run.carried.refused if each.partition == 0]


def test_only_the_boundary_and_what_is_new_are_read(history: History) -> None:
    history.write(10)
    history.mirror()
    run = history.go_on()
    assert run.outcome.verdict is Verdict.CONSISTENT
    assert run.counts.verified == run.counts.compared == 110
    # Of each partition offsets 40 to 44 again, and 45 to 54, on both sides.
    assert history.engine.digested == 2 * 2 * (5 + 10)
    assert history.go_on().counts.verified == 110
    assert history.engine.digested == 2 * 2 * 5


def test_a_report_shows_what_was_compared_when(history: History) -> None:
    first = sha256((history.out / "report.json").read_bytes()).hexdigest()
    history.write(10)
    history.mirror(behind=3)
    report = history.report(history.audit(load_kept(history.out)))
    document = json.loads(json.dumps(report.document))
    assert violations("report", document) == []
    since = document["since"]
    assert since["base"] == since["oldest"] == since["runs"][0]
    assert since["base"]["report_sha256"] == first
    assert since["base"]["run_id"] == "run-001"
    assert since["offsets"] == {"now": 24, "earlier": 80, "gone": 0, "never": 6}
    assert document["topics"][0]["partitions"][0]["compared_ranges"] == {
        "now": [[40, 52]],
        "earlier": [[0, 40, "run-001"]],
        "gone": [],
        "never": [[52, 55]],
    }
    text = first_screen(document, report="r")
    assert (
        "compared or explained in this run 24 offsets, in earlier runs 80 (oldest: run run-001"
        in text
    )
    assert "deleted since 0, never 6" in text
    assert "re-checked 2 of 10 kept windows" in text
    page = write_report(history.out / "whole", report).read_text()
    assert (
        "80 offsets were compared or explained by 1 earlier runs, the oldest ended 2026-01-01"
        in page
    )
    metrics = (history.out / "whole" / "metrics.prom").read_text()
    assert 'audit_run_earlier_offsets{source="source",target="target",scope="t"} 80' in metrics
    assert (
        "compared or explained in this run 24" in (history.out / "whole" / "report.md").read_text()
    )


def test_the_file_is_read_by_pandas_and_arrow(history: History) -> None:
    frame = pd.read_parquet(history.out / "digests.parquet")
    assert list(frame.columns) == [
        *("topic", "partition", "side", "first_offset", "last_offset", "records", "bytes"),
        *("content", "placed", "max_timestamp", "class", "run_id"),
    ]
    assert set(frame["class"]) == {"equal"}
    assert frame["records"].sum() == 2 * 90
    sums = frame.groupby(["topic", "partition", "side"])["placed"].sum().unstack()
    assert (sums["source"] == sums["target"]).all()
    schema = pq.read_schema(history.out / "digests.parquet")
    assert schema.field("placed").type == pa.uint64()
    assert schema.metadata[b"kaudit.window"] == b"10"


def test_no_digests_are_kept_of_an_empty_cluster(tmp_path: Path) -> None:
    empty = History(tmp_path, random.Random(1))
    empty.start()
    empty.write(5)
    empty.mirror()
    assert empty.go_on().counts.verified == 10


# --- the files


def rewritten(history: History, change: Callable[[dict[str, Any]], None]) -> None:
    """Change both copies of the report."""
    for name in ("report.json", "digests.report.json"):
        document = json.loads((history.out / name).read_text())
        change(document)
        (history.out / name).write_text(json_text(document))


def forged(
    history: History,
    change: Callable[[pd.DataFrame], None],
    about: Mapping[bytes, bytes] | None = None,
) -> None:
    """Change the digests and their metadata, and the hash of them in the report."""
    path = history.out / "digests.parquet"
    table = pq.read_table(path)
    frame = table.to_pandas()
    change(frame)
    written = io.BytesIO()
    made = pa.Table.from_pandas(frame, table.schema, preserve_index=False)
    pq.write_table(made.replace_schema_metadata(table.schema.metadata | (about or {})), written)
    path.write_bytes(written.getvalue())
    known = sha256(written.getvalue()).hexdigest()
    rewritten(history, lambda each: each["files"].update({"digests.parquet": known}))


def refusal(history: History) -> str:
    with pytest.raises(KeptUnusable) as raised:
        load_kept(history.out)
    assert str(raised.value).startswith(f"--since {history.out}: ")
    return str(raised.value)


def test_a_falsified_digest_is_refused(history: History) -> None:
    path = history.out / "digests.parquet"
    path.write_bytes(path.read_bytes().replace(b"equal", b"eqval"))
    assert "digests.parquet is not the file of its report: another SHA-256" in refusal(history)


@pytest.mark.parametrize("has_report", [True, False])
def test_digests_that_are_gone_are_no_other_file(history: History, has_report: bool) -> None:
    """A copy of the directory that was made with `*` lacks the hidden digests of a run that was killed."""
    (history.out / "digests.parquet").unlink()
    if not has_report:
        (history.out / "report.json").unlink()
    text = refusal(history)
    assert "digests.parquet is missing" in text or "No such file or directory: '" in text
    assert "SHA-256" not in text


@pytest.mark.parametrize("name", ["findings.jsonl", "repair.json"])
def test_a_falsified_file_of_the_report_is_refused(history: History, name: str) -> None:
    (history.out / name).write_text("{}\n")
    assert f"{name} is not the file of its report" in refusal(history)


def test_another_report_than_that_of_the_digests_is_refused(history: History) -> None:
    text = (history.out / "report.json").read_text()
    (history.out / "report.json").write_text(text.replace("CONSISTENT", "DIVERGED", 1))
    assert "report.json is not the report of digests.parquet" in refusal(history)


def test_a_broken_hash_chain_is_refused(history: History) -> None:
    history.go_on()
    load_kept(history.out)
    (history.out / "report.previous.json").write_text("{}")
    assert "the hash chain is broken" in refusal(history)
    (history.out / "report.previous.json").unlink()
    assert "the hash chain is broken" in refusal(history)


@pytest.mark.parametrize("name", ["digests.parquet", "digests.report.json"])
def test_a_directory_without_kept_digests_is_refused(history: History, name: str) -> None:
    (history.out / name).write_bytes(b"[]")
    refusal(history)
    (history.out / name).unlink()
    refusal(history)


def test_a_run_that_is_killed_before_any_rename_leaves_the_digests_of_a_whole_run(
    history: History,
) -> None:
    kept: dict[int, str] = {}
    history.write(10)
    history.mirror()
    before, out = history.out.with_name("before"), history.out.with_name("killed")
    shutil.copytree(history.out, before)
    report = history.report(history.audit(load_kept(history.out)))

    run = partial(in_turn, partial(remove_report, out), partial(write_report, out, report))
    for at in itertools.count():
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(before, out)
        if not killed(run, at):
            break
        kept[at] = load_kept(out).runs[-1].run_id
        run()
        assert load_kept(out).runs[-1].run_id == "run-002"
    assert list(kept.values()) == sorted(kept.values())
    assert set(kept.values()) == {"run-001", "run-002"}


def test_runs_that_are_killed_one_after_the_other_leave_the_digests_of_a_whole_run(
    tmp_path: Path,
) -> None:
    for first, second in itertools.product(range(4), repeat=2):
        out = tmp_path / f"{first} {second}"
        for number, at in enumerate((9, first, second)):
            digests = b"digests of %d" % number
            text = json_text({"run": number, "files": {DIGESTS: sha256(digests).hexdigest()}})
            killed(partial(keep_digests, out, digests, text), at)
            document = json.loads((out / DIGESTS_REPORT).read_bytes())
            assert kept_digests(out, document) == b"digests of %d" % document["run"], (
                first,
                second,
            )
        killed(partial(keep_digests, out, digests, text), 9)
        assert (out / DIGESTS).read_bytes() == kept_digests(out, json.loads(text)) == digests


def test_another_version_of_the_hash_is_refused(history: History) -> None:
    forged(history, lambda _: None, {b"kaudit.hash": b"kaudit digest v0"})
    assert "has hash 'kaudit digest v0', this run has 'kaudit digest v1'" in refusal(history)


def test_a_run_with_a_failed_self_test_or_renumbered_offsets_is_refused(history: History) -> None:
    rewritten(history, lambda each: each.update(exit_codes=[70, 0]))
    assert "self-test" in refusal(history)
    rewritten(history, lambda each: each.update(exit_codes=[0]))
    rewritten(history, lambda each: each["limits"].update(renumbered=True))
    assert "--renumbered" in refusal(history)


def test_a_run_that_fails_costs_the_next_one_nothing(history: History) -> None:
    error = {
        "schema_version": 7,
        "verdict": "ERROR",
        "exit_code": 4,
        "exit_codes": [4],
        "cause": "no broker answers",
        "meta": {**META, "previous": "0" * 64, "previous_from": "out"},
    }
    for _ in range(2):
        write_error(history.out, error)
        assert history.audit(load_kept(history.out)).carried.carried


def test_forged_digests_are_noticed_when_their_window_is_read_again(history: History) -> None:
    """Digests and report replaced together: no hash shows it. The boundary is always read again."""

    def change(frame: pd.DataFrame) -> None:
        frame.loc[(frame.partition == 0) & (frame.first_offset == 10), "content"] += 1

    forged(history, change)
    assert reasons(history) == []
    (reason,) = reasons(history, recheck=1.0)
    assert reason == "offsets 10 to 19 in source have changed since they were compared"

    def boundary(frame: pd.DataFrame) -> None:
        frame.loc[(frame.partition == 0) & (frame.first_offset == 40), "content"] += 1

    forged(history, boundary)
    assert reasons(history) == ["offsets 40 to 44 in source have changed since they were compared"]


def test_digests_that_contradict_their_class_are_refused(history: History) -> None:
    def change(frame: pd.DataFrame) -> None:
        frame.loc[(frame.side == "source") & (frame.first_offset == 10), "content"] += 1

    forged(history, change)
    assert "unequal digests of class equal" in refusal(history)


# --- the logs


def test_a_log_that_was_truncated_is_noticed(history: History) -> None:
    history.target.truncate(history.tps[0], 30)
    (reason,) = reasons(history)
    assert reason == "its log in target ends at 30, below 45, the end then: truncated"


def test_a_log_that_was_truncated_and_written_again_is_noticed(history: History) -> None:
    """The mirror copies the same records again, and one of them wrongly: below the boundary."""
    history.target.truncate(history.tps[0], 20)
    history.mirror(change=lambda offset, record: Rec(b"k", b"damaged") if offset == 25 else record)
    assert reasons(history) == [
        "its log in target was truncated and written again: offset 44 has leader epoch 1, then 0"
    ]
    run = history.go_on()
    assert [each[:3] for each in named(run)] == [("corrupt", 0, 25)]


def test_a_log_that_was_replaced_under_the_same_epoch_is_noticed_at_the_boundary(
    history: History,
) -> None:
    log = history.target.logs[history.tps[0]]
    log.records = {at: Rec(b"k", b"other %d" % at) for at in log.records}
    assert reasons(history) == ["offsets 40 to 44 in target have changed since they were compared"]
    assert len(named(history.go_on())) == 45


def test_a_truncation_above_the_proof_is_none(history: History) -> None:
    history.write(20)
    history.mirror(behind=20)
    for each in (history.source,):
        each.truncate(history.tps[0], 50)
    history.write(3)
    history.mirror()
    assert reasons(history) == []


def test_an_unknown_leader_epoch_is_no_proof(history: History) -> None:
    history.source.epochs[history.tps[0]][44] = None  # type: ignore[assignment]
    assert reasons(history) == ["the leader epoch of offset 44 in source is unknown"]


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_topic_that_was_created_again_is_noticed(history: History, side: str) -> None:
    cluster = getattr(history, side)
    cluster.topic_id = "second"
    (reason,) = reasons(history)
    assert reason == f"it was created again in {side}: topic id second, then first"
    cluster.topic_id = ""
    assert reasons(history) == [f"{side} has no topic id for it"]


def test_nothing_is_carried_of_a_compacted_topic(history: History) -> None:
    history.compacted = frozenset({"t"})
    assert reasons(history) == ["the topic is compacted"]
    history.go_on()
    history.compacted = frozenset()
    assert not history.audit(load_kept(history.out)).carried.carried


def test_what_could_not_be_read_is_not_kept(tmp_path: Path) -> None:
    history = History(tmp_path, random.Random(3))
    history.write(45)
    history.mirror()
    for each in (history.source, history.target):
        each.logs[history.tps[0]].faults = [Fault(12, 14, FailureKind.UNREADABLE)]
    assert history.start().outcome.verdict is Verdict.ERROR
    for each in (history.source, history.target):
        each.logs[history.tps[0]].faults = []
    run = history.go_on()
    assert run.carried.spans(history.tps[0]) == [(0, 10), (20, 30), (30, 40)]
    assert (run.outcome.verdict, run.counts.verified) == (Verdict.CONSISTENT, 90)


def test_a_partition_without_a_leader_keeps_its_proof_for_the_next_run(history: History) -> None:
    first = history.tps[0]
    history.unreadable = frozenset({first})
    for _ in range(2):
        assert reasons(history) == ["a log range is unknown; what was kept stays for the next run"]
        run = history.go_on()
        assert (run.outcome.verdict, run.counts.verified) == (Verdict.ERROR, 45)
        report = json.loads((history.out / "report.json").read_text())
        assert violations("report", report) == []
        assert report["topics"][0]["partitions"][0]["compared_ranges"] == {
            "now": [],
            "earlier": [],
            "gone": [[0, 45, "run-001"]],
            "never": [],
        }
    history.unreadable = frozenset()
    history.write(10)
    history.mirror()
    run = history.go_on()
    assert run.carried.spans(first) == [(0, 10), (10, 20), (20, 30), (30, 40)]
    assert (run.outcome.verdict, run.counts.verified) == (Verdict.CONSISTENT, 110)


def created_again(history: History, side: str) -> None:
    """Delete the topic in one cluster, create it again, and write the same records, one of them wrongly."""
    cluster, first = getattr(history, side), history.tps[0]
    cluster.topic_id = "second"
    cluster.logs[first].records[15] = Rec(b"k", b"another")


def check_that_all_is_read_again(history: History) -> None:
    """With leaders again the next run carries nothing of the first partition: it finds what `created_again` changed."""
    history.unreadable = frozenset()
    run = history.go_on()
    assert history.tps[0] not in run.carried.carried
    assert named(run) == [("corrupt", 0, 15, 15, 1)]


@pytest.mark.parametrize("side", ["source", "target"])
def test_nothing_is_kept_again_of_a_topic_that_was_created_again_without_a_leader(
    history: History, side: str
) -> None:
    """The next run would take it for the topic that was compared: leader epochs begin at 0 in both."""
    history.unreadable = frozenset(history.tps[:1])
    created_again(history, side)
    assert reasons(history) == [f"it was created again in {side}: topic id second, then first"]
    history.go_on()
    check_that_all_is_read_again(history)


def test_nothing_is_kept_again_of_a_compacted_topic_without_a_leader(history: History) -> None:
    history.unreadable = frozenset(history.tps[:1])
    history.compacted = frozenset({"t"})
    assert reasons(history) == ["the topic is compacted"]
    history.go_on()
    history.unreadable = frozenset()
    history.compacted = frozenset()
    assert history.tps[0] not in history.go_on().carried.carried


@pytest.mark.parametrize("side", ["source", "target"])
def test_what_was_compared_in_a_topic_without_an_id_is_not_kept_as_that_of_one_with_an_id(
    history: History, side: str
) -> None:
    cluster = getattr(history, side)
    cluster.topic_id = ""
    history.go_on()
    history.unreadable = frozenset(history.tps[:1])
    created_again(history, side)
    history.go_on()
    check_that_all_is_read_again(history)


def test_a_topic_of_which_neither_leader_nor_id_is_known_keeps_its_proof(history: History) -> None:
    history.unreadable = frozenset(history.tps)
    history.target.topic_id = ""
    run = history.go_on()
    assert {each.reason for each in run.carried.refused} == {
        "a log range is unknown; what was kept stays for the next run"
    }
    history.unreadable = frozenset()
    history.target.topic_id = "first"
    assert history.go_on().carried.spans(history.tps[0]) == [(n, n + 10) for n in (0, 10, 20, 30)]


@pytest.mark.parametrize("known_then", [False, True])
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_partition_without_records_does_not_cost_its_topic_the_proof(
    history: History, side: str, known_then: bool
) -> None:
    """One cluster does not describe the topic: nothing of it is read, and of the empty partition nothing was kept."""
    empty = TopicPartition("t", 2)
    for each in (history.source, history.target):
        each.logs[empty] = Log()
    if known_then:
        history.go_on()
    history.undescribed = side
    for _ in range(2):
        history.go_on()
    history.undescribed = ""
    run = history.go_on()
    assert not run.carried.refused
    assert run.carried.spans(history.tps[0]) == [(n, n + 10) for n in (0, 10, 20, 30)]
    getattr(history, side).topic_id = "second"
    assert reasons(history) == [f"it was created again in {side}: topic id second, then first"]


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_topic_id_that_the_kept_run_did_not_know_is_the_reason(
    history: History, side: str
) -> None:
    cluster = getattr(history, side)
    cluster.topic_id = ""
    history.go_on()
    assert reasons(history) == [f"{side} has no topic id for it"]
    cluster.topic_id = "first"
    assert reasons(history) == [f"{side} had no topic id for it in the kept run"]
    cluster.topic_id = ""
    history.unreadable = frozenset(history.tps)
    assert reasons(history) == [f"{side} had no topic id for it in the kept run"]


def test_a_topic_id_of_a_part_is_not_that_of_windows_that_were_kept_without_one(
    history: History,
) -> None:
    """Partition 1 is compared in a topic without an id, and partition 0 was compared before."""
    history.unreadable = frozenset(history.tps[:1])
    history.target.topic_id = ""
    history.go_on()
    history.unreadable = frozenset()
    history.target.topic_id = "first"
    assert not any(history.go_on().carried.carried.values())


@pytest.mark.parametrize(
    ("now", "policy", "reason"),
    [
        ("first", "delete", "a log range is unknown; what was kept stays for the next run"),
        ("second", "delete", "it was created again in target: topic id second, then first"),
        ("first", "compact", "the topic is compacted"),
    ],
)
def test_what_a_later_look_learns_of_a_topic_decides_what_is_kept_again(
    history: History, now: str, policy: str, reason: str
) -> None:
    """The target does not list the topic at first. A new partition can be compared later, and shows the topic id."""
    kept = load_kept(history.out)
    new = TopicPartition("t", 2)
    for each in (history.source, history.target):
        each.logs[new] = Log()
        each.append(new, Rec(b"k", b"v"))
    source, target = history.clusters()
    target = replace(target, topic_ids={"t": now}, configs={"t": {"cleanup.policy": policy}})
    whole = {TopicPartition("t", -1): "UNKNOWN_TOPIC_OR_PARTITION"}
    first = replace(target, ranges={}, configs={}, topic_ids={}, unreadable=whole)
    later = replace(target, ranges={new: target.ranges[new]})
    run = reconcile(
        history.engine,
        source,
        first,
        Options(history.window, kept=kept, patience=Patience(0.0, 1)),
        buckets=TimeBuckets.over((0, 1000)),
        again=lambda _cuts: Moment(source, later),
    )
    assert {each.reason for each in run.carried.refused} == {reason}
    history.report(run)
    assert run.target.topic_ids == {"t": now}
    again = load_kept(history.out).partitions
    assert bool(again[history.tps[0]].windows) is (now == "first" and policy == "delete")


def test_partitions_without_a_leader_in_both_clusters_keep_their_proof(history: History) -> None:
    history.unreadable = history.unreadable_source = frozenset(history.tps)
    for _ in range(2):
        history.go_on()
    history.unreadable = history.unreadable_source = frozenset()
    run = history.go_on()
    assert run.carried.spans(history.tps[0]) == [(n, n + 10) for n in (0, 10, 20, 30)]
    assert (run.outcome.verdict, run.counts.verified) == (Verdict.CONSISTENT, 90)


def test_what_was_deleted_before_a_partition_lost_its_leader_is_known_to_the_next_run(
    history: History,
) -> None:
    """Nothing else that is kept was compared by that run, and the offsets are below the start of the source's log."""
    first = history.tps[0]
    for tp in history.tps:
        history.source.logs[tp].delete_below(40)
    assert merged(history.go_on().carried.known_equal(first)) == [(0, 40)]
    for tp in history.tps:
        history.target.logs[tp].delete_below(40)
    history.unreadable = frozenset(history.tps)
    history.go_on()
    history.unreadable = frozenset()
    run = history.go_on()
    assert run.outcome.verdict is Verdict.CONSISTENT


def test_a_kept_window_that_can_not_be_decoded_any_more_is_a_finding(history: History) -> None:
    log = history.target.logs[history.tps[0]]
    log.faults = [Fault(3, 5, FailureKind.UNDECODABLE)]
    assert reasons(history, recheck=1.0) == ["offsets 0 to 9 cannot be decoded in target any more"]
    assert [each[0] for each in named(history.go_on(1.0))] == ["undecodable"]


def test_what_retention_deleted_since_is_shown_and_not_searched_for_gaps(history: History) -> None:
    for tp in history.tps:
        history.source.logs[tp].delete_below(25)
    run = history.go_on()
    assert run.outcome.verdict is Verdict.INCOMPLETE
    assert (run.counts.aged_out, run.counts.verified) == (50, 40)
    first = json.loads((history.out / "report.json").read_text())["topics"][0]["partitions"][0]
    assert first["compared_ranges"]["gone"] == [[0, 25, "run-001"]]
    # Half of the window 20 to 29 is read again: its digest is of all of it.
    assert first["compared_ranges"]["now"] == [[25, 30], [40, 45]]
    assert "gaps" not in run.cost.seconds
    again = history.go_on()
    assert again.carried.known_equal(history.tps[0]) == [(0, 25)]


def test_offsets_that_neither_log_has_any_more_are_not_shown_as_compared_earlier(
    history: History,
) -> None:
    """The source lost its log, and the target deleted the same offsets: nothing is in scope."""
    tp = history.tps[0]
    history.source.truncate(tp, 0)
    history.target.logs[tp].delete_below(45)
    run = history.audit(load_kept(history.out))
    (cut,) = (each for each in run.cuts if each.topic_partition == tp)
    assert (cut.scope, run.carried.gone.get(tp, [])) == (0, [])


def test_a_log_that_starts_behind_the_proof_is_not_called_truncated(history: History) -> None:
    """No leader epoch is known of an offset below the log start. So the target is searched for gaps again."""
    history.write(30)
    history.mirror()
    for tp in history.tps:
        history.source.logs[tp].delete_below(45)
    assert reasons(history) == []
    run = history.go_on()
    assert (run.counts.aged_out, run.counts.verified) == (90, 60)
    assert "gaps" in run.cost.seconds
    first = json.loads((history.out / "report.json").read_text())["topics"][0]["partitions"][0]
    assert first["compared_ranges"] == {
        "now": [[45, 75]],
        "earlier": [],
        "gone": [[0, 45, "run-001"]],
        "never": [],
    }
    # Later runs know no more about it.
    assert "gaps" in history.go_on().cost.seconds


@pytest.mark.parametrize("only_gaps", [False, True])
def test_an_explained_gap_below_the_log_start_of_the_source_is_settled_by_this_run(
    history: History, only_gaps: bool
) -> None:
    """The source deleted 15 records before they were copied. The ledger, or the operator, explains ten of them."""
    history.write(30)
    for tp in history.tps:
        for _ in range(15):
            history.target.append(tp, None)
    history.mirror()
    for tp in history.tps:
        history.source.logs[tp].delete_below(60)
    history.accepted = tuple(
        AcceptedGap(*tp, 45, 55, "retention", only_gaps=only_gaps) for tp in history.tps
    )
    run = history.go_on()
    assert [each[0] for each in named(run)] == ["gap", "gap"]
    report = json.loads((history.out / "report.json").read_text())
    assert violations("report", report) == []
    expected = {
        "now": [[45, 55], [60, 75]],
        "earlier": [],
        "gone": [[0, 45, "run-001"]],
        "never": [[55, 60]],
    }
    first = report["topics"][0]["partitions"][0]
    assert first["compared_ranges"] == expected
    assert report["since"]["offsets"]["never"] == 10


# --- the command

PAIR = ("--source", "127.0.0.1:1", "--target", "127.0.0.1:1", "--topics", "t", "--quiet")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--recheck", "101%"), "expected a share"),
        (("--recheck", "1"), "expected a share"),
        (("--renumbered",), "cannot be used with --renumbered"),
        (("--window", "11"), "has windows of 10"),
    ],
)
def test_options_that_do_not_fit_a_kept_run_are_usage_errors(
    history: History, options: tuple[str, ...], text: str
) -> None:
    arguments = ["reconcile", *PAIR, "--out", str(history.out), "--since", str(history.out)]
    result = CliRunner().invoke(cli.kaudit, [*arguments, *options])
    assert result.exit_code == ExitCode.USAGE
    assert text in result.output
    assert load_kept(history.out)


def test_a_run_that_can_not_reach_a_cluster_leaves_the_kept_digests(history: History) -> None:
    arguments = ["reconcile", *PAIR, "--out", str(history.out), "--since", str(history.out)]
    assert CliRunner().invoke(cli.kaudit, arguments).exit_code == ExitCode.UNREADABLE
    assert load_kept(history.out)
