"""MirrorMaker 2's heartbeats and checkpoints, and the names of their topics."""

from __future__ import annotations

import pytest

from kclient.types import OffsetAndMetadata, TopicPartition
from mirrormaker.config import MirrorConfig
from mirrormaker.group_offsets import LogRange
from mirrormaker.mm2_records import (
    Checkpoint,
    checkpoints_of,
    checkpoints_topic,
    heartbeat,
    is_heartbeats,
)
from mirrormaker.settings import LinkSettings
from mirrormaker.topics import Selection

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_checkpoint_is_encoded_as_by_mirrormaker_2() -> None:
    checkpoint = Checkpoint("gé", TopicPartition("t", 2), 500, 100, "note")
    assert checkpoint.key == b"\0\3g\xc3\xa9" + b"\0\1t" + b"\0\0\0\2"
    assert checkpoint.value == (
        b"\0\0" + b"\0\0\0\0\0\0\1\xf4" + b"\0\0\0\0\0\0\0\x64" + b"\0\4note"
    )


def test_a_heartbeat_is_encoded_as_by_mirrormaker_2() -> None:
    assert heartbeat("east", "west", 258) == (b"\0\4east\0\4west", b"\0\0\0\0\0\0\0\0\1\2")


def test_downstream_is_upstream_clamped_to_the_targets_log() -> None:
    source = {T0: OffsetAndMetadata(50, "note", 3), T1: OffsetAndMetadata(500)}
    logs = {T0: LogRange(0, 100), T1: LogRange(0, 100)}
    assert checkpoints_of("g", source, source, logs) == [
        Checkpoint("g", T0, 50, 50, "note"),
        Checkpoint("g", T1, 500, 100, ""),
    ]
    assert not checkpoints_of("g", source, source, {T1: LogRange(0, 0)}), "unknown or empty logs"


def test_a_checkpoint_has_the_translated_offset_and_does_not_go_back_while_its_group_goes_forward() -> (
    None
):
    source, placed = {T0: OffsetAndMetadata(50)}, {T0: OffsetAndMetadata(70)}
    (first,) = checkpoints_of("g", source, placed, {T0: LogRange(0, 100)})
    assert first == Checkpoint("g", T0, 50, 70, "")
    assert checkpoints_of("g", source, {}, {T0: LogRange(0, 100)}) == [], "unknown"
    assert first.is_new(None)
    assert not first.is_new(first)
    assert not Checkpoint("g", T0, 51, 69, "").is_new(first)
    assert Checkpoint("g", T0, 51, 71, "").is_new(first)
    assert Checkpoint("g", T0, 40, 60, "").is_new(first), "the group was reset"


def test_what_a_string_cannot_hold_is_left_out() -> None:
    long = "x" * 40_000
    source = {T0: OffsetAndMetadata(50, long)}
    assert not checkpoints_of(long, source, source, {T0: LogRange(0, 100)})
    (checkpoint,) = checkpoints_of("g", source, source, {T0: LogRange(0, 100)})
    assert checkpoint.value.endswith(b"\0\0")


@pytest.mark.parametrize(
    ("separator", "name"), [(".", "a.checkpoints.internal"), ("_", "a_checkpoints_internal")]
)
def test_topics_have_the_names_of_mirrormaker_2(separator: str, name: str) -> None:
    assert checkpoints_topic("a", separator) == name
    selection = Selection("b", "c", LinkSettings(separator=separator, topics_exclude=""))
    assert not selection.wants(name), "checkpoints are never mirrored"
    assert is_heartbeats("heartbeats", separator)
    assert is_heartbeats(f"a{separator}heartbeats", separator)
    assert not is_heartbeats("myheartbeats", separator)


def test_heartbeats_are_mirrored_under_the_name_of_their_source_if_they_are_emitted() -> None:
    emitting = Selection("east", "west", LinkSettings(topics="t", emit_heartbeats=True))
    assert [emitting.wants(name) for name in ("t", "heartbeats", "north.heartbeats", "u")] == [
        *(True, True, True, False)
    ]
    assert emitting.target_name("t") == "t"
    assert emitting.target_name("heartbeats") == "east.heartbeats"
    silent = Selection("east", "west", LinkSettings())
    assert silent.target_name("heartbeats") == "heartbeats"
    assert not Selection("east", "west", LinkSettings(topics="t")).wants("heartbeats")


def test_a_direction_knows_whether_the_opposite_one_emits_heartbeats() -> None:
    values = {
        "clusters": "east, west",
        "east.bootstrap.servers": "e:1",
        "west.bootstrap.servers": "w:1",
        "east->west.enabled": "true",
        "emit.heartbeats.enabled": "true",
    }
    (alone,) = MirrorConfig.of(values).flows
    assert not alone.opposite_emits_heartbeats
    both = MirrorConfig.of({**values, "west->east.enabled": "true"}).flows
    assert [flow.opposite_emits_heartbeats for flow in both] == [True, True]
