"""Names of topics at the target: a prefix, or a form with {}."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from kclient.types import TopicPartition
from spark_jobs.cli import kaudit
from spark_jobs.snapshot import ClusterSnapshot
from spark_jobs.target_names import name_at_target, name_in_audit, sql_name_in_audit

NAMES = st.text("ab.", min_size=1, max_size=6)
PARTS = st.text("ab.", max_size=3)
FORMS = st.one_of(PARTS, st.builds("{}{{}}{}".format, PARTS, PARTS))


@given(FORMS, NAMES)
def test_a_name_is_found_again_in_its_form(form: str, topic: str) -> None:
    name = name_at_target(form, topic)
    assert name_in_audit(form, name) == topic
    start, ends = map(int, re.findall(r"\d+", sql_name_in_audit(form)))
    assert name[start - 1 :][: len(name) - ends] == topic


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("east.", "west.orders"),
        ("east.", "east."),
        ("{}.from.east", "orders.from.west"),
        ("{}.from.east", ".from.east"),
        ("a{}a", "a"),
        ("aa{}aa", "aaa"),
    ],
)
def test_a_name_of_another_form_is_none_of_the_audit(form: str, name: str) -> None:
    assert name_in_audit(form, name) is None


def test_the_topics_of_a_cluster_have_the_form() -> None:
    tp = TopicPartition("orders", 0)
    cluster = ClusterSnapshot("west", "", "w", {}, prefix="{}.from.east", renamed={"again": "x"})
    assert cluster.topic_of(tp.topic) == "orders.from.east"
    assert cluster.name_of("orders.from.east") == "orders"
    assert cluster.name_of("x") == "again"
    assert cluster.name_of("again.from.east") is None
    assert sql_name_in_audit("{}.from.east") == "substring(topic, 1, length(topic) - 10)"
    assert sql_name_in_audit("east.") == "substring(topic, 6, length(topic) - 5)"


@pytest.mark.parametrize("command", ["reconcile", "counts"])
@pytest.mark.parametrize("form", ["{}{}", "{x}", "east}"])
def test_a_form_that_is_none_is_refused(command: str, form: str, tmp_path: object) -> None:
    words = ["--source", "a:1", "--target", "b:1", "--topics", "t", "--out", str(tmp_path)]
    done = CliRunner().invoke(kaudit, [command, *words, "--target-prefix", form])
    assert done.exit_code == 2
    assert "is neither a prefix nor a form" in done.output
