"""timeline.csv and timeline.png: records of both clusters and findings per bucket of record time.

They are sums of the pass that made the digests. Lag is not in them: a run reads the source up to its cut.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from spark_jobs.report.document import Document
from spark_jobs.step_chart import Panel, chart

PANELS = 12
"""Topics in timeline.png; timeline.csv has all."""


def timeline_csv(document: Document) -> str:
    """Return a row for each bucket of each series; the first and last bucket have all earlier and later records too."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("what", "topic", "from_ms", "until_ms", "records"))
    line = document["timeline"]
    for what, topic, sums in _series(document):
        for number, records in enumerate(sums):
            start = line["first_ms"] + number * line["bucket_ms"]
            writer.writerow((what, topic, start, start + line["bucket_ms"], records))
    return text.getvalue()


def _series(document: Document) -> Iterator[tuple[str, str, list[int]]]:
    """Yield (source, target or a class of findings; the topic, empty for findings of all topics; sums)."""
    for side in ("source", "target"):
        for topic, sums in document["timeline"][side].items():
            yield side, topic, sums
    for kind, sums in document["timeline"]["findings"].items():
        yield kind, "", sums


def timeline_png(document: Document) -> bytes:
    """Return a picture of the first topics: records in the source and in the target, the difference shaded."""
    line = document["timeline"]
    topics = sorted(line["source"].keys() | line["target"].keys())
    names = {side: document[side]["name"] for side in ("source", "target")}
    return chart(
        [
            Panel(
                topic,
                line["bucket_ms"],
                {
                    names[side]: {
                        line["first_ms"] + number * line["bucket_ms"]: records
                        for number, records in enumerate(line[side].get(topic, [0]))
                    }
                    for side in ("source", "target")
                },
                shaded=True,
            )
            for topic in topics[:PANELS]
        ]
    )
