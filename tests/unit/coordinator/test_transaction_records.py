"""The znode of a transactional id: round trips, and content that is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.coordinator.transaction.core.records import (
    PoisonTransactionStateError,
    decode_metadata,
    encode_metadata,
)
from kbroker.coordinator.transaction.core.states import (
    IDLE,
    TransactionMetadata,
    TransactionState,
)
from kbroker.zk.znodes.transactions import (
    decode_pending_offsets_name,
    pending_offsets_path,
    transactional_id_path,
)

PATH = "/transactions/ids/x"
STORED = [
    each
    for each in TransactionState
    if each not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
]
OPEN = TransactionMetadata(
    7, 3, 60_000, TransactionState.ONGOING, 200, previous_producer_id=5, last_producer_epoch=2,
    number=4, start_ms=100, partitions=frozenset({("t", 1), ("t", 0), ("u", 2)}),
    groups=frozenset({"g", "a group"}),
)  # fmt: skip


@st.composite
def stored(draw: st.DrawFn) -> TransactionMetadata:
    """Any metadata that can be stored."""
    state = draw(st.sampled_from(STORED))
    partitions: frozenset[tuple[str, int]] = frozenset()
    groups: frozenset[str] = frozenset()
    if state not in IDLE:
        names = st.sampled_from(["t", "u.v", "t-1"])
        partitions = draw(st.frozensets(st.tuples(names, st.integers(0, 9)), max_size=5))
        names = st.sampled_from(["g", "a/b", "größe"])
        groups = draw(st.frozensets(names, min_size=not partitions, max_size=3))
    return TransactionMetadata(
        draw(st.integers(0, 2**63 - 1)),
        draw(st.integers(0, 2**15 - 1)),
        draw(st.integers(0, 2**31 - 1)),
        state,
        draw(st.integers(0, 2**63 - 1)),
        previous_producer_id=draw(st.integers(-1, 2**63 - 1)),
        last_producer_epoch=draw(st.integers(-1, 2**15 - 1)),
        number=draw(st.integers(1, 2**63 - 1)),
        start_ms=draw(st.integers(-1, 2**63 - 1)),
        partitions=partitions,
        groups=groups,
    )


@given(metadata=stored())
def test_what_is_stored_comes_back(metadata: TransactionMetadata) -> None:
    assert decode_metadata(PATH, encode_metadata(metadata)) == metadata


def test_partitions_are_stored_by_topic() -> None:
    content = json.loads(encode_metadata(OPEN))
    assert content["partitions"] == {"t": [0, 1], "u": [2]}
    assert content["state"] == "Ongoing"


@pytest.mark.parametrize("state", [TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE])
def test_some_states_are_never_stored(state: TransactionState) -> None:
    with pytest.raises(ValueError, match="never stored"):
        encode_metadata(TransactionMetadata(7, 3, 1, state, 1))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 2), ("producer_id", -1), ("producer_id", True), ("producer_epoch", 2**15),
        ("state", "Dead"), ("state", "Empty"), ("state", None), ("number", 0), ("groups", "g"),
        ("groups", [1]), ("partitions", {"t": [-1]}), ("partitions", {"t": [True]}),
        ("partitions", [["t", 0]]), ("timeout_ms", "1"), ("start_ms", -2),
    ],
)  # fmt: skip
def test_content_that_cannot_be_right_is_refused_with_its_path(field: str, value: Any) -> None:
    content = json.loads(encode_metadata(OPEN)) | {field: value}
    with pytest.raises(PoisonTransactionStateError, match=PATH):
        decode_metadata(PATH, json.dumps(content).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"\xff", b"{}"])
def test_other_content_is_refused(data: bytes) -> None:
    with pytest.raises(PoisonTransactionStateError, match=PATH):
        decode_metadata(PATH, data)


def test_any_name_is_one_element_of_a_path() -> None:
    assert transactional_id_path("a/b") == "/transactions/ids/a%2Fb"
    assert pending_offsets_path(7, "g h,1") == "/transactions/pending/7,g%20h%2C1"
    assert decode_pending_offsets_name("7,g%20h%2C1") == (7, "g h,1")
    for name in ("7", "7,", ",g", "x,g", "-7,g", "7,g h", "07,g"):
        assert decode_pending_offsets_name(name) is None
