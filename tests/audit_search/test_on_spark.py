"""A slice of the search on Spark: a case of each plain kind of fault, in one audit of a complete mirror.

A short run has some of the kinds, others each day. `python -m tests.audit_search --spark` has any number of seeds, and
mirrors that lag.
"""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path

import pytest

from kclient.types import TopicPartition
from spark_jobs.comparison import Options
from spark_jobs.digest import WindowShape
from spark_jobs.reconcile import TimeBuckets, reconcile
from spark_jobs.session import spark_session
from spark_jobs.spark_engine import SparkEngine
from spark_jobs.spark_settings import SparkSettings
from tests.audit_search.cases import MEANWHILE, PLAIN, drawn, is_renumbered
from tests.audit_search.on_spark import EncodedReader, disagreements_on_spark
from tests.audit_search.search import storage
from tests.kit.audit_batches import BatchEngine
from tests.kit.audit_logs import Logs, MemoryEngine, snapshot
from tests.kit.property_tests import cases
from tests.kit.renumbered_tails import drawn as drawn_tail

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_one_audit_on_spark_of_plain_kinds_of_fault_is_what_the_judge_expects() -> None:
    steady = [kind for kind in PLAIN if kind not in MEANWHILE and not is_renumbered(kind)]
    chosen = [
        next(case for seed in itertools.count() if (case := drawn(seed, kind)).complete)
        for kind in cases(steady)
    ]
    stored = storage(random.Random("storage on Spark"))
    with spark_session("audit-search", SparkSettings("local[2]"), log=Path(os.devnull)) as spark:
        assert disagreements_on_spark(spark, chosen, stored, complete=True) == []


@pytest.mark.parametrize("complete", [False, True])
def test_tails_of_renumbered_targets_are_on_spark_what_they_are_without(*, complete: bool) -> None:
    """Spark tasks look up all keys; of what they explain no copies are looked up."""
    every = (drawn_tail(random.Random(f"tail on Spark {seed}")) for seed in itertools.count())
    fitting = (each for each in every if not each.repeated and each.complete is complete)
    chosen = list(itertools.islice(fitting, 30))
    of_topics = [TopicPartition(f"{n}t", 0) for n in range(len(chosen))]
    logs: tuple[Logs, Logs] = (
        {tp: each.source for tp, each in zip(of_topics, chosen, strict=True)},
        {tp: each.target for tp, each in zip(of_topics, chosen, strict=True)},
    )
    source, target = (
        snapshot(
            name,
            logs[side],
            frozenset(
                tp.topic for tp, each in zip(of_topics, chosen, strict=True) if each.cleans[side]
            ),
        )
        for side, name in enumerate(("source", "target"))
    )
    options = Options(10, complete, renumbered=True)
    buckets = TimeBuckets(0, 60)
    encoded = BatchEngine(*logs, WindowShape(10, 0, 60, 60))
    without = reconcile(MemoryEngine(*logs, 10), source, target, options, buckets=buckets).account
    with spark_session("audit-search", SparkSettings("local[2]"), log=Path(os.devnull)) as spark:
        engine = SparkEngine(
            EncodedReader(spark, encoded), 10, buckets, max_findings=3, looked_up=0
        )
        found = reconcile(engine, source, target, options, buckets=buckets).account
    assert found.partitions == without.partitions
    assert any(counts.explained for counts in found.partitions.values())
