"""The audit on real Spark, over made-up logs: every seeded fault found, none invented."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark_jobs.findings import FindingClass
from spark_jobs.selftest import (
    NOT_SEEDED,
    SEEDED,
    SEEDED_RANGES,
    damage,
    damage_ranges,
    make_case,
    run_self_test,
)
from spark_jobs.session import spark_session
from spark_jobs.spark_settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session("kbroker-tests", SparkSettings("local[2]")) as session:
        yield session


def test_every_seeded_fault_is_found_and_none_invented(spark: SparkSession) -> None:
    result = run_self_test(spark, seed=7)
    assert result.passed, result
    assert result.seeded >= 40 - 4 + 6


def test_a_clean_copy_has_no_findings(spark: SparkSession) -> None:
    result = run_self_test(spark, seed=3, faults=0, records=500)
    assert (result.seeded, result.invented) == (0, ())


def test_the_seeded_classes_are_all_but_two_and_each_case_has_them() -> None:
    assert set(NOT_SEEDED) == {FindingClass.GAP, FindingClass.VISIBILITY}
    more = damage_ranges(random.Random(1), records=1000, first=4)
    assert {fault.finding_class for fault in more.faults} == set(SEEDED_RANGES)


def test_a_case_holds_every_class_and_a_copy_without_faults_is_the_same() -> None:
    _, _, faults = make_case(random.Random(7), records=4000, partitions=4, faults=40)
    assert {fault.finding_class for fault in faults} == set(SEEDED)
    source, _, _ = make_case(random.Random(1), records=20, partitions=1, faults=0)
    assert damage(random.Random(1), source, 0) == (source, [])
