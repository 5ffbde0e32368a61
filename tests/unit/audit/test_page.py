"""report.html: its links resolve, its commands are those for the finding, and its steps are those for the verdict."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import pytest

from kclient.types import TopicPartition
from spark_jobs.comparison import Options
from spark_jobs.findings import FindingClass
from spark_jobs.report.contents import AvroFields, Report
from spark_jobs.report.next_steps import next_steps
from spark_jobs.report.page import render_page
from spark_jobs.report.pictures import PALETTE
from spark_jobs.report.screen import attention, first_screen, remarks, since_lines
from spark_jobs.windows import WindowState
from tests.kit.audit_faults import EVERY
from tests.kit.audit_logs import audit
from tests.kit.audit_reports import (
    audited,
    damaged_report,
    intact_log,
    report_of,
    report_with_every_remark,
)

TP = TopicPartition("t", 0)


def damaged() -> Report:
    return damaged_report(TP)


def text_of(page: str) -> str:
    """The text of a page as a reader sees it."""
    return unescape(re.sub(r"<[^>]+>", "", page))


@pytest.mark.parametrize("kind", EVERY)
def test_every_link_of_the_page_resolves(kind: str) -> None:
    report = report_of(audited(1, kind))
    page = render_page(report, directory="out")
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    links = re.findall(r'href="([^"]*)"', page)
    assert {link[1:] for link in links} <= set(ids)
    assert all(link.startswith("#") for link in links)
    differing = len(report.document["windows"]["states"])
    assert bool(re.search(r'<a href="#[^"]+"><rect', page)) is (differing > 0)


def test_the_page_has_every_remark_of_the_first_screen() -> None:
    """It had neither what of the ledger was refused nor that an earlier copy of a topic was not compared."""
    report = report_with_every_remark()
    report.document["not_failed_on"] = {"corrupt": 1}
    report.document["evidence"] = {
        "topics": ["e"], "problem": "", "where": {"source": 1, "target": 2}, "unknown_because": {},
    }  # fmt: skip
    text = text_of(render_page(report, directory="out"))
    document = report.document
    shown = [*attention(document), *since_lines(document["since"]), *remarks(document)]
    for line in shown:
        assert line.strip() in text
    for part in (
        "2 refused",
        "not compared: a at the target",
        "an earlier look stands",
        "changed since the copy",
        "read in full",
        "found and not failed on",
    ):
        assert any(part in line for line in shown), part


def test_what_differs_beside_the_records_is_linked_at_the_top_of_the_page() -> None:
    report = report_with_every_remark()
    report.document["drift"] = [
        {"topic": "t", "config": "retention.ms", "source": "1", "target": "2"}
    ]
    report.document["partition_drift"] = [{"topic": "t", "partition": 3, "only_at": "target"}]
    page = render_page(report, directory="out")
    facts = page[: page.index("<h2>")]
    assert re.findall(r'href="#(settings|partitions)"', facts) == ["partitions", "settings"]
    assert set(re.findall(r'href="#([^"]*)"', page)) <= set(re.findall(r'\bid="([^"]+)"', page))


def test_a_window_links_to_its_first_finding() -> None:
    page = render_page(damaged(), directory="out")
    cells = re.findall(r'<a href="#([^"]+)"><rect class="(\w+)"[^>]*><title>(.*?):', page)
    assert cells == [("finding-1", "count", "t p0"), ("finding-2", "content", "t p0")]
    first, second = re.findall(r"<title>t p0: (offsets \d+ to \d+): other", page)
    assert (first, second) == ("offsets 10 to 19", "offsets 30 to 39")


def test_a_finding_has_the_lines_that_print_its_records() -> None:
    text = text_of(render_page(damaged(), directory="out dir"))
    assert "kclient consume -b east:9092 t -p 0 -o 33:34\n" in text
    assert "kclient consume -b west:9092 copy.t -p 0 -o 33:34\n" in text
    assert "kaudit explain --run 'out dir' --finding 2\n" in text


def test_the_page_answers_when_it_began() -> None:
    text = text_of(render_page(damaged(), directory="out"))
    assert "first finding is of 1970-01-01 00:00:13, the last of 1970-01-01 00:00:32 UTC." in text
    assert "1970-01-01 00:00:15" in text, "a tick of the axis"
    assert "When did it begin" not in text_of(
        render_page(report_of(audit({TP: intact_log()}, {TP: intact_log()})), directory="out")
    )


@pytest.mark.parametrize(
    ("renumbered", "line"),
    [
        (
            False,
            "Compared is also whether a consumer with isolation.level=read_committed gets a record",
        ),
        (
            True,
            "Compared are the records that a consumer with isolation.level=read_committed gets.",
        ),
    ],
)
def test_the_page_has_what_became_of_transactions(renumbered: bool, line: str) -> None:
    run = audit({TP: intact_log()}, {TP: intact_log()}, Options(window=10, renumbered=renumbered))
    assert line in text_of(render_page(report_of(run), directory="out"))


def test_the_avro_fields_that_differ_are_named() -> None:
    report = damaged()
    named = Report(
        report.document,
        report.lines,
        report.repair,
        report.digests,
        {2: AvroFields("Avro field <b>", "a b.avsc")},
    )
    page = render_page(named, directory="out")
    assert "differs in value: <strong>Avro field &lt;b&gt;</strong>" in page
    assert "copy.t -p 0 -o 33:34 --avro 'a b.avsc'\n" in text_of(page)


def steps_of(report: Report) -> list[str]:
    return [step.command or step.text for step in next_steps(report.document, report.repair, "out")]


def test_the_next_steps_after_findings_are_to_look_to_repair_and_to_audit_again() -> None:
    assert steps_of(damaged()) == [
        "kaudit explain --run out --finding 1",
        "kaudit diff --run out --avro SCHEMA.avsc",
        "kmirror repair MIRROR.properties --plan out/repair.json",
        "kaudit reconcile --source east:9092 --target west:9092 --topics t --out out "
        "--names east,west --target-prefix copy. --since out",
    ]


def test_the_commands_that_print_a_finding_have_the_option_of_a_secret_key() -> None:
    """Without it they cannot show whether a record has changed since the audit."""
    report = damaged()
    keyed = report.document | {"hash_key": "name of the key"}
    assert [step.command for step in next_steps(keyed, report.repair, "out")[:2]] == [
        "kaudit explain --run out --finding 1 --hash-key KEY_FILE",
        "kaudit diff --run out --avro SCHEMA.avsc --hash-key KEY_FILE",
    ]
    shown = first_screen(keyed, report="out/report.html", findings=report.first_findings(1))
    assert shown.splitlines()[-1].endswith("--run out --finding 1 --hash-key KEY_FILE")
    page = text_of(render_page(replace(report, document=keyed), directory="out dir"))
    assert "kaudit explain --run 'out dir' --finding 2 --hash-key KEY_FILE\n" in page


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        ("unreadable", "kclient doctor -b "),
        ("extra", "kaudit explain"),
        ("aged_at_source", "offsets were"),
    ],
)
def test_the_first_step_is_about_the_verdict(kind: str, first: str) -> None:
    assert first in steps_of(report_of(audited(1, kind)))[0]


@pytest.mark.parametrize(
    ("names", "unread"),
    [
        (("east", "west"), "east"),
        (("east", "west"), "west"),
        (("east", "east-2"), "east-2"),
        (("source-2", "source"), "source"),
    ],
)
def test_an_unreadable_cluster_is_named_under_any_name(names: tuple[str, str], unread: str) -> None:
    document = report_of(audited(1, "unreadable")).document
    for side, name in zip(("source", "target"), names, strict=True):
        document[side].update(name=name, bootstrap=f"{name}:9092")
    document["totals"]["unreadable"] = [f"{unread} t-0 offsets 3 to 5: a fault"]
    steps = next_steps(document, {"copy": [], "not_repairable": []}, "out")
    doctor = [step.command for step in steps if "doctor" in step.command]
    assert doctor == [f"kclient doctor -b {unread}:9092"]


def test_after_a_proof_only_the_next_audit_is_left() -> None:
    (step,) = steps_of(report_of(audit({TP: intact_log()}, {TP: intact_log()})))
    assert step.startswith("kaudit reconcile ")


def test_every_class_and_state_has_a_colour() -> None:
    names = {each.value for each in FindingClass} | {each.value for each in WindowState}
    assert names <= PALETTE.keys()
