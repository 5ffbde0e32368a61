"""A run that is stopped and continued is the run without a stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.run import run
from tests.simulation.run_in_parts import NotThisRun, begin_or_continue, code_hash
from tests.simulation.script import draw

SEEDS = range(100, 104)


def test_a_run_in_parts_has_played_what_one_without_a_stop_has(tmp_path: Path) -> None:
    whole = begin_or_continue(None, SEEDS, "draw", "code")
    for seed in whole.left:
        whole.take(run(draw(seed)))
    path = tmp_path / "run.json"
    for expected in (SEEDS, SEEDS[1:], SEEDS[3:]):
        part = begin_or_continue(path, SEEDS, "draw", "code")
        assert part.left == expected
        for seed in part.left[: 1 if part.parts == 1 else 2]:
            part.take(run(draw(seed)))
        part.save(path, 5)
    ended = begin_or_continue(path, SEEDS, "draw", "code")
    assert (ended.tally, ended.digest) == (whole.tally, whole.digest)
    assert (len(ended.left), ended.seconds, ended.parts) == (0, 15, 4)


@pytest.mark.parametrize(
    ("seeds", "drawn", "code", "cause"),
    [
        (SEEDS, "draw", "other", "other sources"),
        (SEEDS, "draw_mirror", "code", "other schedules"),
        (range(100, 105), "draw", "code", "other schedules, draw of seeds 100..103"),
    ],
)
def test_another_run_is_not_continued(
    tmp_path: Path, seeds: range, drawn: str, code: str, cause: str
) -> None:
    path = tmp_path / "run.json"
    begin_or_continue(path, SEEDS, "draw", "code").save(path, 1)
    with pytest.raises(NotThisRun, match=cause):
        begin_or_continue(path, seeds, drawn, code)
    path.write_text("{}")
    with pytest.raises(NotThisRun, match="has no run"):
        begin_or_continue(path, SEEDS, "draw", "code")


def test_the_code_is_what_is_played_and_not_its_tests(tmp_path: Path) -> None:
    for name in ("kbroker/log", "kclient", "mirrormaker", "tests/kit", "tests/simulation"):
        (tmp_path / name).mkdir(parents=True)
    before = code_hash(tmp_path)
    (tmp_path / "tests/simulation/test_x.py").touch()
    assert code_hash(tmp_path) == before
    (tmp_path / "kbroker/log/x.py").write_text("1")
    first = code_hash(tmp_path)
    (tmp_path / "kbroker/log/x.py").write_text("2")
    assert len({before, first, code_hash(tmp_path)}) == 3
