"""What is seen of a process and of ZooKeeper, and the picture of it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET
from pathlib import Path
from tempfile import TemporaryFile

from tests.chaos.vitals import EVERY, SHORTEST, Vitals, of_process, of_zookeeper
from tests.chaos.vitals_picture import draw


def test_a_process_is_seen_to_hold_what_it_holds() -> None:
    before = of_process(os.getpid())
    assert before["rss"] > 10 << 20
    go_on = threading.Event()
    held = bytearray(os.urandom(1 << 20) * 64)
    thread = threading.Thread(target=go_on.wait)
    thread.start()
    with TemporaryFile():
        after = of_process(os.getpid())
    go_on.set()
    thread.join()
    assert after["descriptors"] == before["descriptors"] + 1
    assert after["threads"] == before["threads"] + 1
    assert after["rss"] - before["rss"] > len(held) / 2


def test_a_segment_counts_once_it_is_deleted(tmp_path: Path) -> None:
    before = of_process(os.getpid())["descriptors"]
    segment = tmp_path / "00000000000000000000.log"
    with segment.open("wb"):
        assert of_process(os.getpid())["descriptors"] == before
        segment.unlink()
        assert of_process(os.getpid())["descriptors"] == before + 1


def test_a_process_that_has_ended_holds_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    assert os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT) is not None
    assert of_process(process.pid) == {}  # a zombie
    process.wait()
    assert of_process(process.pid) == {}


def test_zookeeper_is_asked_for_znodes_and_watches() -> None:
    answer = "zk_version\t3.9\nzk_znode_count\t137\nzk_watch_count\t12\nzk_ephemerals_count\t4\n"
    assert of_zookeeper(answer) == {"znodes": 137.0, "watches": 12.0}
    assert of_zookeeper("") == {}


def vitals(pids: dict[str, int], clock: list[float]) -> Vitals:
    return Vitals(lambda: pids, [], lambda: clock[0])


def test_a_restarted_process_is_another_series_and_a_short_one_is_not_judged() -> None:
    pids, clock = {"broker-1": os.getpid()}, [0.0]
    seen = vitals(pids, clock)
    while clock[0] < SHORTEST + EVERY:
        seen.look()
        clock[0] += EVERY
    pids["broker-1"] = os.getppid()
    seen.look()
    assert {of for _, of in seen.series} == {"broker-1", "broker-1 (2)"}
    judged = seen.judge()
    assert {one.of for one in judged} == {"broker-1"}
    assert {one.kind for one in judged} == {"rss", "descriptors", "threads"}
    assert "descriptors,broker-1," in seen.to_csv()


def test_the_picture_has_a_panel_per_kind_and_a_line_per_process() -> None:
    series = {
        ("rss", "broker-1"): [(0.0, 5e7), (60.0, 6e7)],
        ("rss", "broker-2"): [(0.0, 5e7), (60.0, 5e7)],
        ("znodes", "<zoo>"): [(0.0, 100.0)],
    }
    picture = ET.fromstring(draw(series, "S46 & more"))
    space = "{http://www.w3.org/2000/svg}"
    assert len(picture.findall(f"{space}polyline")) == 3
    texts = [text.text for text in picture.findall(f"{space}text")]
    assert {"S46 & more", "rss, MiB", "znodes", "<zoo>", "broker-2"} <= set(texts)
    lines = [one.attrib["points"].split() for one in picture.findall(f"{space}polyline")]
    (grown, flat, _) = lines
    heights = [[float(point.split(",")[1]) for point in line] for line in (grown, flat)]
    assert heights[0][1] < heights[0][0]
    assert heights[1][1] == heights[1][0]
