"""headers.json and the first screen of a header audit. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from spark_jobs.headers import HeaderAudit, HeaderSums, HeaderVerdict
from spark_jobs.ranges import total
from spark_jobs.recreated_topics import RecreatedTopic
from spark_jobs.report.one_cluster import one_cluster_lines
from spark_jobs.report.recreated import recreated_document, recreated_lines
from spark_jobs.snapshot import ClusterSnapshot

MOST_WINDOWS = 1000
"""Windows that headers.json names; the others are counted."""
_SHOWN = 6

_MEANING = {
    HeaderVerdict.HEADERS_EQUAL: "batch headers and CRCs are equal; no record was compared",
    HeaderVerdict.CONTENT_EQUAL: "some headers differ; the records of those windows are equal by their hashes",
    HeaderVerdict.DIVERGED: "records differed in one look, or a CRC is wrong",
    HeaderVerdict.INCOMPLETE: "something could not be compared, or has to be compared by kaudit reconcile",
    HeaderVerdict.LAGGING: "nothing differs in what was compared; lag is above --max-lag, or nothing was compared",
    HeaderVerdict.ERROR: "a part could not be read",
}


def document(
    found: HeaderAudit,
    clusters: tuple[ClusterSnapshot, ClusterSnapshot],
    meta: Mapping[str, object],
    recreated: Sequence[RecreatedTopic] = (),
) -> dict[str, Any]:
    """Return headers.json; what is not the same for the same logs is under `meta`."""
    scope = found.scope
    return {
        "schema_version": 2,
        "level": "headers",
        "verdict": found.verdict.value,
        "meaning": _MEANING[found.verdict],
        "exit_code": int(found.exit_codes[0]),
        "exit_codes": [int(code) for code in found.exit_codes],
        "clusters": [
            {"name": each.name, "cluster_id": each.cluster_id, "prefix": each.prefix}
            for each in clusters
        ],
        "offsets": {
            "in_scope": found.in_scope,
            "compared": scope.counted,
            "aged_out": scope.aged_out,
            "lagging": scope.lagging,
            "not_read": found.not_read,
        },
        "read": [
            {"batches": each.batches, "records": each.records, "bytes": each.bytes}
            for each in _totals(found)
        ],
        "windows": {
            "offsets": found.window,
            "with_batches": len(found.sums[0].keys() | found.sums[1].keys()),
            "other_headers": len(found.other_headers),
            "compared_by_content": len(found.by_content),
            "other_content": len(found.diverged),
            "open": len(found.open_windows),
        },
        "other_headers": [list(key) for key in found.other_headers[:MOST_WINDOWS]],
        "other_content": [
            [*each.key, each.state.value] for each in found.other_content[:MOST_WINDOWS]
        ],
        "failures": [each.document() for each in found.failures[:MOST_WINDOWS]],
        "failed": len(found.failures),
        "recreated": recreated_document(recreated, clusters[1]),
        "meta": dict(meta),
    }


def json_text(made: Mapping[str, Any]) -> str:
    """Return *made* as it is written."""
    return json.dumps(made, indent=2, sort_keys=True) + "\n"


def screen(made: Mapping[str, Any], next_command: str) -> str:
    """Return the first screen of the document *made*."""
    offsets, windows, read = made["offsets"], made["windows"], made["read"]
    source, target = (each["name"] for each in made["clusters"])
    lines = [
        f"VERDICT  {made['verdict']}   {source} -> {target}   exit {made['exit_code']}",
        f"         {made['meaning']}",
        *one_cluster_lines(
            (source, target),
            (made["clusters"][0]["cluster_id"], made["clusters"][1]["cluster_id"]),
            made["clusters"][1]["prefix"],
        ),
        "level    headers and CRC-32C, valid for mirrors that keep bytes. A difference that CRC-32C does not",
        "         notice is not excluded: kaudit reconcile compares the records",
        f"offsets  in scope {offsets['in_scope']:,}: compared {offsets['compared']:,}, "
        f"aged out {offsets['aged_out']:,}, not read {offsets['not_read']:,}; lag {offsets['lagging']:,}",
        f"windows  {windows['with_batches']:,} with batches: {windows['other_headers']:,} have other headers; "
        f"of {windows['compared_by_content']:,} the content was compared, {windows['other_content']:,} differ, "
        f"{windows['open']:,} open",
        *(
            f"{name:<8} {each['batches']:,} batches, {each['records']:,} records, {each['bytes']:,} bytes as stored"
            for name, each in zip((source, target), read, strict=True)
        ),
    ]
    lines += [
        f"         {topic} p{partition}, offsets {window * windows['offsets']} to "
        f"{(window + 1) * windows['offsets'] - 1}: other {state}"
        for topic, partition, window, state in made["other_content"][:_SHOWN]
    ]
    lines += [f"unread   {_line(each)}" for each in made["failures"][:_SHOWN]]
    lines += recreated_lines(made["recreated"])
    lines.append(f"next     {next_command}")
    return "\n".join(lines)


def _totals(found: HeaderAudit) -> list[HeaderSums]:
    return [sum(each.values(), HeaderSums()) for each in found.sums]


def _line(each: Mapping[str, Any]) -> str:
    count = total([(each["from"], each["until"])])
    return (
        f"{each['cluster']} {each['topic']} p{each['partition']} from {each['from']} ({count:,} offsets): "
        f"{each['kind']}, {each['cause']}"
    )
