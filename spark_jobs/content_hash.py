"""The content hash of one record, equal to that of `spark_jobs.hashes`, without numpy and pandas.

`kaudit explain` compares it with the hash in findings.jsonl, so that it knows whether the log still has the record
that the audit read. Pure Python: about 0.2 us per byte, so records above `MOST_BYTES` are left out.
"""

from __future__ import annotations

from kclient.wire.record_writer import encode_record
from spark_jobs.stored_record import Stored

DEFAULT_HASH_KEY = "kaudit digest v1"
"""16 bytes. Digests can be compared only if they have the same key."""

MOST_BYTES = 1 << 20

_MASK = (1 << 64) - 1
_TIME = 0xD1B54A32D192ED03
_BEFORE_BODY = 3
"""Bytes between the length and the key of a record with deltas 0: attributes and both deltas."""


def content_hash(record: Stored, key: str = DEFAULT_HASH_KEY) -> int | None:
    """Return the hash of *record* as an unsigned number; None above `MOST_BYTES`."""
    encoded = encode_record(0, 0, record.key, record.value, record.headers)
    if len(encoded) > MOST_BYTES:
        return None
    length = next(n for n, byte in enumerate(encoded, 1) if byte < 128)
    body = encoded[length + _BEFORE_BODY :]
    kind = record.batch.log_append_time | record.batch.is_control << 1
    times = _mixed((record.timestamp + _TIME) & _MASK)
    # pandas mixes the result of SipHash once more.
    hashed = _mixed(siphash(body, key.encode()))
    return _mixed((hashed + _mixed((times + kind) & _MASK)) & _MASK)


def siphash(data: bytes, key: bytes) -> int:
    """Return SipHash-2-4 of *data* (Aumasson and Bernstein, 2012) with a key of 16 bytes."""
    low, high = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:16], "little")
    a, b = low ^ 0x736F6D6570736575, high ^ 0x646F72616E646F6D
    c, d = low ^ 0x6C7967656E657261, high ^ 0x7465646279746573
    whole = len(data) & ~7
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, whole, 8)]
    words.append(int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    for word in words:
        d ^= word
        a, b, c, d = _round(*_round(a, b, c, d))
        a ^= word
    c ^= 0xFF
    for _ in range(4):
        a, b, c, d = _round(a, b, c, d)
    return a ^ b ^ c ^ d


def _round(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    a = (a + b) & _MASK
    b = (b << 13 | b >> 51) & _MASK ^ a
    a = (a << 32 | a >> 32) & _MASK
    c = (c + d) & _MASK
    d = (d << 16 | d >> 48) & _MASK ^ c
    a = (a + d) & _MASK
    d = (d << 21 | d >> 43) & _MASK ^ a
    c = (c + b) & _MASK
    b = (b << 17 | b >> 47) & _MASK ^ c
    c = (c << 32 | c >> 32) & _MASK
    return a, b, c, d


def _mixed(value: int) -> int:
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
