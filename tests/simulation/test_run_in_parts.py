"""A run that is stopped and continued is the run without a stop."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.run import run
from tests.simulation.run_in_parts import (
    PACKAGES,
    ROOT,
    NotThisRun,
    begin_or_continue,
    code_hash,
    imported_sources,
)
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


def test_the_code_is_what_the_simulation_imports(tmp_path: Path) -> None:
    for name, text in {
        "tests/simulation/__main__.py": "from kbroker.log import append\nimport json, kclient.wire",
        "kbroker/__init__.py": "",
        "kbroker/log/__init__.py": "",
        "kbroker/log/append.py": "def f():\n    from . import later",
        "kbroker/log/later.py": "from ..replica.isr import Isr",
        "kbroker/log/unused.py": "",
        "kbroker/replica/isr.py": "",
        "kclient/wire.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = imported_sources(tmp_path)
    assert sorted(found) == [
        "kbroker",
        "kbroker.log",
        "kbroker.log.append",
        "kbroker.log.later",
        "kbroker.replica.isr",
        "kclient.wire",
        "tests.simulation.__main__",
    ]
    hashes = {code_hash(tmp_path)}
    for name, path in found.items():
        path.write_text(path.read_text() + f"\n# {name}")
        hashes.add(code_hash(tmp_path))
    assert len(hashes) == len(found) + 1
    (tmp_path / "kbroker/log/unused.py").write_text("1")
    assert code_hash(tmp_path) in hashes


def test_the_code_has_each_module_that_is_loaded_in_a_run() -> None:
    played = subprocess.run(
        [
            sys.executable,
            "-c",
            "import runpy, sys\n"
            f"sys.argv[1:] = ['--seeds', '{SEEDS[0]}..{SEEDS[-1]}', *sys.argv[1:]]\n"
            "try:\n"
            "    runpy.run_module('tests.simulation', run_name='__main__')\n"
            "finally:\n"
            "    print('loaded', *sys.modules)",
            "--mirror",
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    loaded = played.stdout.rpartition("loaded ")[2].split()
    ours = {each for each in loaded if each.partition(".")[0] in PACKAGES and "__mypyc" not in each}
    assert "kbroker.log" in ours
    assert sorted(ours - set(imported_sources())) == []
    assert "mirrormaker.recopy" not in imported_sources()
