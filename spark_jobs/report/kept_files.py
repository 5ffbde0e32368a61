"""Reads what an earlier run kept: digests.parquet and its report. Refuses files that do not fit together.

docs/design/audit-incremental.md has what a later run may conclude from it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from kclient.types import TopicPartition
from spark_jobs.cut import OffsetRange
from spark_jobs.hash_key import PUBLIC, HashKey
from spark_jobs.kept import Earlier, Kept, KeptPartition, KeptRun, KeptWindow, Proof
from spark_jobs.report.digests import (
    DIGESTS,
    DIGESTS_VERSION,
    EQUAL,
    GONE,
    DigestRow,
    rows_of,
)
from spark_jobs.report.document import SCHEMA_VERSION
from spark_jobs.report.files import DIGESTS_NEXT, DIGESTS_REPORT, PREVIOUS
from spark_jobs.report.hashes import file_hash
from spark_jobs.verdict import ExitCode
from spark_jobs.windows import Digest


class KeptUnusable(Exception):
    """Nothing can be concluded from a kept run; the text names the directory and the reason."""


def load_kept(directory: Path, key: HashKey = PUBLIC) -> Kept:
    """Return what the last run in *directory* kept, for a run with hashes of *key*; raise KeptUnusable."""
    try:
        return _load(directory, key)
    except KeptUnusable as problem:
        raise KeptUnusable(f"--since {directory}: {problem}") from None
    except OSError as problem:
        raise KeptUnusable(f"--since {directory}: {problem}") from problem
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as problem:
        raise KeptUnusable(f"--since {directory}: {problem!r}") from problem


def _load(directory: Path, key: HashKey) -> Kept:
    text = (directory / DIGESTS_REPORT).read_bytes()
    document = json.loads(text)
    if document["schema_version"] != SCHEMA_VERSION or "files" not in document:
        raise KeptUnusable(f"{DIGESTS_REPORT} is no report of this version of kaudit")
    _check_chain(directory, document, text)
    content = kept_digests(directory, document)
    rows, about = rows_of(content)
    if about["version"] != str(DIGESTS_VERSION) or about["hash"] != key.function:
        raise KeptUnusable(
            f"{DIGESTS} has hash {about['hash']!r}, this run has {key.function!r}: hashes of different keys or "
            "versions cannot be compared (--hash-key)"
        )
    if ExitCode.INTERNAL in document["exit_codes"]:
        raise KeptUnusable("the self-test of that run failed")
    if document["limits"]["renumbered"]:
        raise KeptUnusable("that run was with --renumbered")
    window = document["windows"]["offsets"]
    runs = [KeptRun(**each) for each in (document["since"] or {"runs": []})["runs"]]
    meta = document["meta"]
    runs.append(
        KeptRun(meta["run_id"], meta["ended_at"], sha256(text).hexdigest(), meta["self_test"])
    )
    numbers: dict[str | None, int] = {each.run_id: n for n, each in enumerate(runs)}
    numbers[None] = len(runs) - 1
    return Kept(
        window,
        (document["source"]["cluster_id"], document["target"]["cluster_id"]),
        document["target"]["prefix"],
        tuple(runs),
        {
            each["topic"]: (each["topic_ids"]["source"], each["topic_ids"]["target"])
            for each in document["topics"]
        },
        _partitions(document, rows, numbers, window),
    )


def kept_digests(directory: Path, document: dict[str, Any]) -> bytes:
    """Return the digests of the report *document*; raise KeptUnusable if *directory* has others."""
    for name in (DIGESTS, DIGESTS_NEXT):
        with suppress(FileNotFoundError):
            content = (directory / name).read_bytes()
            if sha256(content).hexdigest() == document["files"][DIGESTS]:
                return content
    if not (directory / DIGESTS).exists():
        raise KeptUnusable(f"{DIGESTS} is missing")
    raise KeptUnusable(f"{DIGESTS} is not the file of its report: another SHA-256")


def _check_chain(directory: Path, document: dict[str, Any], text: bytes) -> None:
    """Raise KeptUnusable if the files in *directory* contradict each other."""
    last = directory / "report.json"
    if not last.exists():
        return
    if last.read_bytes() != text:
        later = json.loads(last.read_bytes())
        if "cause" in later:
            return  # A run that failed: it kept nothing.
        raise KeptUnusable(f"report.json is not the report of {DIGESTS}")
    for name, known in document["files"].items():
        if file_hash(directory / name) != known:
            raise KeptUnusable(f"{name} is not the file of its report: another SHA-256")
    previous = directory / PREVIOUS
    meta = document["meta"]
    if meta["previous_from"] == "out" and (
        not previous.exists() or file_hash(previous) != meta["previous"]
    ):
        raise KeptUnusable(f"the hash chain is broken: {PREVIOUS} is not the report before")


def _partitions(
    document: dict[str, Any],
    rows: list[DigestRow],
    numbers: dict[str | None, int],
    window: int,
) -> dict[TopicPartition, KeptPartition]:
    windows: dict[TopicPartition, list[KeptWindow]] = {}
    gone: dict[TopicPartition, list[Earlier]] = {}
    sources = {row[:2] + row[3:5]: row for row in rows if row.side == "source"}
    for row in rows:
        if row.side != "target" or row.class_ not in (EQUAL, GONE):
            continue
        tp, low, high = TopicPartition(*row[:2]), row.first_offset, row.last_offset + 1
        if sources[row[:2] + row[3:5]][5:] != row[5:]:
            raise KeptUnusable(f"{DIGESTS} has unequal digests of class {row.class_} at {tp} {low}")
        number = numbers[row.run_id]
        if row.class_ == GONE:
            gone.setdefault(tp, []).append(Earlier(low, high, number))
            continue
        digest = Digest(
            row.records or 0, row.bytes or 0, row.content or 0, row.placed or 0, row.max_timestamp
        )
        if digest.records and low // window != (high - 1) // window:
            raise KeptUnusable(f"{DIGESTS} has an extent of two windows at {tp} {low}")
        windows.setdefault(tp, []).append(KeptWindow(OffsetRange(*tp, low, high), digest, number))
    return {
        tp: KeptPartition(
            tuple(sorted(windows.get(tp, ()), key=lambda each: each.span)),
            tuple(gone.get(tp, ())),
            Proof(proof["end"], proof["source_epoch"], proof["target_epoch"]),
        )
        for topic in document["topics"]
        for each in topic["partitions"]
        for tp, proof in [(TopicPartition(topic["topic"], each["partition"]), each["proof"])]
    }
