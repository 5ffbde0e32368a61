"""`kclient log verify` finds every changed byte that a CRC covers, and every cut, in a segment of any batches."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from kclient.log_files.verify import Problem, Verifier
from kclient.wire.batches import iterate
from kclient.wire.records import Record, encode_batch
from tests.kit.property_tests import examples

_content = st.none() | st.binary(max_size=30)
_records = st.lists(st.tuples(st.integers(0, 2**41), _content, _content), min_size=1, max_size=5)


@st.composite
def segments(draw: st.DrawFn) -> bytes:
    batches, offset = [], 0
    for rows, gap, codec in draw(
        st.lists(st.tuples(_records, st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=4)
    ):
        offset += gap
        records = [Record(offset + n, at, key, value) for n, (at, key, value) in enumerate(rows)]
        batches.append(encode_batch(records, codec=codec, base_offset=offset, leader_epoch=0))
        offset += len(records)
    return b"".join(batches)


def verified(content: bytes) -> list[Problem]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"{0:020d}.log"
        path.write_bytes(content)
        return list(Verifier().check(path).problems)


@settings(deadline=None, max_examples=examples(60))
@given(segments(), st.data())
def test_a_changed_byte_is_found(content: bytes, data: st.DataObject) -> None:
    assert verified(content) == []
    covered = [n for each in iterate(content) for n in range(each.position + 16, each.end)]
    at, bits = data.draw(st.sampled_from(covered)), data.draw(st.integers(1, 255))
    changed = bytearray(content)
    changed[at] ^= bits
    found = verified(bytes(changed))
    assert found
    assert found[0].position is not None
    assert found[0].position <= at


@settings(deadline=None, max_examples=examples(40))
@given(segments(), st.data())
def test_a_cut_is_found(content: bytes, data: st.DataObject) -> None:
    ends = {0, *(each.end for each in iterate(content))}
    size = data.draw(st.integers(0, len(content)))
    assert bool(verified(content[:size])) is (size not in ends)
