"""Writes a file beside its place and renames it into it, so that a reader never sees half of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield the file to write in the place of *path*; an error in the block leaves *path* as it was.

    With *durable* a power loss leaves the old content or the new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield beside
        if durable:
            _sync(beside)
        beside.replace(path)
        if durable:
            _sync(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def replace_file(path: Path, content: str | bytes, *, durable: bool = False) -> None:
    """Replace *path* by a file with *content*, a text in UTF-8."""
    with replaced(path, durable=durable) as beside:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
