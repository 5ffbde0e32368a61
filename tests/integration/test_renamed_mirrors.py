"""Mirrors with another name at the target: repair and truncation find and prove them, and leave other topics alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kclient import Consumer
from kclient.types import OffsetAndMetadata, TopicPartition
from mirrormaker.exported import show_exported
from tests.kit.brokers import Cluster
from tests.kit.kaudit import reconciled
from tests.kit.mirrored_clusters import (
    MakeMirror,
    deliver,
    make_topic,
    mark_of,
    recreate_topic,
    replace_in_log,
    topic_names,
    values,
)
from tests.kit.mirrors import stored
from tests.kit.prose import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.shared_clusters]

RENAMED = {"replication.policy.class": "DefaultReplicationPolicy"}


def exported(directory: Path) -> list[tuple[str, int, str]]:
    """Return topic, offset and value of each exported record."""
    lines: list[str] = []
    show_exported(directory, "all", lines.append)
    found = map(json.loads, lines)
    return [(each["topic"], each["offset"], each["value"]) for each in found]


def test_a_renamed_mirror_is_repaired_by_the_plan_of_its_audit(
    east: Cluster, west: Cluster, mirror: MakeMirror, tmp_path: Path
) -> None:
    make_topic(east, "orders")
    make_topic(west, "orders")  # west's own
    for value in (b"first", b"second", b"third"):  # a batch each
        assert deliver(east, "orders", value) is None
    assert deliver(west, "orders", b"own") is None
    one = mirror(RENAMED)
    assert one.run_once() == 0
    copy = TopicPartition("east.orders", 0)
    with Consumer(
        bootstrap_servers=west.bootstrap, group_id="billing", enable_auto_commit=False
    ) as consumer:
        consumer.assign([copy])
        consumer.commit({copy: OffsetAndMetadata(3, "end")})
    replace_in_log(west, "east.orders", b"second", b"SECOND", has_right_crcs=True)
    code, _ = reconciled(
        east, west, "orders", tmp_path / "found", "--target-prefix", "east.", "--settle-rounds", "0"
    )
    assert code == 1
    options = ["--plan", str(tmp_path / "found" / "repair.json")]
    code, output = one.ask("repair", *options, timeout=60)
    assert code == 0, output
    assert "east.orders-0: diverges at 1 (search, " in output

    options += ["--execute", "--export", str(tmp_path / "export")]
    assert one.killed_after("east.orders: deleted at west", "repair", *options)
    code, output = one.ask("repair", *options, timeout=200)
    assert code == 0, output
    assert "east.orders: created at west as a mirror" in output
    assert stored(west, "east.orders") == stored(east, "orders")
    assert values(west, "orders", 0) == [b"own"]
    assert exported(tmp_path / "export") == [("east.orders", 1, "SECOND")]
    (audit,) = (tmp_path / "export").glob("repair-*/audit/report.json")
    assert json.loads(audit.read_text())["verdict"] == "CONSISTENT"
    with Consumer(bootstrap_servers=west.bootstrap, group_id="billing") as consumer:
        assert consumer.committed([copy]) == {copy: OffsetAndMetadata(1, "end")}
    assert deliver(east, "orders", b"fourth") is None
    assert one.run_once() == 0
    assert values(west, "east.orders", 0) == [b"first", b"second", b"third", b"fourth"]

    # The plan names another topic of the target than this flow does.
    code, output = mirror().ask("repair", *options, timeout=60)
    assert code == 5, output
    assert "the plan is of the target's topic east.orders, the flow copies to orders" in output


def test_a_renamed_mirror_is_truncated_after_its_records_were_exported(
    east: Cluster, west: Cluster, mirror: MakeMirror, tmp_path: Path
) -> None:
    make_topic(east, "orders")
    make_topic(west, "orders")  # west's own
    assert deliver(east, "orders", b"lost") is None
    assert deliver(west, "orders", b"own") is None
    assert mirror(RENAMED).run_once() == 0
    recreate_topic(east, "orders")
    assert deliver(east, "orders", b"new-1", b"new-2") is None
    one = mirror(RENAMED)
    assert one.run_once() == 1
    options = ["--topics", "orders", "--no-audit"]
    code, output = one.ask("truncate", *options, timeout=60)
    assert code == 0, output
    assert "east.orders-0: no equal batch" in output

    options += ["--execute", "--export", str(tmp_path / "export")]
    assert one.killed_after("is in the ledger", "truncate", *options)
    for _ in range(2):  # the command is continued, and again finds everything done
        code, output = one.ask("truncate", *options, timeout=120)
        assert code == 0, output
        assert stored(west, "east.orders") == stored(east, "orders")
    assert exported(tmp_path / "export") == [("east.orders", 0, "lost")]
    code, output = one.ask("gaps", "--format", "json")
    (entry,) = map(json.loads, output.splitlines())
    assert [entry[name] for name in ("source_topic", "topic", "from", "until", "records_lost")] == [
        *("orders", "east.orders", 0, 1, 1)
    ]
    assert values(west, "orders", 0) == [b"own"]
    assert one.run_once() == 0


def documented_policy() -> str:
    """Return the program of docs/mirroring.md with a policy of the operator's own."""
    page = (ROOT / "docs" / "mirroring.md").read_text()
    (program,) = (
        each.split("```")[0]
        for each in page.split("```python\n")[1:]
        if "class SuffixPolicy" in each
    )
    return program


def test_the_policy_of_the_documentation_names_the_mirrors_of_a_real_process(
    east: Cluster,
    west: Cluster,
    mirror: MakeMirror,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "policies.py").write_text(documented_policy())
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(tmp_path), inherited))))
    make_topic(east, "orders")
    make_topic(east, "bills.from.west")  # it came from the target, and does not go back
    for topic in ("orders", "bills.from.west"):
        assert deliver(east, topic, b"first", b"second") is None
    one = mirror({"replication.policy.class": "policies:SuffixPolicy"})
    one.forked = False  # the fork server has imported its modules before
    for _ in range(2):
        assert one.run_once() == 0, one.output
        assert stored(west, "orders.from.east") == stored(east, "orders") != []
    assert mark_of(west, "orders.from.east")
    copies = {name for name in topic_names(west) if not name.startswith("__")}
    assert {name for name in copies if not name.endswith(".internal")} == {"orders.from.east"}
