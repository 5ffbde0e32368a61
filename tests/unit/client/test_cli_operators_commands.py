"""The pure parts of `topic offsets|trim-prefix`, `cluster config` and `group watch`."""

from __future__ import annotations

import click
import pytest

from kclient.admin.configs import ConfigEntry, ConfigResource, ConfigSource, ResourceType
from kclient.cli.cluster_config import changes_of, rows_of
from kclient.cli.group_watch import Look, is_below, look_at, rates
from kclient.cli.topic_offsets import parse_moment, parse_trim, trim_offset

NOW_MS = 1_700_000_000_000


# --- topic offsets


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("earliest", "earliest"), ("latest", "latest"), ("max-timestamp", "max_timestamp"),
        ("-1", "latest"), ("-2", "earliest"), ("-3", "max_timestamp"),
        ("-1h", NOW_MS - 3_600_000), ("1699999999", 1_699_999_999_000), ("@1699999999999", 1_699_999_999_999),
        ("2023-11-14T22:13:20", NOW_MS),
    ],
)  # fmt: skip
def test_a_moment_is_a_time_or_a_name_of_list_offsets(text: str, wanted: object) -> None:
    assert parse_moment(text, now_ms=NOW_MS) == wanted


@pytest.mark.parametrize("text", ["soon", "-4", "1699999999:1699999998", "end", ""])
def test_another_moment_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError, match="--time"):
        parse_moment(text, now_ms=NOW_MS)


# --- topic trim-prefix


@pytest.mark.parametrize(
    ("text", "at_time", "wanted"),
    [
        ("47", -1, 47), ("5", -1, 10), ("end", -1, 100), ("-3", -1, 97), ("-500", -1, 10),
        ("500", -1, 500),
        ("@-1h", 60, 60), ("@-1h", 5, 10), ("@-1h", -1, 100), ("@-1h", 100, 100),
        ("@-1h", 101, 100),
    ],
)  # fmt: skip
def test_the_new_start_of_a_log_from_10_to_100(text: str, at_time: int, wanted: int) -> None:
    """500 is above the end: the broker refuses it, as an offset of another partition or topic."""
    assert trim_offset(parse_trim(text, now_ms=NOW_MS), 10, 100, at_time) == wanted


@pytest.mark.parametrize("text", ["start", "stored", "+3", "5:7", ":end", "@-2h:-1h", "x"])
def test_what_is_no_bound_to_delete_below_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError, match="-o"):
        parse_trim(text, now_ms=NOW_MS)


# --- cluster config


def test_only_the_settings_of_the_resource_itself_are_dynamic() -> None:
    entries = [
        ConfigEntry("b", "1", ConfigSource.BROKER),
        ConfigEntry("a", None, ConfigSource.BROKER, sensitive=True),
        ConfigEntry("c", "2", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ConfigEntry("d", "3", ConfigSource.STATIC_BROKER),
    ]

    def shown(name: str, *, with_static: bool) -> list[tuple[object, ...]]:
        resource = ConfigResource(ResourceType.BROKER, name)
        rows = rows_of(resource, entries, with_static=with_static)
        return [(row["broker"], row["name"], row["value"]) for row in rows]

    assert shown("1", with_static=False) == [(1, "a", "[hidden]"), (1, "b", "1")]
    assert shown("", with_static=False) == [(None, "c", "2")]
    assert [name for _, name, _ in shown("1", with_static=True)] == ["a", "b", "c", "d"]


def test_changes_are_set_and_deleted() -> None:
    assert changes_of(["a=1", "b=x=y", "c="], ["d"]) == {"a": "1", "b": "x=y", "c": "", "d": None}


@pytest.mark.parametrize(
    ("changes", "removed", "problem"),
    [
        ([], [], "nothing to change"),
        (["a"], [], "expected name=value"),
        (["=1"], [], "expected name=value"),
        (["a=1"], ["a"], "a is both"),
    ],
)
def test_changes_that_make_no_sense_are_refused(
    changes: list[str], removed: list[str], problem: str
) -> None:
    with pytest.raises(click.UsageError, match=problem):
        changes_of(changes, removed)


# --- group watch


def test_rates_are_of_the_partitions_of_both_looks() -> None:
    first = Look(10.0, {("t", 0): 100, ("t", 1): 5}, {("t", 0): 150, ("t", 1): 5})
    then = Look(12.0, {("t", 0): 130, ("u", 0): 9}, {("t", 0): 151, ("t", 1): 5, ("u", 0): 9})
    assert rates(first, then) == (15.0, 0.5)
    assert rates(None, then) == (None, None)
    assert rates(first, first) == (None, None)
    assert rates(Look(1.0, {}, {}), then) == (None, None)
    assert rates(then, Look(13.0, {("t", 0): 0}, {("t", 0): 151})) == (-130.0, 0.0)


def test_a_look_leaves_out_what_is_unknown() -> None:
    rows = [
        {"topic": "t", "partition": 0, "current_offset": 3, "log_end_offset": None},
        {"topic": "t", "partition": 1, "current_offset": None, "log_end_offset": 8},
    ]
    assert look_at(rows, 1.0) == Look(1.0, {("t", 0): 3}, {("t", 1): 8})


def test_an_unknown_lag_is_not_below_a_limit() -> None:
    assert is_below([{"lag": 0}, {"lag": 3}], 3)
    assert not is_below([{"lag": 4}], 3)
    assert not is_below([{"lag": None}], 3)
    assert not is_below([], 3)
