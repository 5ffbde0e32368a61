"""The SHA-256 that names a file of a report."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path


def file_hash(path: Path) -> str:
    """Return the SHA-256 of the file at *path*."""
    return content_hash(path.read_bytes())


def content_hash(content: bytes) -> str:
    """Return the SHA-256 of the file that has *content*."""
    return sha256(content).hexdigest()


def text_hash(text: str) -> str:
    """Return the SHA-256 of the file that has *text*."""
    return content_hash(text.encode())
