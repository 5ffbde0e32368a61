"""The first screen: at most 40 lines, verdict first, every number with its denominator, the next command last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kclient.mirror_ledger import LINEAGE, lineage_topic
from spark_jobs.report.document import Document, lacks_log_end
from spark_jobs.report.next_steps import explain_command
from spark_jobs.report.one_cluster import one_cluster_lines
from spark_jobs.report.recreated import recreated_lines
from spark_jobs.visibility import OPEN_AT_SOURCE, OPEN_AT_TARGET

LINES = 40
_ROWS_SHOWN = 8
"""Rows at most of the worst partitions, and of the first findings; fewer where the screen has many remarks."""
_REFUSED_SHOWN = 3
_EMPTY_SHOWN = 3


def first_screen(
    document: Document, *, report: str, findings: Sequence[dict[str, Any]] = ()
) -> str:
    """Return the screen as plain text; *report* is the path of the page, *findings* the first ones."""
    totals = document["totals"]
    meta = document["meta"]
    found = totals["findings"]
    source, target = document["source"], document["target"]
    scope, unknown, least = totals["in_scope"], totals["unknown_partitions"], _at_least(document)
    head = [
        f"VERDICT  {document['verdict']:<12}  {source['name']} -> {target['name']}   "
        f"run {meta['run_id']}   cut {meta['started_at']}   exit {document['exit_code']}",
        f"verified {_share(totals['verified'], scope, least)}   "
        f"compared {_share(totals['compared'], scope, least)}   "
        f"in scope {least}{_n(scope)} offsets, {_n(totals['empty'])} of them without a record on either side",
        f"explained {_n(totals['explained'])}   not compared: aged out {_n(totals['aged_out'])}   "
        f"not read {_n(totals['not_read'])}   lag {least}{_n(totals['lagging'])}",
        *(
            [f"not read: all of {_n(unknown)} partitions, which have no known offsets"]
            if unknown
            else []
        ),
        *since_lines(document["since"]),
        _classes(found),
    ]
    drift = document["drift"]
    partitions = document["partition_drift"]
    state = [
        *(f"unreadable  {reason}" for reason in totals["unreadable"][:4]),
        f"equal or explained up to:  {_proven(document)}",
        f"drift: partitions {len(partitions)}{_partition_drift(partitions)}   configs {len(drift)}{_drift(drift)}",
    ]
    roots, read = document["roots"], document["read"]
    end = [
        "",
        f"roots   source {roots['source']}   target {roots['target']}   self-test {meta['self_test']}",
        f"read    {_n(read['records'])} records, {_size(read['bytes'])} in {meta['total_seconds']:.1f} s   "
        f"windows {_n(read['windows'])}, drilled {_n(read['windows_drilled'])}",
        f"report  {report}",
    ]
    if findings:
        explain = explain_command(document, str(Path(report).parent), findings[0]["seq"])
        end.append(f"next    {explain}")
    room = LINES - len(head) - len(state) - len(end)
    has_worst = any(found.values())
    # An empty line, a heading and a row each; the worst partitions may have a line about those that are not shown.
    reserved = 4 * has_worst + 3 * bool(findings)
    shown = _at_most([*attention(document), *remarks(document)], room - reserved)
    rows = min(
        _ROWS_SHOWN, 1 + (room - reserved - len(shown)) // max(1, has_worst + bool(findings))
    )
    tables = []
    if has_worst:
        tables += ["", f"{'worst':<8}{'topic':<20}{'p':>4}  {'class':<12}{'n':>7}  first offset"]
        tables += _worst(document, rows)
    if findings:
        tables += ["", "first findings"]
        tables += [finding_line(each) for each in findings[:rows]]
    return "\n".join([*head, *shown, *state, *tables, *end])


def _at_least(document: Document) -> str:
    """Return what stands before lag and scope: "" if the log ends of all partitions are known."""
    is_open = any(lacks_log_end(each) for of in document["topics"] for each in of["partitions"])
    return "at least " if is_open else ""


def _at_most(remarks: list[str], room: int) -> list[str]:
    """Return the first *remarks*, and how many more there are, on *room* lines."""
    if len(remarks) <= room:
        return remarks
    left_out = len(remarks) - room + 1
    return [*remarks[: room - 1], f"and {left_out} more lines like these: see report.json"]


def _worst(document: Document, shown: int) -> list[str]:
    rows = [
        (count, topic["topic"], partition["partition"], name, partition["first_of_class"][name])
        for topic in document["topics"]
        for partition in topic["partitions"]
        for name, count in partition["findings"].items()
    ]
    rows.sort(key=lambda row: (-row[0], row[1:4]))
    lines = [
        f"{'':<8}{topic:<20}{partition:>4}  {name:<12}{_n(count):>7}  {_n(first)}"
        for count, topic, partition, name, first in rows[:shown]
    ]
    if len(rows) > shown:
        lines.append(f"{'':<8}and {len(rows) - shown} more rows in the report")
    return lines


def finding_line(finding: dict[str, Any]) -> str:
    """Return one finding as a line of text."""
    where = f"{finding['topic']} p{finding['partition']}"
    source, target, count = finding["src_offset"], finding["dst_offset"], finding["records"]
    until = f" to {finding['last_offset']}" if finding["last_offset"] is not None else ""
    unit = "offsets" if finding["field"] in (OPEN_AT_SOURCE, OPEN_AT_TARGET) else "records"
    what = {
        "missing": f"source offset {source} is not in the target",
        "truncated": f"source offsets {source}{until} ({_n(count)} records) are not in the target",
        "gap": f"offsets {source}{until} are in neither log: deleted at the source before they were copied",
        "extra": f"target offset {target}{until} ({_n(count)} records) is not in the source",
        "duplicate": f"target offset {target} repeats {finding['first_dst_offset']}",
        "corrupt": f"target offset {target} differs from source offset {source} in {finding['field']}",
        "reordered": f"source offset {source} is at target offset {target}, moved by {finding['distance']}",
        "shifted": f"{_n(count)} records from source offset {source} on are moved by {finding['distance']} offsets",
        "misrouted": f"source offset {source} is in target partition {finding['dst_partition']}, offset {target}",
        "visibility": f"target offset {target}{until} ({_n(count)} {unit}): {finding['field']}",
        "undecodable": f"offsets {target if source is None else source}{until}: {finding['field']}",
    }[finding["class"]]
    if count > 1:
        records = f"{_n(count)} records from {{}} offset {{}}{until}"
        what = {
            "missing": f"{records.format('source', source)} are not in the target",
            "duplicate": f"{records.format('target', target)} are copies of others",
            "corrupt": f"{records.format('target', target)} differ in {finding['field']}",
            "reordered": f"{records.format('target', target)} are at other places at the source",
        }.get(finding["class"], what)
    return f"        #{finding['seq']:<4} {finding['class']:<11} {where}: {what}"


def _classes(found: dict[str, int]) -> str:
    """Return the counts of the classes: those that occur, then the names of the others."""
    present = [f"{name} {_n(count)}" for name, count in found.items() if count]
    absent = [name for name, count in found.items() if not count]
    if not present:
        return f"findings 0 of every class: {', '.join(absent)}"
    return "   ".join(present) + (f"   none of: {', '.join(absent)}" if absent else "")


def attention(document: Document) -> list[str]:
    """Return a line if source and target are one cluster, and one about what was found and does not fail the run."""
    source, target = document["source"], document["target"]
    lines = one_cluster_lines(
        (source["name"], target["name"]),
        (source["cluster_id"], target["cluster_id"]),
        target["prefix"],
    )
    if ignored := document["not_failed_on"]:
        found = ", ".join(f"{name} {_n(count)}" for name, count in ignored.items())
        lines.append(f"found and not failed on (--fail-on): {found}")
    return lines


def remarks(document: Document) -> list[str]:
    """Return lines about what was accepted, explained, looked at again, and not compared."""
    lines = []
    totals, limits = document["totals"], document["limits"]
    accounted = totals["compared"] + totals["explained"]
    below = accounted < totals["in_scope"] and not _at_least(document)
    if below and limits["min_coverage"] < 1:
        lines.append(
            f"compared or explained {_percent(accounted, totals['in_scope'])}, "
            f"accepted from {100 * limits['min_coverage']:g} % on (--min-coverage)"
        )
    lines += _empty(document)
    if document["explained"]:
        causes = ", ".join(f"{cause} {_n(count)}" for cause, count in document["explained"].items())
        lines.append(f"explained gaps: {causes}")
    undecided = document["read_committed"]
    if undecided["undecided_offsets"]:
        lines.append(
            f"{_n(undecided['undecided_offsets'])} offsets of {_n(undecided['undecided_partitions'])} partitions: the "
            "target lacks the end of their transactions; compared as records, not as read_committed consumers get them"
        )
    lines += _settle(document["settle"])
    lines += recreated_lines(document["recreated"], _n)
    return lines + _ledger(document["ledger"]) + _evidence(document["evidence"])


def _empty(document: Document) -> list[str]:
    """Return lines about the partitions of which neither log has an offset."""
    found = [
        (f"{topic['topic']} p{each['partition']}", each)
        for topic in document["topics"]
        for each in topic["partitions"]
        if not (each["in_scope"] or each["lagging"] or each["unreadable"])
    ]
    if not found:
        return []
    names = ", ".join(name for name, _ in found[:_EMPTY_SHOWN])
    more = ", ..." if len(found) > _EMPTY_SHOWN else ""
    lines = [
        f"neither log has an offset: {_n(len(found))} partitions ({names}{more}), nothing of them was compared"
    ]
    unequal = [(name, each["log_ends"]) for name, each in found if each["unequal_ends"]]
    lines += [
        f"  {name} ends at {_n(ends['source'])} in {document['source']['name']} "
        f"and at {_n(ends['target'])} in {document['target']['name']}"
        for name, ends in unequal[:_EMPTY_SHOWN]
    ]
    if len(unequal) > _EMPTY_SHOWN:
        lines.append(f"  {_n(len(unequal) - _EMPTY_SHOWN)} more of them have other ends")
    return lines


def _settle(settle: dict[str, Any]) -> list[str]:
    """Return lines about the later looks at what differed, if there were any."""
    lines = []
    if settle["rounds"]:
        gone = ", ".join(
            f"{name} {_n(count)}" for name, count in settle["vanished"].items() if count
        )
        lines.append(
            f"looked again at {_n(settle['partitions'])} partitions, {settle['rounds']} of at most "
            f"{settle['max_rounds']} times, each after {settle['seconds']:g} s: "
            f"{f'vanished {gone}' if gone else 'no finding vanished'}"
        )
    if settle["equal_by_record"]:
        lines.append(
            "windows with other digests, and equal records when they were read after that: "
            f"{_n(settle['equal_by_record'])}"
        )
    if settle["read_later"]:
        lines.append(
            f"partitions that only a later look could read in full: {_n(settle['read_later'])}"
        )
    lines += [
        f"  an earlier look stands: {each['topic']} p{each['partition']}, {each['reason']}"
        for each in settle["standing_partitions"][:2]
    ]
    if settle["standing"] > 2:
        lines.append(f"  an earlier look stands: {_n(settle['standing'] - 2)} more partitions")
    if settle["problem"]:
        lines.append(f"no later look, and the earlier one stands: {settle['problem']}")
    return lines


def since_lines(since: dict[str, Any] | None) -> list[str]:
    """Return lines about what was compared in earlier runs and not in this one."""
    if since is None:
        return []
    offsets, recheck, oldest = since["offsets"], since["recheck"], since["oldest"]
    earlier = f"in earlier runs {_n(offsets['earlier'])}"
    if oldest is not None:
        earlier += f" (oldest: run {oldest['run_id']}, ended {oldest['ended_at']})"
    lines = [
        f"compared or explained in this run {_n(offsets['now'])} offsets, {earlier}, "
        f"in earlier runs and deleted since {_n(offsets['gone'])}, never {_n(offsets['never'])}",
        f"re-checked {_n(recheck['windows'])} of {_n(recheck['of_windows'])} kept windows; "
        "a change of stored bytes in the others shows when they are re-checked (--recheck)",
    ]
    refused = since["refused"]
    lines += [
        f"  read in full: {each['topic']} p{each['partition']}, {each['reason']}"
        for each in refused[:_REFUSED_SHOWN]
    ]
    if len(refused) > _REFUSED_SHOWN:
        lines.append(f"  read in full: {len(refused) - _REFUSED_SHOWN} more partitions")
    return lines


def _ledger(ledger: dict[str, Any] | None) -> list[str]:
    """Return lines about the mirror's gap ledger, if the target has one."""
    if ledger is None or not (ledger["topics"] or ledger["problem"]):
        return []
    if ledger["problem"]:
        return [f"gap ledger was not read, and explains nothing: {ledger['problem']}"]
    entries, used, refused = (_n(ledger[name]) for name in ("entries", "used", "refused"))
    counts = f"gap ledger: {entries} entries, {used} used, {refused} refused"
    if ledger["unreadable"]:
        counts += f", {ledger['unreadable']} records are no entries"
    return [
        f"{counts} ({', '.join(ledger['topics'])})",
        *(
            f"  refused {each['topic']} p{each['partition']} {each['from']} to {each['until']}: {each['reason']}"
            for each in ledger["refused_entries"][:2]
        ),
        *(f"  {_change(each)}" for each in ledger["changes"][:2]),
    ]


def _evidence(evidence: dict[str, Any] | None) -> list[str]:
    """Return a line about which log the mirror's evidence shows as changed, if there are findings."""
    if evidence is None or not (evidence["topics"] or evidence["problem"]):
        return []
    if evidence["problem"]:
        return [f"evidence of the mirror was not read: {evidence['problem']}"]
    shown = [f"{name} {_n(count)}" for name, count in evidence["where"].items() if count]
    if not shown:
        return []
    because = ", ".join(f"{why} {_n(count)}" for why, count in evidence["unknown_because"].items())
    return [
        f"changed since the copy: {'   '.join(shown)}{f' ({because})' if because else ''}",
    ]


def _change(entry: dict[str, Any]) -> str:
    """Return what an entry of the ledger that is no gap states."""
    place = f"{entry['topic']} p{entry['partition']}"
    if entry["type"] == LINEAGE:
        after = entry["source_topic_id_after"]
        return f"{place} ends at {entry['from']}: topic id {after} is copied to {lineage_topic(entry['topic'], after)}"
    span = f"{entry['from']} to {entry['until']}"
    return f"{place}: kmirror exported and removed {span} of topic id {entry['target_topic_id']}"


def _proven(document: Document) -> str:
    parts = []
    for topic in document["topics"]:
        unknown = topic["unknown_partitions"]
        partial = [
            p for p in topic["partitions"] if p["proven_up_to"] < max(p["high"], p["source_end"])
        ]
        if not topic["in_scope"] and not topic["lagging"]:
            parts.append(f"{topic['topic']} {'not read' if unknown else 'nothing to compare'}")
            continue
        if not topic["compared"]:
            done = "nothing compared" if topic["explained"] else "nothing proven"
        elif partial:
            first = min(partial, key=lambda p: p["proven_up_to"] - p["high"])
            more = f" (+{len(partial) - 1} partitions)" if len(partial) > 1 else ""
            done = (
                f"p{first['partition']} {_from(first)}-> {_n(first['proven_up_to'])} "
                f"of {_n(max(first['high'], first['source_end']))}{more}"
            )
        elif topic["explained"]:
            done = _parts_of(topic["verified"], topic["explained"], topic["in_scope"])
        else:
            done = _share(topic["verified"], topic["in_scope"], "at least " if unknown else "")
        unread = f", {_n(unknown)} partitions not read" if unknown else ""
        parts.append(f"{topic['topic']} {done}{unread}")
    shown = parts[:6]
    return "   ".join(shown) + (f"   and {len(parts) - 6} more" if len(parts) > 6 else "")


def _parts_of(verified: int, explained: int, scope: int) -> str:
    """Return the shares of the two kinds of offsets of which a topic has a proof."""
    return (
        f"{_percent(verified, scope)} equal, {_percent(explained, scope)} explained "
        f"({_n(verified)} and {_n(explained)} of {_n(scope)})"
    )


def _from(partition: dict[str, Any]) -> str:
    """Return where the proof begins, if offsets below it have aged out."""
    return f"from {_n(partition['low'])} " if partition["low"] > partition["start"] else ""


def _partition_drift(drift: Sequence[dict[str, Any]]) -> str:
    if not drift:
        return ""
    first = drift[0]
    more = ", ..." if len(drift) > 1 else ""
    return f" ({first['topic']} p{first['partition']} only at the {first['only_at']}{more})"


def _drift(drift: Sequence[dict[str, Any]]) -> str:
    if not drift:
        return ""
    first = drift[0]
    return (
        f" ({first['topic']}: {first['config']} {first['source']} / {first['target']}"
        f"{', ...' if len(drift) > 1 else ''})"
    )


def _n(number: int | None) -> str:
    return "-" if number is None else f"{number:,}".replace(",", " ")


def _share(part: int, whole: int, least: str) -> str:
    """Return the share of *part*; without a percentage if *least* states that the *whole* is a lower bound."""
    if least:
        return f"{_n(part)} of {least}{_n(whole)}"
    if not whole:
        return "nothing (0 of 0)"
    return f"{_percent(part, whole)} ({_n(part)} of {_n(whole)})"


def _percent(part: int, whole: int) -> str:
    if not whole:
        return "- %"
    if part < whole:
        # Never rounded up to "100 %" while something was not verified.
        return f"{min(99.99, int(10_000 * part / whole) / 100):.2f} %"
    return "100 %"


def _size(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.1f} {unit}" if unit != "B" else f"{size} B"
        size /= 1000
    raise AssertionError("unreachable")
