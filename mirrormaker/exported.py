"""``kmirror exported``: prints the records of an export, a JSON object a line, as `kclient consume -f json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kclient.cli.formats import envelope
from kclient.types import Record
from kclient.wire.errors import KafkaError
from kclient.wire.records import decode_batch
from mirrormaker.divergence import read_batches
from mirrormaker.export_manifest import Manifest
from mirrormaker.tail_export import MANIFEST, BadExport, read_manifest, verify


def show_exported(out: Path, kind: str, echo: Callable[[str], None]) -> None:
    """Print the records of *kind* ("all": of each) below *out*, data records only. Raise `BadExport`.

    *out* is what ``--export`` named, or a directory of a plan or a topic in it. Batches with a wrong CRC, or that
    cannot be decoded, are exported as they are. Their records are not printed, and those of the others are. The error
    at the end has their number.
    """
    places = (MANIFEST, f"*/{MANIFEST}", f"repair-*/*/{MANIFEST}")
    directories = sorted(path.parent for place in places for path in out.glob(place))
    undecoded: list[str] = []
    if not directories:
        raise BadExport(f"{out} has no complete export")
    for directory in directories:
        manifest = read_manifest(directory)
        if manifest is None:
            continue
        verify(directory, manifest)
        for each in _records(directory, manifest, kind, undecoded):
            echo(json.dumps(each, ensure_ascii=False))
    if undecoded:
        raise BadExport(
            f"{len(undecoded)} batches have a wrong CRC or cannot be decoded, and are in the files as they were. "
            f"The first: {undecoded[0]}"
        )


def _records(
    directory: Path, manifest: Manifest, kind: str, undecoded: list[str]
) -> Iterator[dict[str, Any]]:
    """Yield the records of one topic; add a line to *undecoded* for each batch that is left out."""
    for partition in manifest.partitions:
        for file in partition.files:
            if kind not in ("all", file.kind):
                continue
            path = directory / str(partition.partition) / file.name
            for batch in read_batches(path.read_bytes()):
                # A flipped bit of a value is decoded without an error, one of the attributes makes a control batch.
                if batch.is_damaged:
                    undecoded.append(f"{path}: batch {batch.base_offset}: wrong CRC")
                    continue
                if batch.info.is_control:
                    continue
                try:
                    found = decode_batch(batch.data, batch.info)
                except KafkaError as problem:
                    undecoded.append(f"{path}: batch {batch.base_offset}: {problem}")
                    continue
                for each in found:
                    yield envelope(
                        Record(
                            manifest.topic,
                            partition.partition,
                            each.offset,
                            each.timestamp,
                            1 if batch.info.log_append_time else 0,
                            each.key,
                            each.value,
                            each.headers,
                            serialized_key_size=-1 if each.key is None else len(each.key),
                            serialized_value_size=-1 if each.value is None else len(each.value),
                        )
                    )
