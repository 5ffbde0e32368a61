"""`kclient log`: dump and verify the files of a log directory; no broker is contacted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from kclient.cli.commands import with_settings
from kclient.cli.exit_codes import FAILED, UNHEALTHY
from kclient.cli.help import Group
from kclient.cli.output import print_error, show
from kclient.cli.run import run_offline
from kclient.cli.settings import Settings

_FILES = click.argument(
    "paths",
    nargs=-1,
    required=True,
    metavar="FILE...",
    type=click.Path(exists=True, path_type=Path),
)
_MIB = 1 << 20


@click.group(cls=Group)
def log() -> None:
    """Dump or verify files of a log directory, without a broker.

    FILE is a segment (.log), an index (.index, .timeindex, .txnindex), a .snapshot, a checkpoint, or a directory of
    such files.
    """


@log.command(
    "dump",
    examples=(
        "kclient log dump orders-0/00000000000000000000.log",
        "kclient log dump --data orders-0",
        "kclient log dump --records orders-0 --format jsonl",
    ),
)
@_FILES
@click.option(
    "-r", "--records", "--deep-iteration", "deep", is_flag=True, help="Print the records, too."
)
@click.option(
    "-d", "--data", "--print-data-log", "data", is_flag=True, help="Print keys and values, too."
)
@click.option(
    "--skip-record-metadata", is_flag=True, help="With --data: print keys and values only."
)
@click.option(
    "--index-sanity-check", is_flag=True, help="Check only whether a broker would build it again."
)
@click.option("--verify-index-only", is_flag=True, help="Compare indexes, without their entries.")
@click.option("--max-bytes", type=click.IntRange(0), help="Read this much of each segment.")
@with_settings
def dump(
    settings: Settings,
    paths: tuple[Path, ...],
    deep: bool,
    data: bool,
    skip_record_metadata: bool,
    index_sanity_check: bool,
    verify_index_only: bool,
    max_bytes: int | None,
) -> None:
    """Print files of a log directory, in the lines of kafka-dump-log.

    Exit code 4 if a file, or the end of one, cannot be read. kclient log verify checks more.
    """
    from kclient.log_files.dump import Dump, DumpOptions, is_known, text_of_bytes
    from kclient.log_files.verify import in_order

    options = DumpOptions(
        deep_iteration=deep,
        print_data=data,
        skip_record_metadata=skip_record_metadata,
        index_sanity_check=index_sanity_check,
        verify_index_only=verify_index_only,
        max_bytes=max_bytes,
        parse=text_of_bytes,
    )
    if settings.format in ("csv", "wide"):
        raise click.UsageError(f"log dump has no {settings.format}: --format jsonl has every field")

    def main() -> int:
        files = in_order(_files(paths, is_known))
        if not settings.is_text:
            return _dump_rows(settings, files, with_records=deep or data, max_bytes=max_bytes)
        found = Dump(options)
        failed = False
        for path in files:
            try:
                for line in found.lines(path):
                    click.echo(line)
            except BrokenPipeError:
                raise
            except OSError as problem:
                failed = True
                print_error(f"{problem.filename or path}: {problem.strerror}")
        for line in found.findings():
            click.echo(line, err=True)
        return UNHEALTHY if found.unreadable or found.torn else FAILED if failed else 0

    run_offline(main)


def _files(paths: Sequence[Path], is_known: Callable[[Path], bool]) -> list[Path]:
    """Return the files of *paths*: each file, and the known ones of each directory."""
    files = []
    for path in paths:
        if path.is_dir():
            inside = sorted(each for each in path.rglob("*") if each.is_file() and is_known(each))
            if not inside:
                raise click.UsageError(
                    f"{path} has no file of a log: no segment, index or checkpoint"
                )
            files += inside
        elif is_known(path):
            files.append(path)
        else:
            raise click.UsageError(
                f"{path} is no file of a log directory: .log, .index, .timeindex, .txnindex, .snapshot,"
                " *-checkpoint, partition.metadata or meta.properties"
            )
    return files


def _dump_rows(
    settings: Settings, files: Sequence[Path], *, with_records: bool, max_bytes: int | None
) -> int:
    """Print the content of *files* as JSON: a row for each batch or entry, with the path of its file."""
    unreadable: list[str] = []
    rows = (
        {"file": str(path), **row}
        for path in files
        for row in _rows(path, with_records, max_bytes, unreadable)
    )
    if settings.format == "jsonl":
        for row in rows:
            click.echo(json.dumps(row))
    else:
        show(list(rows), (), settings.format)
    for line in unreadable:
        print_error(line)
    return UNHEALTHY if unreadable else 0


def _rows(
    path: Path, with_records: bool, max_bytes: int | None, unreadable: list[str]
) -> Iterator[dict[str, Any]]:
    from kclient.log_files import entries
    from kclient.log_files.segment import SUFFIX, Segment
    from kclient.wire.errors import KafkaError

    read: dict[str, Callable[[Path], Sequence[Any]]] = {
        entries.OFFSET_INDEX: entries.offset_index,
        entries.TIME_INDEX: entries.time_index,
        entries.TRANSACTION_INDEX: entries.transaction_index,
        entries.SNAPSHOT: entries.snapshot,
        entries.LEADER_EPOCHS: entries.leader_epochs,
        **dict.fromkeys(entries.OFFSET_CHECKPOINTS, entries.offset_checkpoint),
    }
    try:
        if path.suffix == SUFFIX:
            segment = Segment(path, max_bytes)
            for batch in segment.batches():
                yield _batch_row(batch, with_records, unreadable, path)
            if segment.rest is not None and max_bytes is None and not segment.is_preallocated:
                unreadable.append(
                    f"{path}: byte {segment.end}: {segment.rest_bytes} bytes at the end are no batch: {segment.rest}"
                )
        elif path.name in entries.TEXT_FILES:
            yield {
                "lines": path.read_text(encoding="utf-8", errors="backslashreplace").splitlines()
            }
        else:
            found = read.get(path.name) or read[path.suffix]
            for entry in found(path):
                yield entry._asdict()
    except BrokenPipeError:
        raise
    except (KafkaError, OSError) as problem:
        unreadable.append(f"{path}: {getattr(problem, 'message', None) or problem}")


def _batch_row(batch: Any, with_records: bool, unreadable: list[str], path: Path) -> dict[str, Any]:
    from kclient.cli.formats import encoded
    from kclient.wire.compression import Codec
    from kclient.wire.errors import KafkaError
    from kclient.wire.record_reader import decode_batch

    info = batch.info
    row = {
        "base_offset": info.base_offset,
        "last_offset": info.last_offset,
        "count": info.record_count,
        "base_sequence": info.base_sequence,
        "last_sequence": info.last_sequence,
        "producer_id": info.producer_id,
        "producer_epoch": info.producer_epoch,
        "leader_epoch": info.leader_epoch,
        "is_transactional": info.is_transactional,
        "is_control": info.is_control,
        "delete_horizon": info.base_timestamp if info.has_delete_horizon else None,
        "position": batch.position,
        "timestamp_type": int(info.log_append_time),
        "max_timestamp": info.max_timestamp,
        "size": info.size,
        "codec": Codec(info.codec).name.lower() if info.codec <= max(Codec) else info.codec,
        "crc": info.crc,
        "is_valid": batch.wrong is None,
    }
    if with_records:
        try:
            row["records"] = [
                {
                    "offset": record.offset,
                    "timestamp": record.timestamp,
                    **dict(zip(("key", "key_encoding"), encoded(record.key), strict=True)),
                    **dict(zip(("value", "value_encoding"), encoded(record.value), strict=True)),
                    "headers": [[name, *encoded(content)] for name, content in record.headers],
                }
                for record in decode_batch(batch.data, info)
            ]
        except KafkaError as problem:
            row["records"] = None
            unreadable.append(f"{path}: byte {batch.position}: {problem.message}")
    return row


@log.command(
    "verify",
    examples=("kclient log verify orders-0", "kclient log verify --shallow orders-0 -J"),
)
@_FILES
@click.option("--shallow", is_flag=True, help="Check batches, but do not decode their records.")
@with_settings
def verify(settings: Settings, paths: tuple[Path, ...], shallow: bool) -> None:
    """Check files of a log directory; exit code 4 if something is wrong.

    Checked are the CRC, offsets, leader epochs, sequences and records of each batch, what follows the last batch, and
    whether indexes, snapshots and checkpoints agree with the segments. Stop the broker before, or check a copy: the end
    of a log that is written to may look torn.
    """
    from kclient.cli.progress import Progress
    from kclient.log_files.verify import Checked, Verifier, files_of, is_checked

    progress = Progress(time.monotonic, quiet=settings.quiet)
    before = 0

    def show_progress(path: Path, position: int) -> None:
        progress.show(f"{path}: {(before + position) // _MIB} MiB checked")

    def main() -> int:
        nonlocal before
        _files(paths, is_checked)
        verifier = Verifier(show_progress, decode=not shallow)
        checked: list[Checked] = []
        failed = False
        for path in (each for given in paths for each in files_of(given)):
            try:
                found = verifier.check(path)
                before += path.stat().st_size
            except FileNotFoundError as problem:
                # A broker that runs deletes segments; what the command line names must be there.
                progress.clear()
                failed = failed or path in paths
                settings.note(f"{problem.filename or path}: not there any more, not checked")
                continue
            except OSError as problem:
                failed = True
                progress.clear()
                print_error(f"{problem.filename or path}: {problem.strerror}")
                continue
            checked.append(found)
            if settings.is_text:
                progress.clear()
                for each in found.problems:
                    click.echo(problem_line(each))
                if found.note:
                    settings.note(f"{path}: {found.note}")
        progress.clear()
        problems = sum(len(each.problems) for each in checked)
        if settings.is_text:
            click.echo(summary(checked))
        else:
            _show_checked(settings, checked)
        return UNHEALTHY if problems else FAILED if failed else 0

    run_offline(main)


def problem_line(problem: Any) -> str:
    """Return a problem as one line: the file, the place in it, and what is wrong."""
    places = [
        *([] if problem.position is None else [f"byte {problem.position}"]),
        *([] if problem.offset is None else [f"offset {problem.offset}"]),
    ]
    return ": ".join([str(problem.path), *([", ".join(places)] if places else []), problem.text])


def summary(checked: Sequence[Any]) -> str:
    """Return the totals as one line."""
    batches, records = (sum(getattr(c, name) for c in checked) for name in ("batches", "records"))
    problems = sum(len(each.problems) for each in checked)
    verdict = "nothing is wrong" if not problems else _counted(problems, "problem")
    return (
        f"{_counted(len(checked), 'file')}, {_counted(batches, 'batch', 'batches')},"
        f" {_counted(records, 'record')}: {verdict}"
    )


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _show_checked(settings: Settings, checked: Sequence[Any]) -> None:
    rows: list[dict[str, Any]] = [
        {
            "file": str(each.path),
            "batches": each.batches,
            "records": each.records,
            "entries": each.entries,
            "problems": [
                {"position": p.position, "offset": p.offset, "problem": p.text}
                for p in each.problems
            ],
            "note": each.note,
        }
        for each in checked
    ]
    if settings.format == "csv":
        flat = [{"file": row["file"], **problem} for row in rows for problem in row["problems"]]
        show(flat, ("file", "position", "offset", "problem"), "csv")
    else:
        show(rows, (), settings.format)
