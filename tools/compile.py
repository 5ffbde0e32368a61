"""Compile the modules of `setup.COMPILED` in this tree, if they changed; the Makefile calls it before every run.

Where that is not possible (no C compiler, no mypyc) no compiled file is left: the sources are interpreted. A compiled
file older than its source never stays, because Python would prefer it.
"""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def constants():
    """Return the names that the build assigns, with their values."""
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse((ROOT / "setup.py").read_text()).body
        if isinstance(node, ast.Assign)
    }


def built(stem):
    """Return the compiled files of *stem*, a path without its ending."""
    return [*stem.parent.glob(f"{stem.name}.*.so"), *stem.parent.glob(f"{stem.name}__mypyc.*.so")]


def remove_other(stems):
    """Remove the compiled files that belong to none of *stems*: another commit compiled another set of modules."""
    ours = {path for stem in stems for path in built(stem)}
    for path in {*ROOT.glob("kclient/**/*.so"), *ROOT.glob("*__mypyc.*.so")} - ours:
        path.unlink()


def is_current(sources, stems):
    """Return whether each of *stems* is compiled for this Python, and not older than any of *sources*."""
    tag = f".{sys.implementation.cache_tag}-"
    newest = max(each.stat().st_mtime for each in sources)
    for stem in stems:
        files = [each for each in built(stem) if tag in each.name]
        if not files or any(each.stat().st_mtime < newest for each in files):
            return False
    return True


def main():
    """Compile all if anything is not current: the modules share one library."""
    given = constants()
    sources = [ROOT / name for name in given["COMPILED"]]
    stems = [*(each.with_suffix("") for each in sources), ROOT / given["GROUP"].replace(".", "/")]
    remove_other(stems)
    if is_current([*sources, ROOT / "setup.py"], stems):
        return
    for path in (path for stem in stems for path in built(stem)):
        path.unlink()
    # Forced: after a change that leaves the C source equal, the build would copy its earlier file, which is older.
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode or not is_current([*sources, ROOT / "setup.py"], stems):
        for path in (path for stem in stems for path in built(stem)):
            path.unlink()
        missing = "there is no C compiler, or no mypyc (`make venv` installs it)"
        why = (done.stderr.strip().splitlines() or [missing])[-1]
        print(f"compile: the record codec is interpreted, and slower: {why}", file=sys.stderr)  # noqa: T201


main()
