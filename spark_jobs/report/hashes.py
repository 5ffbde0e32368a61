"""The SHA-256 that names a file of a report."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path


def file_hash(path: Path) -> str:
    """Return the SHA-256 of the file at *path*."""
    return sha256(path.read_bytes()).hexdigest()


def text_hash(text: str) -> str:
    """Return the SHA-256 of the file that has *text*."""
    return sha256(text.encode()).hexdigest()
