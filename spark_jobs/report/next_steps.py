"""What to do after an audit, by its verdict and findings: a line of text each, and the command if there is one.

In: the report document and the repair plan.  Out: `Step`s.  Pure.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from spark_jobs.report.document import Document


class Step(NamedTuple):
    """One thing to do."""

    text: str
    command: str = ""


def next_steps(document: Document, repair: Document, directory: str) -> list[Step]:
    """Return the steps in order; *directory* is the --out of the run."""
    steps = []
    totals = document["totals"]
    for side in ("source", "target"):
        # A reason begins with the name of the cluster: `spark_jobs.accounting`.
        if any(reason.startswith(f"{document[side]['name']} ") for reason in totals["unreadable"]):
            steps.append(
                Step(
                    f"Some offsets could not be read and have no verdict. Look for what is wrong with the {side}:",
                    shlex.join(["kclient", "doctor", "-b", document[side]["bootstrap"]]),
                )
            )
    if any(totals["findings"].values()):
        steps += _findings(document, repair, directory)
    if totals["aged_out"]:
        steps.append(
            Step(
                f"{totals['aged_out']:,} offsets were deleted from one log before they were compared, and never can "
                "be. Audit more often than the retention, with --since."
            )
        )
    if totals["lagging"]:
        steps.append(
            Step(
                f"The target lacks the last {totals['lagging']:,} offsets. Look whether the mirror advances:",
                "kmirror status MIRROR.properties",
            )
        )
    text = "Audit again, with the other options of this run (limits, accepted gaps, Spark) if it had any"
    if not document["limits"]["renumbered"]:
        text += "; this compares only what was not proven yet"
    steps.append(Step(f"{text}:", _again(document, directory)))
    return steps


def _findings(document: Document, repair: Document, directory: str) -> Iterator[Step]:
    where: Mapping[str, Any] = (document["evidence"] or {}).get("where", {})
    if where.get("source"):
        yield Step(
            f"{where['source']:,} records have changed in the source since the mirror copied them: decide first which "
            "log is right. A repair copies the source's."
        )
    yield Step(
        "See the records of a finding side by side, as both clusters hold them now:",
        explain_command(document, directory, 1),
    )
    if document["totals"]["findings"]["corrupt"]:
        yield Step(
            "For Avro values, name the fields that differ (the values are printed, too):",
            shlex.join(
                ["kaudit", "diff", "--run", directory, "--avro", "SCHEMA.avsc", *_key(document)]
            ),
        )
    if document["totals"]["findings"]["visibility"]:
        yield Step(
            "Records are equal, and read_committed consumers get them from one log only. Look for the wrong one: stop "
            "the leader of the partition in each cluster in turn and verify its log. If it is the target's, delete the "
            "topic there, and kmirror copies it again.",
            "kclient log verify LOG_DIRECTORY/TOPIC-PARTITION",
        )
    if repair["copy"]:
        ranges = sum(len(each["ranges"]) for each in repair["copy"])
        yield Step(
            f"Repair the mirror: {ranges:,} ranges of offsets are to be copied again. Without --execute this prints "
            "what it would do:",
            f"kmirror repair MIRROR.properties --plan {shlex.quote(f'{directory}/repair.json')}",
        )
    if repair["not_repairable"]:
        reasons = sorted({each["reason"] for each in repair["not_repairable"]})
        yield Step(f"A copy does not repair everything: {'; '.join(reasons)}.")


def explain_command(document: Document, directory: str, finding: int) -> str:
    """Return the command that prints the records of *finding*; with its key it compares the hashes, too."""
    words = ["kaudit", "explain", "--run", directory, "--finding", str(finding)]
    return shlex.join([*words, *_key(document)])


def _key(document: Document) -> Sequence[str]:
    """Return the option of a secret key, if the run had one; no report has the name of its file."""
    return ("--hash-key", "KEY_FILE") if document["hash_key"] else ()


def _again(document: Document, directory: str) -> str:
    words = ["kaudit", "reconcile"]
    for side in ("source", "target"):
        words += [f"--{side}", document[side]["bootstrap"]]
    words += ["--topics", str(document["meta"]["arguments"]["topics"]), "--out", directory]
    names = f"{document['source']['name']},{document['target']['name']}"
    if names != "source,target":
        words += ["--names", names]
    if document["target"]["prefix"]:
        words += ["--target-prefix", document["target"]["prefix"]]
    if document["limits"]["complete"]:
        words += ["--complete"]
    words += _key(document)
    words += ["--renumbered"] if document["limits"]["renumbered"] else ["--since", directory]
    return shlex.join(words)
