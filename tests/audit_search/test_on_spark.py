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

from spark_jobs.session import spark_session
from spark_jobs.spark_settings import SparkSettings
from tests.audit_search.cases import MEANWHILE, PLAIN, drawn, is_renumbered
from tests.audit_search.on_spark import disagreements_on_spark
from tests.audit_search.search import storage
from tests.kit.property_tests import cases

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
