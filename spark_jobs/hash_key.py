"""The key of a run's hashes: public, or secret with `--hash-key`.

A report has hashes of records: of each finding, and sums per window. With the public key every reader of the report can
hash guesses, and so learn a value of a small domain. With a secret key only its owner can. The hash is SipHash-2-4, a
function for secret keys. Its key has 16 ASCII characters (pandas requires text): 96 bits, derived from the file by
BLAKE2b. A key has a name, which the report and digests.parquet state: hashes of different keys cannot be compared. The
name is derived from the file, too, and short files could be guessed by it, so the file needs `LEAST_BYTES`.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from spark_jobs.content_hash import DEFAULT_HASH_KEY

LEAST_BYTES = 32
_KEY_BYTES = 12


@dataclass(frozen=True, slots=True)
class HashKey:
    """A key of hashes."""

    text: str = field(default=DEFAULT_HASH_KEY, repr=False)
    """16 ASCII characters."""
    name: str = ""
    """"" for the public key."""

    @property
    def function(self) -> str:
        """Name the hash function with its key. It changes whenever equal records get another hash."""
        return f"{DEFAULT_HASH_KEY}, key {self.name}" if self.name else DEFAULT_HASH_KEY


PUBLIC = HashKey()


def derived(content: bytes) -> HashKey:
    """Return the key of a file with *content*, of which white space at both ends does not count.

    Raise ValueError if it is too short.
    """
    secret = content.strip()
    if len(secret) < LEAST_BYTES:
        raise ValueError(
            f"a key file needs at least {LEAST_BYTES} bytes, this one has {len(secret)}: "
            "head -c 32 /dev/urandom | base64"
        )
    key = blake2b(secret, digest_size=_KEY_BYTES, person=b"kaudit key").digest()
    name = blake2b(secret, digest_size=8, person=b"kaudit key name").hexdigest()
    return HashKey(b64encode(key).decode("ascii"), name)


def read_hash_key(path: Path | None) -> HashKey:
    """Return the key of `--hash-key` *path*, the public one for None; raise ValueError if it cannot be used."""
    if path is None:
        return PUBLIC
    try:
        return derived(path.read_bytes())
    except (OSError, ValueError) as problem:
        raise ValueError(f"--hash-key {path}: {problem}") from None
