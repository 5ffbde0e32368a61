"""The file of metrics of a real `kmirror run`, as Prometheus reads it, and what `kmirror status` shows beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.brokers import Cluster
from tests.kit.mirrored_clusters import MakeMirror, make_topic, produce, write_to_mirror
from tests.kit.mirrors import until_same
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150), pytest.mark.shared_clusters]

BOTH = {"east->west.enabled": "true", "west->east.enabled": "true"}


class Metrics:
    """The file of metrics of a mirror."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def values(self) -> dict[str, dict[str, float]]:
        """Return the values of east->west by name, and by partition; "" is the whole direction."""
        found: dict[str, dict[str, float]] = {}
        for family in text_string_to_metric_families(self.path.read_text()):
            for each in family.samples:
                if each.labels["source"] == "east":
                    assert each.labels["target"] == "west"
                    named = each.labels.get("topic", ""), each.labels.get("partition", "")
                    found.setdefault(each.name, {})["-".join(named).strip("-")] = each.value
        return found

    def become(self, name: str, **wanted: float) -> None:
        """Wait until the samples of *name* are *wanted*, with _ for - and "flow" for the whole direction."""
        expected = {
            "" if key == "flow" else key.replace("_", "-"): value for key, value in wanted.items()
        }
        eventually(
            f"{name} of {expected}",
            lambda: self.path.exists() and self.values().get(name) == expected,
            timeout=40,
        )


def test_the_metrics_of_a_live_mirror_show_lag_and_stops_and_those_of_an_ended_one_do_not(
    east: Cluster, west: Cluster, mirror: MakeMirror, tmp_path: Path
) -> None:
    make_topic(east, "orders", 2)
    produce(east, "orders", 20, partitions=2, **{"batch.num.messages": 1})
    copier, metrics = mirror(BOTH), Metrics(tmp_path / "mirror.prom")
    copier.start("--metrics", str(metrics.path))
    until_same(east, west, "orders", 2)
    metrics.become("mirror_copied_records_total", orders_0=10, orders_1=10)
    metrics.become("mirror_lag_records", orders_0=0, orders_1=0)
    code, output = copier.ask("status")
    assert (code, "skipped: its records come from east" in output) == (0, True), output
    assert "1 skipped; exit code 0" in output
    assert copier.stop() == 0
    ended = metrics.values()
    assert (ended["mirror_running"], ended["mirror_exit_code"]) == ({"": 0.0}, {"": 0.0})
    assert ended["mirror_flow_copied_records_total"] == {"": 20}
    assert "mirror_lag_records" not in ended

    # Another record at the target stops the first partition.
    write_to_mirror(west, "orders", 1)
    produce(east, "orders", 30, partitions=2, **{"batch.num.messages": 1})
    copier.start("--metrics", str(metrics.path))
    metrics.become("mirror_stopped", orders_0=1, orders_1=0)
    metrics.become("mirror_copied_records_total", orders_0=0, orders_1=15)
    metrics.become("mirror_lag_records", orders_0=14, orders_1=0)
    metrics.become("mirror_flow_lag_records", flow=14)
    found = metrics.values()
    assert found["mirror_flow_stopped"] == {"": 1}
    assert found["mirror_lag_seconds"] == {"orders-1": 0}, "nothing was copied of the other one"
    assert set(found["mirror_no_progress_seconds"]) == {"orders-1"}
    assert found["mirror_running"] == {"": 1}

    # The file of a process that was killed states when that was.
    last = found["mirror_updated_timestamp"][""]
    eventually("the next write", lambda: metrics.values()["mirror_updated_timestamp"][""] > last)
    copier.kill()
    killed = metrics.values()
    assert killed["mirror_running"] == {"": 1}
    copier.start("--metrics", str(metrics.path))
    eventually(
        "a new file",
        lambda: metrics.values()["mirror_updated_timestamp"] != killed["mirror_updated_timestamp"],
    )
    metrics.become("mirror_stopped", orders_0=1, orders_1=0)
    assert copier.stop() == 5
    assert metrics.values()["mirror_exit_code"] == {"": 5}


def test_a_limited_mirror_shows_its_lag_in_records_bytes_and_seconds(
    east: Cluster, west: Cluster, mirror: MakeMirror, tmp_path: Path
) -> None:
    make_topic(east, "orders")
    produce(east, "orders", 400, size=2_000, **{"batch.num.messages": 5})
    metrics = Metrics(tmp_path / "mirror.prom")
    copier = mirror({"east.consumer.fetch.max.bytes.per.second": "20000"})
    copier.start("--metrics", str(metrics.path))

    def has_copied_a_part() -> bool:
        found = metrics.values() if metrics.path.exists() else {}
        return found.get("mirror_copied_records_total", {}).get("orders-0", 0) > 0

    eventually("a part of the records", has_copied_a_part, timeout=40)
    found = metrics.values()
    lag = found["mirror_lag_records"]["orders-0"]
    assert 0 < lag < 400
    assert lag + found["mirror_copied_records_total"]["orders-0"] == 400
    assert 500 * lag < found["mirror_lag_bytes"]["orders-0"] < 3_000 * lag
    assert 0 < found["mirror_lag_seconds"]["orders-0"] < 150
    assert found["mirror_flow_lag_records"] == {"": lag}
    assert found["mirror_flow_fetched_bytes_total"][""] > 0
    assert copier.stop() == 0
