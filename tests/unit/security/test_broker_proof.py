"""Broker proofs: only the secret's holder makes one, for one sender, one receiver and one cluster."""

from __future__ import annotations

import pytest

from kbroker.security.core.broker_proof import BrokerProofs
from kbroker.zk import znodes
from kbroker.zk.errors import PoisonZnode
from tests.kit.inter_broker import SECRET, proofs_of

OTHER = bytes(32)


def test_a_proof_names_its_sender_to_its_receiver() -> None:
    assert proofs_of(2).verify(proofs_of(1).make(2)) == 1


def test_a_proof_holds_for_no_other_receiver_secret_or_cluster() -> None:
    proof = proofs_of(1).make(2)
    assert proofs_of(3).verify(proof) is None
    assert proofs_of(2, OTHER).verify(proof) is None
    assert proofs_of(2, cluster_id="another").verify(proof) is None


def test_the_sender_in_a_proof_cannot_be_exchanged() -> None:
    proof = proofs_of(1).make(2)
    assert proofs_of(2).verify((3).to_bytes(4, "big") + proof[4:]) is None


@pytest.mark.parametrize("proof", [b"", bytes(4), bytes(35), bytes(36), bytes(37), bytes(1 << 16)])
def test_what_is_no_proof_is_refused(proof: bytes) -> None:
    assert proofs_of(2).verify(proof) is None


def test_without_a_secret_nothing_is_verified() -> None:
    assert BrokerProofs("cluster", 2).verify(proofs_of(1).make(2)) is None
    with pytest.raises(ValueError, match="not known yet"):
        BrokerProofs("cluster", 2).make(1)


def test_after_a_change_the_secret_before_it_is_accepted_and_the_one_before_that_is_not() -> None:
    old, receiver = proofs_of(1), proofs_of(2)
    receiver.learn(OTHER)
    assert receiver.verify(old.make(2)) == 1
    assert proofs_of(1, OTHER).verify(receiver.make(1)) == 2
    receiver.learn(b"x" * 32)
    assert receiver.verify(old.make(2)) is None


def test_the_same_secret_again_changes_nothing() -> None:
    receiver = proofs_of(2, OTHER)
    receiver.learn(SECRET)
    receiver.learn(SECRET)
    assert receiver.verify(proofs_of(1, OTHER).make(2)) == 1


def test_the_znode_gives_the_secret_back() -> None:
    assert znodes.decode_inter_broker_secret(znodes.encode_inter_broker_secret(SECRET)) == SECRET


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b'{"secret":7}', b'{"secret":"c2hvcnQ="}', '{"secret":"größer"}'.encode(), b"[]"],
)
def test_a_znode_without_a_secret_is_poison_and_is_not_shown(data: bytes) -> None:
    with pytest.raises(PoisonZnode) as raised:
        znodes.decode_inter_broker_secret(data)
    assert "c2hvcnQ" not in str(raised.value)
