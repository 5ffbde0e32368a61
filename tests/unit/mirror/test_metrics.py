"""The metrics of a running kmirror: as Prometheus reads them, and without a sample of what was not measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from kclient.types import TopicPartition
from kclient.wire.errors import CorruptMessage
from mirrormaker.link import PartitionLink
from mirrormaker.link_state import Cause, LinkState, LogEnds, Problem
from mirrormaker.metrics import FAMILIES, LINKS_PER_STEP, PARTITION, Direction, Samples
from mirrormaker.progress import Progress
from mirrormaker.runs import Run

NOW_MS = 100_000
Found = dict[str, dict[tuple[str, ...], float]]
FLOW = ("east", "west")


def link_of(partition: int = 0, *, lag: int = 0, open_records: int = 0) -> PartitionLink:
    """Return a link that copies; the target ends at offset 100."""
    link = PartitionLink(TopicPartition("orders", partition))
    link.start()
    link.located(0, LogEnds(0, 100, 0, 100))
    link.source_end, link.source_high_watermark = 100 + lag - open_records, 100 + lag
    assert (link.state, link.lag) == (LinkState.COPYING, lag)
    return link


def run_of(records: int = 10, size: int = 500, timestamp: int = 90_000) -> Run:
    return Run(memoryview(bytes(size)), 0, records, 2, records, 0, timestamp, 0, 0)


def direction(
    *links: PartitionLink,
    progress: Progress | None = None,
    idle: Callable[[PartitionLink], float | None] = lambda _: 0.5,
    **changed: Any,
) -> Direction:
    made = Direction(
        source="east",
        target="west",
        links=links,
        progress=progress or Progress(0.0),
        idle_time=idle,
        age=lambda timestamp_ms: (NOW_MS - timestamp_ms) / 1000,
        updated=NOW_MS / 1000,
        is_conditional=True,
        conflicts=0,
        skipped=0,
        gap_entries=0,
        groups_not_copied=None,
    )
    return replace(made, **changed)


def text_of(*directions: Direction) -> str:
    samples = Samples()
    for each in directions:
        for _ in samples.read(each):
            pass
    return "".join(samples.text())


def parsed(text: str) -> Found:
    """Return the samples by name, then by the values of their labels, as Prometheus reads them."""
    found: Found = {}
    kinds = {each.name: each.kind for each in FAMILIES}
    names = set()
    for family in text_string_to_metric_families(text):
        assert family.name not in names, f"{family.name} is written in two places"
        names.add(family.name)
        assert family.documentation.endswith(".")
        for sample in family.samples:
            assert family.type == kinds[sample.name]
            labels = tuple(sample.labels.values())
            assert tuple(sample.labels) == ("source", "target", "topic", "partition")[: len(labels)]
            values = found.setdefault(sample.name, {})
            assert labels not in values, "node_exporter refuses a file with a sample twice"
            values[labels] = sample.value
    return found


def read(*links: PartitionLink, **options: Any) -> Found:
    return parsed(text_of(direction(*links, **options)))


def of(partition: int) -> tuple[str, ...]:
    return (*FLOW, "orders", str(partition))


def test_lag_and_counts_are_those_of_each_partition_and_their_sums_those_of_the_direction() -> None:
    first, second = link_of(0, lag=20, open_records=5), link_of(1, lag=3)
    progress = Progress(0.0)
    progress.appended(first, run_of(10, 500, 90_000), 1.0)
    progress.appended(first, run_of(10, 700, 80_000), 1.0)
    progress.appended(second, run_of(20, 200, 97_500), 1.0)
    found = read(first, second, progress=progress, idle=lambda link: 1.0 + link.tp.partition)
    assert found["mirror_lag_records"] == {of(0): 20, of(1): 3}
    assert found["mirror_flow_lag_records"] == {FLOW: 23}
    assert found["mirror_lag_bytes"] == {of(0): 20 * 60, of(1): 3 * 10}
    assert found["mirror_flow_lag_bytes"] == {FLOW: 23 * 35}, (
        "35 bytes a record, as in the status line"
    )
    assert found["mirror_lag_seconds"] == {of(0): 10.0, of(1): 2.5}
    assert found["mirror_flow_lag_seconds"] == {FLOW: 10.0}
    assert found["mirror_open_transaction_records"] == {of(0): 5, of(1): 0}
    assert found["mirror_no_progress_seconds"] == {of(0): 1.0, of(1): 2.0}
    assert found["mirror_flow_no_progress_seconds"] == {FLOW: 2.0}
    for what, counts in {"records": (20, 20), "bytes": (1200, 200), "batches": (4, 2)}.items():
        assert found[f"mirror_copied_{what}_total"] == {of(0): counts[0], of(1): counts[1]}
        assert found[f"mirror_flow_copied_{what}_total"] == {FLOW: sum(counts)}
    assert found["mirror_flow_partitions"] == {FLOW: 2}
    assert found["mirror_updated_timestamp"] == {FLOW: 100}
    assert found["mirror_running"] == {FLOW: 1}
    assert "mirror_exit_code" not in found


def test_what_is_not_measured_has_no_sample() -> None:
    unread = PartitionLink(TopicPartition("orders", 0))
    found = read(unread, link_of(1, lag=3), idle=lambda _: None)
    assert found["mirror_lag_records"] == {of(1): 3}
    assert "mirror_flow_lag_records" not in found, "a sum of a part is not the sum"
    for name in ("lag_bytes", "lag_seconds", "no_progress_seconds"):
        assert f"mirror_{name}" not in found, "nothing was copied"
        assert f"mirror_flow_{name}" not in found
    assert "mirror_flow_groups_not_copied" not in found
    assert found["mirror_copied_records_total"] == {of(0): 0, of(1): 0}


def test_a_direction_without_partitions_has_no_lag() -> None:
    found = read()
    assert not [name for name in found if "lag" in name]
    assert found["mirror_flow_partitions"] == {FLOW: 0}


def test_without_lag_its_bytes_and_seconds_are_zero() -> None:
    found = read(link_of(0), link_of(1))
    for name in ("lag_records", "lag_bytes", "lag_seconds"):
        assert found[f"mirror_{name}"] == {of(0): 0, of(1): 0}
        assert found[f"mirror_flow_{name}"] == {FLOW: 0}


def test_the_lag_in_seconds_of_a_direction_is_not_zero_while_a_partition_is_behind() -> None:
    assert "mirror_flow_lag_seconds" not in read(link_of(0), link_of(1, lag=3))
    late = link_of(2, lag=1)
    progress = Progress(0.0)
    progress.appended(late, run_of(timestamp=NOW_MS + 4000), 1.0)
    found = read(link_of(0), link_of(1, lag=3), late, progress=progress)
    assert found["mirror_flow_lag_seconds"] == {FLOW: -4.0}, "the producer's clock is ahead"


def test_a_stopped_partition_is_1_with_its_lag_and_without_a_time_of_progress() -> None:
    stopped = link_of(0, lag=7)
    stopped.state, stopped.problem = LinkState.STOPPED, Problem(Cause.DIVERGED, "")
    found = read(stopped, link_of(1), idle=lambda link: None if link.problem else 0.0)
    assert found["mirror_stopped"] == {of(0): 1, of(1): 0}
    assert found["mirror_flow_stopped"] == {FLOW: 1}
    assert found["mirror_lag_records"][of(0)] == 7
    assert found["mirror_no_progress_seconds"] == {of(1): 0.0}


def test_rewinds_damaged_batches_and_rejected_appends_are_counted() -> None:
    link = link_of(0)
    link.corrupt(link.generation, CorruptMessage("crc"))
    link.append_rejected(link.generation, 120)
    link.append_rejected(link.generation - 1, 120)  # behind the first one in the pipeline
    found = read(link, link_of(1))
    for name in ("rewinds", "damaged_batches", "rejected_appends"):
        assert found[f"mirror_{name}_total"] == {of(0): 1, of(1): 0}, name
        assert found[f"mirror_flow_{name}_total"] == {FLOW: 1}, name
    found = read(link, is_conditional=False)
    assert "mirror_rejected_appends_total" not in found
    assert "mirror_flow_rejected_appends_total" not in found
    assert found["mirror_flow_rewinds_total"] == {FLOW: 1}


def test_no_count_of_a_direction_goes_back_when_a_partition_is_removed() -> None:
    links = [link_of(n) for n in range(2 * LINKS_PER_STEP)]
    progress = Progress(0.0)
    for link in links:
        link.append_rejected(link.generation, 120)
        progress.appended(link, run_of(), 1.0)
    samples = Samples()
    steps = samples.read(direction(*links, progress=progress))
    next(steps)
    for removed in (links[0], links[-1]):  # one that was read, and one that was not
        progress.removed(removed)
    for _ in steps:
        pass
    during = parsed("".join(samples.text()))
    after = read(*links[1:-1], progress=progress)
    for name, count in {"rewinds": 200, "rejected_appends": 200, "copied_records": 2000}.items():
        assert during[f"mirror_flow_{name}_total"] == {FLOW: count}, name
        assert after[f"mirror_flow_{name}_total"] == {FLOW: count}, name
    assert len(after["mirror_rewinds_total"]) == len(links) - 2


def test_a_direction_has_what_no_partition_has() -> None:
    progress = Progress(0.0)
    progress.fetched_bytes = 4711
    options = {"conflicts": 1, "skipped": 2, "gap_entries": 3, "groups_not_copied": 0}
    found = read(link_of(), progress=progress, **options)
    assert found["mirror_flow_topics_in_conflict"] == {FLOW: 1}
    assert found["mirror_flow_topics_skipped"] == {FLOW: 2}
    assert found["mirror_flow_gap_ledger_entries_total"] == {FLOW: 3}
    assert found["mirror_flow_groups_not_copied"] == {FLOW: 0}
    assert found["mirror_flow_fetched_bytes_total"] == {FLOW: 4711}


def test_the_last_file_has_the_counts_and_nothing_that_looks_alive() -> None:
    link = link_of(0, lag=7)
    progress = Progress(0.0)
    progress.appended(link, run_of(), 1.0)
    found = read(link, progress=progress, has_ended=True, exit_code=5)
    assert found["mirror_running"] == {FLOW: 0}
    assert found["mirror_exit_code"] == {FLOW: 5}
    assert found["mirror_copied_records_total"] == {of(0): 10}
    assert found["mirror_stopped"] == {of(0): 0}
    for name in found:
        assert not any(part in name for part in ("lag", "open", "no_progress")), name


def test_directions_share_the_families_and_any_alias_is_a_label() -> None:
    back = direction(link_of(), source='a"b\\c', target="east")
    found = parsed(text_of(direction(link_of()), back))
    assert set(found["mirror_flow_partitions"]) == {FLOW, ('a"b\\c', "east")}
    assert len(found["mirror_lag_records"]) == 2


def test_a_step_reads_a_bounded_number_of_partitions() -> None:
    asked: list[int] = []

    def idle(link: PartitionLink) -> float:
        asked[-1] += 1
        return 0.0

    links: Sequence[PartitionLink] = [link_of(n) for n in range(3 * LINKS_PER_STEP + 1)]
    asked.append(0)
    samples = Samples()
    for _ in samples.read(direction(*links, idle=idle)):
        asked.append(0)
    assert max(asked) == LINKS_PER_STEP
    assert sum(asked) == len(links)
    found = parsed("".join(samples.text()))
    assert {len(found[each.name]) for each in PARTITION if each.name != "mirror_lag_seconds"} == {
        len(links)
    }
