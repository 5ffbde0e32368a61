"""digests.parquet: the digests of one run, for later runs and other programs.

docs/design/audit-incremental.md has the columns. The same logs, options and kept run give the same bytes.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kclient.types import TopicPartition
from spark_jobs.cut import PartitionCut
from spark_jobs.hash_key import PUBLIC, HashKey
from spark_jobs.kept import compared
from spark_jobs.ranges import Ranges, intersect, subtract
from spark_jobs.reconcile import Reconciliation
from spark_jobs.windows import Digest, WindowResult, WindowState

DIGESTS = "digests.parquet"
DIGESTS_VERSION = 2

SIDES = ("source", "target")
EQUAL, UNREAD, COMPACTED, UNDECIDED, GONE = "equal", "unread", "compacted", "undecided", "gone"


class DigestRow(NamedTuple):
    """An extent of one partition on one side; its columns in the file."""

    topic: str
    partition: int
    side: str
    first_offset: int
    last_offset: int
    records: int | None
    bytes: int | None
    content: int | None
    placed: int | None
    max_timestamp: int | None
    class_: str
    """`equal`, the state of a window that differs, `unread`, `compacted`, `undecided` or `gone`."""
    run_id: str | None
    """The earlier run that compared it; None for the run of the file."""


def digest_rows(run: Reconciliation) -> list[DigestRow]:
    """Return the rows of *run*, by partition, offset and side."""
    results: dict[TopicPartition, list[WindowResult]] = defaultdict(list)
    for result in run.windows:
        results[TopicPartition(*result.key[:2])].append(result)
    rows: list[DigestRow] = []
    for cut in run.cuts:
        rows += _of_partition(run, cut, results[cut.topic_partition])
    return rows


def _of_partition(
    run: Reconciliation, cut: PartitionCut, results: Iterable[WindowResult]
) -> list[DigestRow]:
    tp, size = cut.topic_partition, run.options.window
    failed = run.account.failed.get(tp, [])
    carried = run.carried.carried.get(tp, ())
    taken: Ranges = run.carried.spans(tp)
    earlier = {each.span.low // size for each in carried if each.digest.records}
    rows: list[DigestRow] = []
    runs = () if run.options.kept is None else run.options.kept.runs
    aside = run.carried.aside.get(tp)
    if aside is not None:
        carried, results, taken = aside.windows, (), [(cut.low, cut.high)]
    for window in carried:
        rows += _both(tp, window.span[2:], window.digest, EQUAL, runs[window.run].run_id)
    for result in results:
        if result.key.window in earlier:
            continue
        low, high = result.key.window * size, (result.key.window + 1) * size
        span = max(low, cut.low), min(high, cut.high)
        if result.state is not WindowState.EQUAL:
            at_target = max(low, cut.low), min(high, cut.target_end)
            for side, part, digest in (
                ("source", span, result.source),
                ("target", at_target, result.target),
            ):
                if part[0] < part[1]:
                    rows.append(_row(tp, side, part, digest, result.state.value, None))
        elif span[0] < span[1]:
            name = UNREAD if intersect(failed, *span) else _equal(run, cut, span)
            rows += _both(tp, span, result.source, name, None)
        taken.append(span)
    for span in subtract([(cut.low, cut.high)], [*taken, *failed]):
        rows += _both(tp, span, Digest(), _equal(run, cut, (cut.low, cut.low)), None)
    lagging = run.account.partitions[tp].lagging > 0
    gone = compared(cut, run.carried, failed, lagging=lagging).gone
    if tp in run.carried.passed:
        gone = []  # A later run could not know that they were not replaced, either.
    for each in gone if aside is None else aside.gone:
        sums = (None,) * 5
        rows += [
            DigestRow(*tp, side, each.low, each.high - 1, *sums, GONE, runs[each.run].run_id)
            for side in SIDES
        ]
    return sorted(rows, key=lambda row: (row.first_offset, row.side))


def _equal(run: Reconciliation, cut: PartitionCut, span: tuple[int, int]) -> str:
    """Return the class of *span*, which is equal: `EQUAL`, unless no later run may use it."""
    policies = (each.configs.get(cut.topic, {}) for each in (run.source, run.target))
    if any("compact" in each.get("cleanup.policy", "") for each in policies):
        return COMPACTED  # Compaction may change it.
    return UNDECIDED if span[1] > cut.decided else EQUAL


def _both(
    tp: TopicPartition, span: tuple[int, int], digest: Digest, name: str, run_id: str | None
) -> Iterator[DigestRow]:
    for side in SIDES:
        yield _row(tp, side, span, digest, name, run_id)


def _row(
    tp: TopicPartition,
    side: str,
    span: tuple[int, int],
    digest: Digest,
    name: str,
    run_id: str | None,
) -> DigestRow:
    sums = digest.records, digest.bytes, digest.content, digest.placed, digest.latest
    return DigestRow(*tp, side, span[0], span[1] - 1, *sums, name, run_id)


def parquet_bytes(rows: Iterable[DigestRow], window: int, key: HashKey = PUBLIC) -> bytes:
    """Return *rows* as digests.parquet; *window* is the size of a window in offsets, *key* that of the hashes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    about = {"version": str(DIGESTS_VERSION), "hash": key.function, "window": str(window)}
    types = {
        "topic": pa.string(),
        "partition": pa.int32(),
        "side": pa.string(),
        "first_offset": pa.int64(),
        "last_offset": pa.int64(),
        "records": pa.int64(),
        "bytes": pa.int64(),
        "content": pa.uint64(),
        "placed": pa.uint64(),
        "max_timestamp": pa.int64(),
        "class_": pa.string(),
        "run_id": pa.string(),
    }
    each = list(rows)
    columns: list[tuple[Any, ...]] = list(zip(*each, strict=True)) if each else [()] * len(types)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types.values(), strict=True)]
    schema = pa.schema(
        [(name.rstrip("_"), kind) for name, kind in types.items()],
        {f"kaudit.{name}": text for name, text in about.items()},
    )
    written = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), written, compression="zstd")
    return written.getvalue()


def rows_of(content: bytes) -> tuple[list[DigestRow], Mapping[str, str]]:
    """Return the rows of digests.parquet, and its `version`, `hash` and `window`; raise ValueError for another file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(io.BytesIO(content))
    except (pa.ArrowInvalid, OSError) as problem:
        raise ValueError(f"not a Parquet file: {problem}") from problem
    about = {
        name.decode().removeprefix("kaudit."): text.decode()
        for name, text in (table.schema.metadata or {}).items()
        if name.startswith(b"kaudit.")
    }
    names = [name.rstrip("_") for name in DigestRow._fields]
    if table.column_names != names or about.keys() != {"version", "hash", "window"}:
        raise ValueError("not written by kaudit")
    columns = (table.column(name).to_pylist() for name in names)
    return [DigestRow(*each) for each in zip(*columns, strict=True)], about
