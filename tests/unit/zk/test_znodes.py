"""Every znode: Kafka's own bytes are read, what we write is read back, poison is one typed error."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.common.endpoint import Endpoint
from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.common.log_dir_integrity import (
    UNKNOWN_INTEGRITY,
    LogDirCondition,
    LogDirIntegrity,
    broker_epochs,
)
from kbroker.zk import znodes
from kbroker.zk.errors import PoisonZnode, UnsafeName
from kbroker.zk.interface import Stat
from kclient.types import TopicPartition

TOPIC_ID = uuid.UUID("f3cb5c6e-1d84-4f0d-9d5c-0f0a2b6f8d11")
STAT = Stat(1, 2, 3, 4, 7, 0, 0, 0, 10, 0, 2)

# As Apache Kafka 3.9 wrote them.
KAFKA_BROKER = (
    b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT","IN":"SSL"},'
    b'"endpoints":["PLAINTEXT://localhost:9092","IN://[::1]:9093"],"jmx_port":-1,"port":9092,'
    b'"host":"localhost","version":5,"timestamp":"1700000000000","rack":"r1"}'
)
KAFKA_TOPIC = (
    b'{"removing_replicas":{},"partitions":{"0":[1,2],"1":[2,1]},'
    b'"topic_id":"88tcbh2ETw2dXA8KK2-NEQ","adding_replicas":{"1":[3]},"version":3}'
)
KAFKA_STATE = b'{"controller_epoch":3,"leader":1,"version":1,"leader_epoch":5,"isr":[1,2]}'


def test_a_broker_registered_by_kafka_is_read() -> None:
    broker = znodes.decode_broker(1, KAFKA_BROKER)
    assert broker == znodes.BrokerInfo(
        1,
        (
            Endpoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092),
            Endpoint("IN", "SSL", "::1", 9093),
        ),
        rack="r1",
        timestamp=1_700_000_000_000,
    )


def test_our_registration_is_what_kafka_writes() -> None:
    broker = znodes.decode_broker(1, KAFKA_BROKER)
    assert json.loads(znodes.encode_broker(broker)) == json.loads(KAFKA_BROKER)


def test_a_registration_states_which_broker_epochs_the_log_directories_cover() -> None:
    def stored(integrity: LogDirIntegrity) -> dict[str, object]:
        data = znodes.encode_broker(znodes.BrokerInfo(1, (), integrity=integrity))
        assert znodes.decode_broker(1, data).integrity == integrity
        value = json.loads(data)
        return {name: value[name] for name in ("start", "intact", "epochs") if name in value}

    clean = LogDirCondition.CLEAN
    assert stored(UNKNOWN_INTEGRITY) == {}
    assert stored(LogDirIntegrity(clean, None)) == {"start": "clean", "intact": None}
    span = {"start": "clean", "intact": [10, 50]}
    assert stored(LogDirIntegrity(clean, broker_epochs((10, 50)))) == span
    several = {**span, "epochs": [[10, 10], [20, 30], [50, 50]]}
    assert stored(LogDirIntegrity(clean, broker_epochs(10, (20, 30), 50))) == several


@pytest.mark.parametrize(
    "epochs", ['"intact":[5]', '"intact":[9,5]', '"intact":[5,9],"epochs":[[5,5],[4,9]]', '"intact":[5,9],"epochs":[7]']
)  # fmt: skip
def test_broker_epochs_that_make_no_set_are_poison(epochs: str) -> None:
    data = f'{{"version":1,"host":"h","port":1,"start":"clean",{epochs}}}'
    with pytest.raises(PoisonZnode):
        znodes.decode_broker(1, data.encode())


def test_a_version_1_registration_has_one_plaintext_endpoint() -> None:
    broker = znodes.decode_broker(
        2, b'{"version":1,"host":"h","port":9092,"jmx_port":9999,"timestamp":"2233345666"}'
    )
    assert broker.endpoints == (Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9092),)


def test_a_topic_made_by_kafka_is_read_and_written_alike() -> None:
    topic = znodes.decode_topic("t", KAFKA_TOPIC)
    assert topic == znodes.TopicAssignment(
        TOPIC_ID,
        {
            0: znodes.ReplicaAssignment((1, 2)),
            1: znodes.ReplicaAssignment((2, 1), adding=(3,)),
        },
    )
    assert json.loads(znodes.encode_topic(topic)) == json.loads(KAFKA_TOPIC)


def test_a_partition_state_carries_the_version_it_was_read_at() -> None:
    state = znodes.decode_partition_state("t", 0, KAFKA_STATE, STAT)
    assert state == LeaderAndIsr(1, 5, (1, 2), 3, zk_version=7)
    assert json.loads(znodes.encode_partition_state(state)) == json.loads(KAFKA_STATE)


def test_a_recovering_leader_is_written_only_while_it_recovers() -> None:
    state = LeaderAndIsr(1, 5, (1,), 3, leader_recovery_state=1)
    encoded = znodes.encode_partition_state(state)
    assert json.loads(encoded)["leader_recovery_state"] == 1
    assert znodes.decode_partition_state("t", 0, encoded, STAT).leader_recovery_state == 1
    assert b"leader_recovery_state" not in KAFKA_STATE


def test_partition_state_has_broker_epochs_where_kafka_does_not_read() -> None:
    state = LeaderAndIsr(1, 5, (1, 2), 3, zk_version=7, isr_epochs=(2**40, -1), elr=((3, 17),))
    data = znodes.encode_partition_state(state)
    read = json.loads(data)
    assert {name: read[name] for name in ("isr_epochs", "elr")} == {
        "isr_epochs": [2**40, -1],
        "elr": {"3": 17},
    }
    assert znodes.decode_partition_state("t", 0, data, STAT) == state


def test_an_isr_that_was_edited_by_hand_has_no_broker_epochs() -> None:
    data = b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[1,2],"isr_epochs":[5]}'
    assert znodes.decode_partition_state("t", 0, data, STAT).isr_epochs == ()


def test_the_controller_and_its_epoch() -> None:
    controller = znodes.ControllerRegistration(2, 1_700_000_000_000)
    encoded = znodes.encode_controller(controller)
    assert json.loads(encoded) == {
        "version": 2,
        "brokerid": 2,
        "timestamp": "1700000000000",
        "kraftControllerEpoch": -1,
    }
    assert znodes.decode_controller(encoded) == controller
    assert znodes.decode_controller(b'{"version":1,"brokerid":0}').broker_id == 0
    assert znodes.decode_controller_epoch(znodes.encode_controller_epoch(12)) == 12


def test_the_version_of_the_cluster_id_is_a_string() -> None:
    assert znodes.encode_cluster_id("abc") == b'{"version":"1","id":"abc"}'
    assert znodes.decode_cluster_id(b'{"version":"1","id":"abc"}') == "abc"


def test_configs_and_their_notifications() -> None:
    path = znodes.config_path("topics", "t.x")
    assert path == "/config/topics/t.x"
    assert znodes.decode_config(path, znodes.encode_config({"a": "1"})) == {"a": "1"}
    assert znodes.decode_config(path, b"") == {}
    change = znodes.encode_config_change("users", "a/b")
    assert json.loads(change) == {"version": 2, "entity_path": "users/a%2Fb"}
    assert znodes.decode_config_change("/config/changes/x", change) == ("users", "a/b")
    assert znodes.config_path("brokers", "<default>") == "/config/brokers/<default>"


def test_admin_requests_and_notifications_that_name_partitions() -> None:
    moves = {TopicPartition("t", 0): (1, 2), TopicPartition("u", 3): (2,)}
    assert znodes.decode_reassignment(znodes.encode_reassignment(moves)) == moves
    partitions = [TopicPartition("t", 0), TopicPartition("t", 1)]
    encoded = znodes.encode_partitions(partitions)
    assert znodes.decode_partitions("/isr_change_notification/isr_change_1", encoded) == partitions
    assert znodes.decode_log_dir_event("/x", znodes.encode_log_dir_event(4)) == 4


def test_a_block_of_producer_ids_is_kept_in_strings() -> None:
    block = znodes.ProducerIdBlock(1, 1000, 1999)
    encoded = znodes.encode_producer_id_block(block)
    assert json.loads(encoded)["block_end"] == "1999"
    assert znodes.decode_producer_id_block(encoded) == block


def test_offsets_are_plain_decimal_text() -> None:
    assert znodes.group_offset_path("g", "t", 3) == "/consumers/g/offsets/t/3"
    assert znodes.encode_offset(42) == b"42"
    assert znodes.decode_offset("/o", b"42") == 42


POISON = [
    b"",
    b"null",
    b"[]",
    b"42",
    b"{",
    b"\xff\xfe",
    b"{}",
    b'{"version":"five"}',
    b"[" * 100_000,
    b'{"version":1,"partitions":3,"brokerid":true,"id":7,"leader":"1","config":[]}',
]
DECODERS: list[Callable[[bytes], Any]] = [
    lambda data: znodes.decode_broker(1, data),
    znodes.decode_controller,
    znodes.decode_controller_epoch,
    znodes.decode_cluster_id,
    lambda data: znodes.decode_partition_state("t", 0, data, STAT),
    lambda data: znodes.decode_config_change("/config/changes/c", data),
    znodes.decode_reassignment,
    lambda data: znodes.decode_partitions("/admin/preferred_replica_election", data),
    lambda data: znodes.decode_log_dir_event("/log_dir_event_notification/l", data),
    znodes.decode_producer_id_block,
    lambda data: znodes.decode_offset("/consumers/g/offsets/t/0", data[1:] or b"x"),
]


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("data", POISON)
def test_poison_is_one_typed_error_that_names_the_path(
    decode: Callable[[bytes], Any], data: bytes
) -> None:
    if decode is znodes.decode_controller_epoch and data == b"42":
        return
    if decode is DECODERS[-1] and data == b"42":
        return
    with pytest.raises(PoisonZnode) as caught:
        decode(data)
    assert caught.value.path.startswith("/")


@pytest.mark.parametrize(
    "data",
    [
        b'{"partitions":{"x":[1]}}',
        b'{"partitions":{"0":[]}}',
        b'{"partitions":{"0":[1,1]}}',
        b'{"partitions":{"0":[-1]}}',
        b'{"partitions":{"0":[1.5]}}',
        b'{"partitions":{"0":[1]},"topic_id":"short"}',
        b'{"partitions":[]}',
    ],
)
def test_an_assignment_that_makes_no_sense_is_poison(data: bytes) -> None:
    with pytest.raises(PoisonZnode, match="/brokers/topics/t"):
        znodes.decode_topic("t", data)


@given(st.text(min_size=1, max_size=60))
def test_any_name_becomes_one_path_element_and_comes_back(name: str) -> None:
    try:
        element = znodes.escape(name)
    except UnsafeName:
        assert any(0xD800 <= ord(c) <= 0xDFFF for c in name)
        return
    assert "/" not in element
    assert "\0" not in element
    assert element not in (".", "..")
    assert element.isascii()
    assert znodes.unescape(element) == name


@pytest.mark.parametrize("group", ["my-group", "a.b_c", "console-consumer-12345"])
def test_ordinary_groups_keep_their_path(group: str) -> None:
    assert znodes.group_path(group) == f"/consumers/{group}"


def test_transactional_ids_are_encoded_as_groups_are() -> None:
    assert znodes.transactional_id_path("tx/1 ü") == "/transactions/ids/tx%2F1%20%C3%BC"
    assert znodes.transactional_id_path("..").startswith(znodes.TRANSACTIONAL_IDS + "/%2E")


def test_different_names_never_share_a_path() -> None:
    names = ["a/b", "a%2Fb", "a b", "a+b", "a%20b", ".", "%2E", "..", "é", "e\u0301"]
    assert len({znodes.escape(name) for name in names}) == len(names)


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a b", "t" * 250, "é", "a\0", "../x"])
def test_an_illegal_topic_never_becomes_a_path(topic: str) -> None:
    for make in (znodes.topic_path, znodes.delete_topic_path):
        with pytest.raises(UnsafeName):
            make(topic)
