"""The export of batches that only one cluster has: files in the format of log segments, and their manifest.

    DIR/<topic>-<topic id>/manifest.json
    DIR/<topic>-<topic id>/<partition>/<base offset of the first batch>.log

A file has whole batches as they were fetched. Files and directories are synced before the manifest is renamed into its
place, so a manifest is a proof that its files are complete. A file is read again before the manifest is written, and
whenever the manifest is used: size and SHA-256.

Owner: the command
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from kclient.types import TopicPartition
from kclient.wire.errors import KafkaError
from kclient.wire.records import decode_batch
from mirrormaker.divergence import Batch, Kind, kind_of
from mirrormaker.export_manifest import (
    SCHEMA_VERSION,
    ExportedFile,
    ExportedPartition,
    Manifest,
    manifest_of,
)

MANIFEST = "manifest.json"
_LARGEST_FILE = 128 << 20
"""Bytes after which a run of batches continues in another file: a reader holds a file in memory."""
_PIECE = 1 << 20
_LEGAL = re.compile(r"[A-Za-z0-9._-]+")
_DIRECTORY_MODE, _FILE_MODE = 0o750, 0o640
"""As the brokers' data."""


class BadExport(Exception):
    """The export directory cannot be used; the text has the path and the reason."""


def directory_of(out: Path, topic: str, topic_id: str) -> Path:
    """Return the directory of a topic's export. Raise `BadExport` if a name is no part of a path."""
    name = f"{topic}-{topic_id}"
    if not _LEGAL.fullmatch(name):
        raise BadExport(f"{name!r} is not a topic and its id")
    return out / name


def read_manifest(directory: Path) -> Manifest | None:
    """Return the manifest of a complete export; None if there is none. Raise `BadExport`."""
    path = directory / MANIFEST
    try:
        document = json.loads(path.read_text())
        if document["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema_version is {document['schema_version']}")
        found = manifest_of(document)
        if directory != directory_of(directory.parent, found.topic, found.topic_id):
            raise ValueError(f"it is of {found.topic}-{found.topic_id}")
        return found
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise BadExport(f"{path} cannot be read: {problem}") from None


def only_manifest(out: Path, topic: str) -> Manifest | None:
    """Return the manifest of *topic* below *out*, of any topic id; None if there is none. Raise `BadExport` for two."""
    found = [read_manifest(path.parent) for path in out.glob(f"{topic}-*/{MANIFEST}")]
    of_topic = [each for each in found if each is not None and each.topic == topic]
    if len(of_topic) > 1:
        raise BadExport(f"{out} has several exports of {topic}")
    return of_topic[0] if of_topic else None


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Sync *manifest* to the disk under its name. Raise OSError."""
    beside = directory / f"{MANIFEST}.new"
    with open(beside, "w", opener=_private) as file:
        file.write(json.dumps(asdict(manifest), indent=2, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(directory / MANIFEST)
    _sync(directory)
    for each in directory.resolve().parents:  # some may be new
        with suppress(PermissionError):
            _sync(each)


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Make *out*, and keep other commands from exporting to it. Raise `BadExport` if one does, or OSError."""
    out.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
    fd = os.open(out / "lock", os.O_RDWR | os.O_CREAT, _FILE_MODE)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadExport(f"another command exports to {out}") from None
        yield
    finally:
        os.close(fd)


def begin(directory: Path) -> None:
    """Make the empty *directory* of a topic; the files of a run that wrote no manifest are removed. Raise OSError."""
    if (directory / MANIFEST).exists():
        raise BadExport(f"{directory} has an export already")
    with suppress(FileNotFoundError):
        shutil.rmtree(directory)
    directory.mkdir(mode=_DIRECTORY_MODE, parents=True)


def verify(directory: Path, manifest: Manifest) -> None:
    """Raise `BadExport` unless every file is there with the bytes that the manifest states."""
    for partition in manifest.partitions:
        for each in partition.files:
            _verify(directory / str(partition.partition) / each.name, each)


def _verify(path: Path, wanted: ExportedFile) -> None:
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
                size += len(piece)
    except OSError as problem:
        raise BadExport(f"{path} cannot be read: {problem.strerror}") from None
    if (size, digest.hexdigest()) != (wanted.bytes, wanted.sha256):
        raise BadExport(f"{path} is not the file of the manifest: {size} of {wanted.bytes} bytes")


class PartitionExport:
    """Writes the batches of one partition that have no equal one. Each run of adjacent ones has its own file.

    Batches of `Kind.HEAD` are counted; *with_head* also writes them.
    """

    def __init__(
        self, directory: Path, tp: TopicPartition, *, other_start: int, with_head: bool
    ) -> None:
        self._directory = directory / str(tp.partition)
        self._tp = tp
        self._other_start = other_start
        self._with_head = with_head
        self._head = 0
        self._open: _File | None = None
        self._held: Batch | None = None
        """The last batch, if it is damaged: only the next one shows where it ends, so which kind it is."""
        self._done: list[_File] = []
        self._last_equal_end: int | None = None
        self._first_unequal: int | None = None
        self._equal = 0

    def add(self, batch: Batch, is_equal: bool) -> None:
        """Handle the next batch. Raise OSError."""
        self._write_held(batch.base_offset)
        if is_equal:
            self._equal += 1
            self._last_equal_end = batch.next_offset
            self._close()
        elif batch.is_damaged:
            self._held = batch
        else:
            self._write(batch, batch.next_offset)

    def _write_held(self, until: int) -> None:
        """Write the last batch if it is damaged. The next one, or the log's end, is at *until*. Raise OSError."""
        batch, self._held = self._held, None
        if batch is None:
            return
        until = max(until, batch.base_offset + 1)
        if batch.base_offset < batch.next_offset <= until:
            until = batch.next_offset
        self._write(batch, until)

    def _write(self, batch: Batch, until: int) -> None:
        """Count or write *batch*, which has the offsets up to *until*. Raise OSError."""
        is_head = self._kind(batch.base_offset, until) is Kind.HEAD
        self._head += is_head
        if is_head and not self._with_head:
            self._close()
            return
        if self._first_unequal is None and not is_head:
            self._first_unequal = batch.base_offset
        if self._open is not None and (
            self._open.is_head != is_head or self._open.size >= _LARGEST_FILE
        ):
            self._close()
        if self._open is None:
            self._directory.mkdir(mode=_DIRECTORY_MODE, exist_ok=True)
            path = self._directory / f"{batch.base_offset:020}.log"
            self._open = _File(path, batch.base_offset, until, is_head)
        self._open.add(batch, until)

    def _kind(self, base_offset: int, next_offset: int) -> Kind:
        return kind_of(
            base_offset,
            next_offset,
            other_start=self._other_start,
            last_equal_end=self._last_equal_end,
        )

    def finish(
        self, *, log_start: int, log_end: int, first_lacking: int | None = None
    ) -> ExportedPartition:
        """Sync all files and read them again; return what was written. Raise OSError or `BadExport`.

        *first_lacking* is that of the comparison.
        """
        self._write_held(log_end)
        self._close()
        files = []
        for each in self._done:
            found = each.described(self._kind(each.first, each.first_until))
            _verify(each.path, found)
            files.append(found)
        if files:
            _sync(self._directory)
        return ExportedPartition(
            self._tp.partition,
            log_start,
            log_end,
            self._other_start,
            self._last_equal_end,
            self._first_unequal,
            self._equal,
            self._head,
            tuple(files),
            first_lacking,
        )

    def abandon(self) -> None:
        """Close the file that is open, without a sync."""
        if self._open is not None:
            self._open.file.close()
            self._open = None

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._done.append(self._open)
            self._open = None


class _File:
    """A file that is written: batches from offset *first* on, of which the first one ends at *first_until*."""

    def __init__(self, path: Path, first: int, first_until: int, is_head: bool) -> None:
        self.path = path
        self.first = first
        self.first_until = first_until
        self.is_head = is_head
        self.size = 0
        self._until = first
        self.file: BinaryIO = open(path, "wb", opener=_private)  # noqa: SIM115 - open until `close`
        self._digest = hashlib.sha256()
        self._batches = self._records = self._undecoded = 0
        self._oldest: int | None = None
        self._newest: int | None = None

    def add(self, batch: Batch, until: int) -> None:
        """Write *batch*, which has the offsets up to *until*. Raise OSError.

        The number of records in a damaged header is taken if that many fit into the offsets. Else each of these is a
        record: the RPO must not be too small.
        """
        self.file.write(batch.data)
        self._digest.update(batch.data)
        self.size += len(batch.data)
        self._until = until
        self._batches += 1
        if batch.is_damaged:
            # It counts as records: the bit that makes a control batch may be what was damaged. So may the timestamps.
            self._undecoded += 1
            offsets, count = until - batch.base_offset, batch.info.record_count
            self._records += count if 0 < count <= offsets else offsets
            return
        if batch.info.is_control:
            return
        self._records += batch.info.record_count
        for timestamp in self._timestamps(batch):
            self._oldest = timestamp if self._oldest is None else min(timestamp, self._oldest)
            self._newest = timestamp if self._newest is None else max(timestamp, self._newest)

    def _timestamps(self, batch: Batch) -> list[int]:
        """Return the known timestamps of *batch*; those of its header if its records cannot be decoded."""
        try:
            found = [each.timestamp for each in decode_batch(batch.data, batch.info)]
        except KafkaError:
            self._undecoded += 1
            found = [batch.info.base_timestamp, batch.info.max_timestamp]
        return [each for each in found if each >= 0]

    def close(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()

    def described(self, kind: Kind) -> ExportedFile:
        return ExportedFile(
            self.path.name,
            kind.value,
            self.first,
            self._until,
            self._batches,
            self._records,
            self._undecoded,
            self.size,
            self._digest.hexdigest(),
            self._oldest,
            self._newest,
        )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, _FILE_MODE)


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
