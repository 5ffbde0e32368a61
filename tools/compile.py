"""Compile the modules of `setup.COMPILED` in this tree, if they changed; the Makefile calls it before every run.

Where that is not possible (no C compiler, no mypyc) no compiled file is left: the sources are interpreted. A compiled
file older than its source never stays, because Python would prefer it.
"""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def sources():
    """Return the sources that the build lists."""
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "COMPILED":
            return [ROOT / name for name in ast.literal_eval(node.value)]
    raise SystemExit("compile: no COMPILED in the build")


def built(source):
    """Return the compiled files of *source*: the module, and the code that mypyc keeps apart."""
    return [
        *source.parent.glob(f"{source.stem}.*.so"),
        *source.parent.glob(f"{source.stem}__mypyc.*.so"),
    ]


def is_current(source):
    """Return whether the compiled files of *source* are there for this Python, and not older."""
    tag = f".{sys.implementation.cache_tag}-"
    files = [each for each in built(source) if tag in each.name]
    return bool(files) and all(each.stat().st_mtime >= source.stat().st_mtime for each in files)


def main():
    """Compile what is not current."""
    found = sources()
    if all(map(is_current, found)):
        return
    for path in (path for source in found for path in built(source)):
        path.unlink()
    # Forced: after a change that leaves the C source equal, the build would copy its earlier file, which is older.
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode or not all(map(is_current, found)):
        for path in (path for source in found for path in built(source)):
            path.unlink()
        why = (done.stderr.strip().splitlines() or ["no C compiler, or no mypyc"])[-1]
        print(f"compile: not compiled, interpreted instead: {why}", file=sys.stderr)  # noqa: T201


main()
