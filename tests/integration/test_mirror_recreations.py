"""Topics that were created again, at either cluster: the mirror never mixes the records of two topics."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mirrormaker.exported import show_exported
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.kaudit import kaudit
from tests.kit.mirrored_clusters import (
    TOPIC_ID,
    MakeMirror,
    delete_records,
    delete_topic,
    make_topic,
    making_mirrors,
    mark_of,
    produce,
    record_of,
    recreate_topic,
    setting_of,
    topic_names,
    write_to_mirror,
)
from tests.kit.mirrors import Mirror, StoredBatch, stored, until_same
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150), pytest.mark.shared_clusters]

SINGLE = {"batch.num.messages": 1}
"""A batch for each record."""


def recreate(cluster: Cluster, topic: str, count: int) -> None:
    """Delete a topic and make one of the same name, with *count* other records."""
    recreate_topic(cluster, topic)
    produce(cluster, topic, count, **SINGLE)


def copying(
    east: Cluster, west: Cluster, mirror: MakeMirror, settings: dict[str, str] | None = None
) -> tuple[Mirror, list[StoredBatch]]:
    """Return a running mirror that has copied 100 records, and the log at the target."""
    make_topic(east, "orders")
    produce(east, "orders", 100, **SINGLE)
    copier = mirror(settings)
    copier.start()
    until_same(east, west, "orders")
    return copier, stored(west, "orders")


def test_a_topic_recreated_at_the_source_is_not_mixed_with_its_copy(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    copier, before = copying(east, west, mirror)
    recreate(east, "orders", 200)
    eventually(
        "the link to stop",
        lambda: "STOPPED orders-0" in copier.output or "is gone" in copier.output,
    )
    copier.stop()
    again = mirror()
    assert again.run_once() == 1, again.output
    assert "created again at the source" in again.output
    assert stored(west, "orders") == before


def recreate_behind_the_copy(east: Cluster, west: Cluster, mirror: MakeMirror) -> None:
    """Copy 100 records, then create the topic again so that its log starts at offset 100."""
    make_topic(east, "orders")
    produce(east, "orders", 100, **SINGLE)
    assert mirror().run_once() == 0
    recreate(east, "orders", 150)
    delete_records(east, "orders", 100)


def test_a_recreated_topic_that_starts_where_the_copy_ends_is_not_spliced(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    recreate_behind_the_copy(east, west, mirror)
    before = stored(west, "orders")
    for _ in range(2):  # a stop is no acceptance
        copier = mirror()
        assert copier.run_once() == 1, copier.output
        assert "the topic was deleted and created again at the source" in copier.output
        assert stored(west, "orders") == before


def test_a_recreated_topic_is_continued_behind_a_gap_with_the_policy_skip(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    recreate_behind_the_copy(east, west, mirror)
    first, before = setting_of(west, "orders", TOPIC_ID), stored(west, "orders")
    copier = mirror({"gap.policy": "skip"})
    assert copier.run_once() == 0, copier.output
    assert stored(west, "orders") == before + stored(east, "orders")[100:]
    second = setting_of(west, "orders", TOPIC_ID)
    assert None not in (first, second)
    assert first != second
    assert f"GAP orders-0: topic id {first} became {second} at offset 100" in copier.output
    assert mirror().run_once() == 0, "the new topic is the source now"


def test_a_recreated_topic_is_copied_to_another_topic_with_the_policy_new_lineage(
    east: Cluster, west: Cluster, mirror: MakeMirror, tmp_path: Path
) -> None:
    """While kmirror runs: the earlier copy stays as it is, and its end is in the ledger before the later one begins."""
    copier, before = copying(east, west, mirror, {"gap.policy": "new-lineage"})
    first = setting_of(west, "orders", TOPIC_ID)
    recreate(east, "orders", 150)
    eventually("the new lineage", lambda: ".orders: created with" in copier.output)
    found = re.search(r"topic (lineage\.(\S+)\.orders): created with", copier.output)
    assert found is not None
    later, second = found.groups()
    eventually("the later topic", lambda: stored(west, later) == stored(east, "orders"))
    assert copier.stop() == 0, copier.output
    assert stored(west, "orders") == before
    assert (setting_of(west, later, TOPIC_ID), mark_of(west, later)) == (
        second,
        mark_of(west, "orders"),
    )

    again = mirror()  # gap.policy=fail: the topics decide
    assert again.run_once() == 0, again.output
    code, output = again.ask("gaps", "--format", "json")
    (entry,) = map(json.loads, output.splitlines())
    named = [entry[name] for name in ("type", "topic", "from", "until", "cause")]
    assert (code, named) == (0, ["lineage", "orders", 100, 100, "recreated"])
    ids = [entry[name] for name in ("source_topic_id_before", "source_topic_id_after")]
    assert ids == [first, second]
    code, output = again.ask("status")
    assert code == 0, output
    assert f"drift orders: has the records of topic id {first}, and gets no more" in output

    out = tmp_path / "audit"
    clusters = ("--source", east.bootstrap, "--target", west.bootstrap, "--topics", "orders")
    spark = ("--master", "local[2]", "-q", "--no-self-test", "--settle-rounds", "0")
    done = kaudit("reconcile", *clusters, "--out", str(out), *spark)
    report = json.loads((out / "report.json").read_text())
    assert (report["verdict"], done.exit_code) == ("INCOMPLETE", 5), done.output
    counted = {each["topic"]: (each["verified"], each["aged_out"]) for each in report["topics"]}
    assert counted == {"orders": (150, 0), f"lineage.{first}.orders": (0, 100)}
    (recreated,) = report["recreated"]
    assert (recreated["topic_id"], recreated["target_topic"]) == (second, later)
    for command in ("headers", "counts"):
        done = kaudit(command, *clusters, "--out", str(out), "--master", "local[2]", "-q")
        found = json.loads((out / f"{command}.json").read_text())
        assert (found["recreated"], done.exit_code) == (report["recreated"], 5), done.output
        assert f"orders was created again at the source: it is compared with {later}" in done.output


def test_a_topic_that_is_recreated_twice_has_both_lineages_in_the_ledger_and_in_the_audit(
    east: Cluster, west: Cluster, mirror: MakeMirror, tmp_path: Path
) -> None:
    """Both entries begin where the first copy ends. Before, the second one replaced the first one."""
    make_topic(east, "orders")
    produce(east, "orders", 20, **SINGLE)
    copier = mirror({"gap.policy": "new-lineage"})
    assert copier.run_once() == 0, copier.output
    ids = [setting_of(west, "orders", TOPIC_ID)]
    for count in (30, 40):
        recreate(east, "orders", count)
        copier = mirror({"gap.policy": "new-lineage"})
        assert copier.run_once() == 0, copier.output
        (found,) = re.findall(r"topic lineage\.(\S+)\.orders: created with", copier.output)
        ids.append(found)
    first, second, third = ids
    code, output = copier.ask("gaps", "--format", "json")
    entries = list(map(json.loads, output.splitlines()))
    assert (code, {each["type"] for each in entries}) == (0, {"lineage"})
    assert {each["source_topic_id_after"] for each in entries} == {second, third}
    assert [each["from"] for each in entries] == [20, 20]

    clusters = ("--source", east.bootstrap, "--target", west.bootstrap, "--topics", "orders")
    spark = ("--master", "local[2]", "-q", "--no-self-test", "--settle-rounds", "0")
    done = kaudit("reconcile", *clusters, "--out", str(tmp_path / "audit"), *spark)
    report = json.loads((tmp_path / "audit" / "report.json").read_text())
    assert (report["verdict"], done.exit_code) == ("INCOMPLETE", 5), done.output
    counted = {each["topic"]: (each["verified"], each["aged_out"]) for each in report["topics"]}
    earlier = {f"lineage.{first}.orders": (0, 20), f"lineage.{second}.orders": (0, 30)}
    assert counted == {"orders": (40, 0), **earlier}


def test_a_running_mirror_does_not_splice_a_recreated_topic(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    copier, before = copying(east, west, mirror)
    recreate(east, "orders", 150)
    delete_records(east, "orders", 100)
    eventually("the link to stop", lambda: "STOPPED orders-0" in copier.output)
    assert copier.stop() == 1
    assert stored(west, "orders") == before


def test_a_topic_of_others_that_ends_where_the_source_starts_does_not_become_a_mirror(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    for cluster in (east, west):
        make_topic(cluster, "orders")
        produce(cluster, "orders", 100, **SINGLE)
    delete_records(east, "orders", 100)
    produce(east, "orders", 10)
    before = stored(west, "orders")
    copier = mirror()
    assert copier.run_once() == 1, copier.output
    assert "nothing proves that the target is a copy" in copier.output
    assert (mark_of(west, "orders"), stored(west, "orders")) == (None, before)


def test_the_records_of_a_recreated_topic_never_follow_the_old_ones(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    """Epochs begin again at zero, so only the topic id distinguishes the new log from the old one (KIP-516)."""
    unaware, before = copying(east, west, mirror, {"refresh.topics.interval.seconds": "3600"})
    recreate(east, "orders", 200)
    rejection = "UNKNOWN_TOPIC_ID"
    eventually(
        "the rejection", lambda: rejection in unaware.output or stored(west, "orders") != before
    )
    assert stored(west, "orders") == before
    unaware.stop()


def test_a_diverged_topic_is_copied_again_after_an_operator_deleted_it(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders", 2)
    produce(east, "orders", 10, partitions=2, **SINGLE)
    copier = mirror()
    copier.start()
    until_same(east, west, "orders", 2)
    write_to_mirror(west, "orders", 1)
    produce(east, "orders", 10, partitions=2, **SINGLE)
    eventually("the link to stop", lambda: "STOPPED orders-0" in copier.output)
    delete_topic(west, "orders")
    until_same(east, west, "orders", 2)
    assert copier.stop() == 0, copier.output


@pytest.mark.timeout(600)
def test_a_stopped_mirror_is_truncated_on_request_after_its_records_were_exported(
    east: Cluster, west: Cluster, mirror: MakeMirror, tmp_path: Path
) -> None:
    make_topic(east, "orders")
    produce(east, "orders", 100, **SINGLE)
    assert mirror().run_once() == 0
    recreate(east, "orders", 150)
    before, first = stored(west, "orders"), setting_of(west, "orders", TOPIC_ID)
    one = mirror()
    assert one.run_once() == 1
    options = ["--topics", "orders"]
    code, output = one.ask("truncate", *options, timeout=60)
    assert (code, stored(west, "orders")) == (0, before), output
    assert "orders-0: no equal batch" in output

    options += ["--execute", "--export", str(tmp_path / "export")]
    assert one.killed_after("is in the ledger", "truncate", *options)
    code, output = one.ask("truncate", *options, timeout=400)  # the command is continued
    assert code == 0, output
    report = json.loads((tmp_path / "export" / "audit" / "report.json").read_text())
    (audited,) = report["topics"]
    assert (report["verdict"], audited["topic"], audited["verified"]) == (
        "CONSISTENT",
        "orders",
        150,
    )
    assert record_of(output)["audit_run_id"] == report["meta"]["run_id"]
    assert stored(west, "orders") == stored(east, "orders")
    code, output = one.ask("truncate", *options, "--no-audit", timeout=120)
    assert code == 0, output  # everything is done already
    assert (record_of(output)["audit_run_id"], record_of(output)["exported_records"]) == (None, 100)
    assert stored(west, "orders") == stored(east, "orders")
    assert "truncated: orders; 100 records that the source does not have were exported" in output
    lines: list[str] = []
    show_exported(tmp_path / "export", "all", lines.append)
    assert [json.loads(line)["offset"] for line in lines] == list(range(100))
    code, output = one.ask("gaps", "--format", "json")
    (entry,) = map(json.loads, output.splitlines())
    names = ("type", "from", "until", "records_lost", "source_topic_id_before")
    assert [entry[name] for name in names] == ["removal", 0, 100, 100, first]
    assert one.run_once() == 0

    # As after another loss at the source. The directory of the first truncation continues nothing.
    write_to_mirror(west, "orders", 1)
    again = "Name another directory with --export"
    dry = ["--topics", "orders", "--export", str(tmp_path / "export")]
    code, output = one.ask("truncate", *dry, timeout=60)
    assert (code, "orders-0: diverges at 150" in output, again in output) == (0, True, True), output
    code, output = one.ask("truncate", *options, "--no-audit", timeout=120)
    assert (code, again in output, "Mend the cause" in output) == (5, True, False), output
    options[-1] = str(tmp_path / "second")
    code, output = one.ask("truncate", *options, "--no-audit", timeout=120)
    assert code == 0, output
    assert stored(west, "orders") == stored(east, "orders")


def test_a_deletion_that_the_cluster_refuses_leaves_no_removal_in_the_ledger(
    broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    """Before, the text had the topic as deleted, and the ledger a removal that never was."""
    east, west = broker_clusters(1), broker_clusters(1, {"delete.topic.enable": "false"})
    make_topic(east, "orders")
    produce(east, "orders", 3, **SINGLE)
    with making_mirrors(tmp_path, east, west) as mirror:
        one = mirror()
        assert one.run_once() == 0
        write_to_mirror(west, "orders", 1)
        before = stored(west, "orders")
        options = [
            "--topics",
            "orders",
            "--no-audit",
            "--execute",
            "--export",
            str(tmp_path / "out"),
        ]
        code, output = one.ask("truncate", *options, timeout=120)
        assert code == 5, output
        assert "topics cannot be deleted here" in output
        assert "Read-only at west, with all their records: orders. Mend the cause" in output
        assert stored(west, "orders") == before
        code, output = one.ask("gaps", "--format", "json")
        assert output.splitlines() == []


@pytest.mark.parametrize("last", ["orders-0: diverges at 10", "is in the ledger"])
def test_a_truncation_that_is_refused_is_not_in_the_ledger(
    east: Cluster, west: Cluster, mirror: MakeMirror, tmp_path: Path, last: str
) -> None:
    """Before, the ledger stated a removal, and the records were there; a topic that is absent was exit code 0."""
    for topic in ("orders", "absent"):
        make_topic(east, topic)
    produce(east, "orders", 10, **SINGLE)
    one = mirror()
    assert one.run_once() == 0
    write_to_mirror(west, "orders", 1)
    before = stored(west, "orders")
    options = ["--topics", "orders", "--no-audit", "--execute"]
    first = [*options, "--export", str(tmp_path / "first")]
    assert one.killed_after(last, "truncate", *first)
    if "orders" not in topic_names(west):
        pytest.skip("the kill came after the deletion")
    delete_records(east, "orders", 3)
    code, output = one.ask("truncate", *first, timeout=120)
    assert code == 5, output
    assert "the source has deleted its records below 3" in output
    assert stored(west, "orders") == before
    code, output = one.ask("gaps", "--format", "json")
    assert output.splitlines() == []

    delete_topic(west, "absent")
    options += ["--export", str(tmp_path / "second"), "--export-head"]
    options[1] = "orders|absent"
    code, output = one.ask("truncate", *options, timeout=120)
    assert code == 4, output
    assert "NOT TRUNCATED: absent: west has no mirror of it" in output
    assert stored(west, "orders") == [
        each for each in stored(east, "orders") if each.base_offset >= 3
    ]
