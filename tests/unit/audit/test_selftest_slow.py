"""The audit on real Spark, over made-up logs: every seeded fault found, none invented."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from spark_jobs.cli import kaudit
from spark_jobs.findings import FindingClass
from spark_jobs.selftest import (
    NOT_SEEDED,
    SEEDED,
    SEEDED_RANGES,
    Fault,
    SelfTestResult,
    damage,
    damage_ranges,
    make_case,
    most_faults,
    run_self_test,
)
from spark_jobs.session import spark_session
from spark_jobs.spark_settings import SparkSettings
from spark_jobs.verdict import ExitCode

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
    assert str(result).endswith(" found, 0 invented; equal logs: 0 findings")


def test_without_faults_there_is_the_clean_run_only(spark: SparkSession) -> None:
    result = run_self_test(spark, seed=3, faults=0, records=500)
    assert result.passed
    assert str(result) == "0/0 found, 0 invented; equal logs: 0 findings"


def test_a_finding_in_equal_logs_or_no_proof_of_them_fails_the_self_test() -> None:
    """It passed with every seeded fault found: there was no clean run."""
    false_alarm = Fault(FindingClass.MISSING, 0, 1, None)
    found = SelfTestResult(40, 40, (), (), (false_alarm,), proven_equal=False)
    assert not found.passed
    assert str(found) == "40/40 found, 0 invented; equal logs: 1 findings, not proven equal"
    assert not SelfTestResult(40, 40, (), (), (), proven_equal=False).passed


def test_as_many_faults_as_there_is_room_for_are_seeded_and_the_command_takes_no_more() -> None:
    most = most_faults()
    source, _, faults = make_case(random.Random(1), records=4000, partitions=4, faults=most)
    assert len(source) == 4 * 4000
    assert most - 4 <= len(faults) <= most
    with pytest.raises(ValueError, match="larger than population"):
        make_case(random.Random(1), records=4000, partitions=4, faults=most + 1)
    done = CliRunner().invoke(kaudit, ["selftest", "--faults", str(most + 1)])
    assert done.exit_code == ExitCode.USAGE
    assert f"{most + 1} is not in the range 0<=x<={most}" in done.output


def test_the_seeded_classes_are_all_but_two_and_each_case_has_them() -> None:
    assert set(NOT_SEEDED) == {FindingClass.GAP, FindingClass.VISIBILITY}
    more = damage_ranges(random.Random(1), records=1000, first=4)
    assert {fault.finding_class for fault in more.faults} == set(SEEDED_RANGES)


def test_a_case_holds_every_class_and_a_copy_without_faults_is_the_same() -> None:
    _, _, faults = make_case(random.Random(7), records=4000, partitions=4, faults=40)
    assert {fault.finding_class for fault in faults} == set(SEEDED)
    source, _, _ = make_case(random.Random(1), records=20, partitions=1, faults=0)
    assert damage(random.Random(1), source, 0) == (source, [])
