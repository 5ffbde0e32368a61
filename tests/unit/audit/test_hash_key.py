"""The key of hashes: a report with a secret one shows no value to those without it, and fits no other report."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from kclient.wire.batches import HEADER_SIZE, parse
from kclient.wire.record_writer import Record, encode_batch
from spark_jobs.arrow_batches import digest_batches, hash_batches
from spark_jobs.commands.run_directory import is_as_audited, key_of
from spark_jobs.content_hash import content_hash
from spark_jobs.cut import OffsetRange
from spark_jobs.digest import WindowShape
from spark_jobs.finding_places import Place, Side
from spark_jobs.hash_key import LEAST_BYTES, PUBLIC, derived, read_hash_key
from spark_jobs.hashes import content_hashes
from spark_jobs.reader import Fetched
from spark_jobs.record_arrays import Piece, decode_arrays
from spark_jobs.report.digests import rows_of
from spark_jobs.report.kept_files import KeptUnusable, load_kept
from spark_jobs.stored_record import Stored, record_at
from tests.kit.audit_histories import History
from tests.kit.audit_reports import violations

SECRET = derived(b"0" * LEAST_BYTES)
OTHER = derived(b"1" * LEAST_BYTES)
DATA = encode_batch([Record(n, 5, b"user", b"%d" % n) for n in range(3)])
INFO = parse(DATA)
RANGES = [OffsetRange("t", 0, 0, 3)]


def test_a_key_is_sixteen_characters_of_its_file_and_is_not_shown() -> None:
    assert SECRET.text.isascii()
    assert len(SECRET.text.encode()) == 16
    assert len({SECRET.text, OTHER.text, PUBLIC.text}) == 3
    assert len({SECRET.name, OTHER.name, PUBLIC.name}) == 3
    assert SECRET.text not in repr(SECRET)
    assert derived(b" \n" + b"0" * LEAST_BYTES + b"\n") == SECRET


def test_a_file_that_could_be_guessed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"x" * (LEAST_BYTES - 1) + b"\n")
    with pytest.raises(ValueError, match=f"--hash-key {path}: a key file needs at least 32 bytes"):
        read_hash_key(path)
    path.write_bytes(b"0" * LEAST_BYTES)
    assert read_hash_key(path) == SECRET
    assert read_hash_key(None) is PUBLIC


def stored(offset: int) -> Stored:
    record = record_at(offset, [(INFO, memoryview(DATA))])
    assert isinstance(record, Stored)
    return record


def test_hashes_of_two_keys_have_nothing_in_common_and_explain_computes_the_same_ones() -> None:
    fetched = [Fetched(0, 0, 3, INFO, memoryview(DATA))]
    found = []
    for key in (PUBLIC, SECRET, OTHER):
        (rows,) = hash_batches(fetched, RANGES, key.text)
        contents = [each % 2**64 for each in rows.column("content").to_pylist()]
        arrays = decode_arrays([Piece(0, INFO, DATA[HEADER_SIZE:])])
        assert contents == content_hashes(arrays, key.text).tolist()
        assert contents == [content_hash(stored(offset), key.text) for offset in range(3)]
        (sums,) = digest_batches(fetched, RANGES, WindowShape(10), key.text)
        low, high = (sums.column(f"content_{half}")[0].as_py() for half in ("low", "high"))
        assert low + (high << 32) == sum(contents) % 2**64
        found += contents
    assert len(set(found)) == 9


@pytest.fixture
def history(tmp_path: Path) -> History:
    made = History(tmp_path / "out", random.Random(1))
    made.write(40)
    made.mirror()
    run = made.audit()
    made.report(replace(run, options=replace(run.options, hash_key=SECRET)))
    return made


def test_an_incremental_run_with_another_key_is_refused_by_name(history: History) -> None:
    assert load_kept(history.out, SECRET).partitions
    for key in (PUBLIC, OTHER):
        with pytest.raises(KeptUnusable, match="different keys") as raised:
            load_kept(history.out, key)
        assert f"key {SECRET.name}" in str(raised.value)
        assert repr(key.function) in str(raised.value)
        assert SECRET.text not in str(raised.value)


def test_a_report_names_the_key_and_does_not_have_it(history: History) -> None:
    document = json.loads((history.out / "report.json").read_text())
    assert document["hash_key"] == SECRET.name
    assert not violations("report", document)
    assert rows_of((history.out / "digests.parquet").read_bytes())[1]["hash"] == SECRET.function
    assert all(SECRET.text.encode() not in each.read_bytes() for each in history.out.iterdir())


def test_explain_checks_a_record_only_with_the_key_of_the_report(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"0" * LEAST_BYTES)
    assert key_of({"hash_key": SECRET.name}, path) == SECRET
    assert key_of({"hash_key": None}, None) == PUBLIC
    assert key_of({}, None) == PUBLIC
    assert key_of({"hash_key": SECRET.name}, None) is None
    for name in (None, OTHER.name):
        with pytest.raises(ValueError, match=f"it is the key {SECRET.name}, the report has hashes"):
            key_of({"hash_key": name}, path)
    audited = content_hash(stored(0), SECRET.text)
    side = Side("", Place("", "", "", "t", 0, 0), True, f"{audited:016x}")
    assert is_as_audited(side, stored(0), SECRET)
    assert is_as_audited(side, stored(1), SECRET) is False
    assert is_as_audited(side, stored(0), None) is None
