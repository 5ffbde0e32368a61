"""The synced part of a log, read from the simulated disk: no power loss removes it."""

from __future__ import annotations

from collections.abc import Mapping

from kclient.wire.batches import iterate
from kclient.wire.errors import KafkaError
from tests.kit.simulated_disk import SimulatedDisk
from tests.simulation.copies import GONE, Copy, Record


def segments(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the segments among the *files* of a log as recovery has them: a published replacement is completed."""
    found = {name: content for name, content in files.items() if name.endswith(".log")}
    unfinished = min((name for name in files if name.endswith(".log.cleaned")), default="~")
    for name, content in files.items():
        stem = name.removesuffix(".swap")
        if stem == name or not stem.endswith(".log") or stem >= unfinished:
            continue
        end = int(stem.removesuffix(".log"))
        for info in iterate(content):
            end = info.next_offset
        for old in [each for each in found if stem <= each < f"{end:020d}.log"]:
            del found[old]
        found[stem] = content
    return found


def synced_end(disk: SimulatedDisk, copy: Copy, ledger: list[Record]) -> int:
    """Return below which offset *ledger* is on the disk that holds *copy*; what was deleted counts as there."""
    if copy.log is not None and copy.log.directory.endswith("-delete"):
        return len(ledger)  # by order of the controller, which deletes the topic
    end = max(copy.synced, copy.start)
    if copy.log is None or end >= len(ledger):
        return end
    files = segments(disk.durable(copy.log.directory))
    for name in sorted(files):
        try:
            for info in iterate(files[name]):
                record = (info.leader_epoch, info.crc)
                inside = range(max(info.base_offset, end), min(info.next_offset, len(ledger)))
                if info.base_offset > end or any(
                    ledger[offset] not in (record, GONE) for offset in inside
                ):
                    break
                end = max(end, info.next_offset)
        except KafkaError:
            break
    copy.synced = min(end, len(ledger))
    return copy.synced
