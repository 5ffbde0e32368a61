"""Pages of documentation, executed line by line: what a reader types is typed, what the page shows is compared.

A page is executed from its top to its end (or only some of its sections), in an empty directory, in one shell and one
Python. What is executed, by the form of the block:

| block | meaning |
|---|---|
| ` ```console ` | lines after `$ ` are typed (`> ` continues one), the lines below each are what it prints |
| ` ```sh ` | every line is typed |
| ` ```python ` | a program; the blocks of a section continue each other, as in one session |
| ` ```text ` or ` ``` ` behind `sh` or `python` | what it prints |
| any other, behind a paragraph that ends with a name in backticks and a colon | is written to that file |
| the same with "add to" before the name, in one line | is added to that file |
| indented by four spaces | is not executed: for what is shown only. `not_executed` finds the commands among them |

Any other block is an error of the page. Each command must end with code 0, unless the next line typed has `$?`. A
command without lines below it may print anything. `...` stands for any text of a line, and on a line of its own for any
lines. Process ids, times of day and durations are compared by form. `^C` at the end of what is printed is Ctrl-C, typed
after that.

The shell finds the programs of one environment in `.venv/bin`, and on its PATH. What differs from the page: the ports
19092 to 19094 and 19192 to 19194 become free ones, a cluster ends with the test, and `kaudit reconcile` leaves out its
self-test, which takes twice the time of the rest. `kmirror` with `--execute` leaves out its audit, which starts Spark.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kbroker.local.zookeeper import free_ports

PORTS = tuple(range(19092, 19095)) + tuple(range(19192, 19195))
STEP_SECONDS = 150.0
"""The time for one command; the longest is an audit, on a machine that others use too."""
QUIET_SECONDS = 1.0
"""Ctrl-C is typed when all that is shown is printed, and nothing more comes for this time."""

_FENCE = re.compile(r"^```(\S*)$")
_FILE_NAME = re.compile(r"(\badd to )?`([\w./-]+)`:$")
_INDENTED = re.compile(r"^    (\$ )?(kbroker|kclient|kmirror|kaudit) ")
_PORT = re.compile(rf"\b({'|'.join(map(str, PORTS))})\b")
_VARYING = {
    r"pid \d+": r"pid \d+",
    r"\d+(?:\.\d+)? m?s\b": r"[\d.]+ m?s",
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z": r"\d{4}-\d\d-\d\dT[\d:.]+Z",
    r"\.\.\.": r".*",
}
"""What differs from run to run on a page, and the form that it always has."""
_ANY_VARYING = re.compile("|".join(f"({pattern})" for pattern in _VARYING))


class PageError(Exception):
    """A page that has no meaning, or with output that differs. It names the line of the page."""


@dataclass(frozen=True, slots=True)
class Step:
    """What the reader does at one place of a page, and what is printed then, if the page shows it."""

    line: int
    kind: str  # "command", "program", "file" or "addition"
    text: str
    section: str
    shown: tuple[str, ...] | None = None
    name: str = ""


@dataclass(slots=True)
class _Block:
    line: int
    kind: str
    section: str
    before: str
    lines: list[str] = field(default_factory=list)


def steps(page: str, sections: Sequence[str] = ()) -> list[Step]:
    """Return what a reader of *page* does, in order; only in *sections*, if there are any."""
    found: list[Step] = []
    last: _Block | None = None
    for block in _blocks(page):
        if block.kind == "indented" or (sections and block.section not in sections):
            continue
        if block.kind == "console":
            found += _console(block)
        elif block.kind == "sh":
            found += [
                Step(block.line + at, "command", text, block.section)
                for at, text in _commands(block.lines)
            ]
        elif named := _FILE_NAME.search(block.before):
            text = "".join(f"{line}\n" for line in block.lines)
            kind = "addition" if named[1] else "file"
            found.append(Step(block.line, kind, text, block.section, name=named[2]))
        elif block.kind == "python":
            # As many lines before it as on the page: a traceback has the page's line numbers.
            text = "\n" * block.line + "\n".join(block.lines)
            found.append(Step(block.line, "program", text, block.section))
        elif block.kind in ("", "text") and last is not None and last.kind in ("sh", "python"):
            step = found.pop()
            shown = tuple(block.lines)
            found.append(Step(step.line, step.kind, step.text, step.section, shown))
        else:
            raise PageError(f"line {block.line}: a block of {block.kind or 'text'} with no meaning")
        last = block
    return found


def not_executed(page: str, sections: Sequence[str] = ()) -> set[str]:
    """Return the sections of *page* with blocks outside of *sections*, or with commands that are indented."""
    return {
        block.section
        for block in _blocks(page)
        if block.kind == "indented" or (sections and block.section not in sections)
    }


def _blocks(page: str) -> Iterator[_Block]:
    section, before, open_block = "", "", None
    for number, line in enumerate(page.splitlines(), 1):
        fence = _FENCE.match(line)
        if open_block is not None:
            if fence and not fence[1]:
                yield open_block
                open_block, before = None, ""
            else:
                open_block.lines.append(line)
        elif fence:
            open_block = _Block(number, fence[1], section, before)
        elif line.startswith("#"):
            section, before = line.lstrip("# "), ""
        elif line.strip():
            if _INDENTED.match(line):
                yield _Block(number, "indented", section, before)
            before = line
    if open_block is not None:
        raise PageError(f"line {open_block.line}: the block has no end")


def _commands(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Return each whole command with its place: a here-document or an open quotation takes more than one line."""
    pending: list[str] = []
    for number, line in enumerate(lines, 1):
        pending.append(line)
        text = "\n".join(pending)
        check = subprocess.run(["bash", "-n", "-c", text], capture_output=True, check=False)
        if check.returncode or check.stderr or text.endswith("\\"):
            continue
        if not line.strip().startswith("#") and line.strip():
            yield number - len(pending) + 1, text
        pending = []
    if pending:
        raise PageError(f"no whole command: {pending}")


def _console(block: _Block) -> Iterator[Step]:
    typed: list[str] = []
    printed: list[str] = []
    at = block.line

    def step() -> Step:
        return Step(at, "command", "\n".join(typed), block.section, tuple(printed) or None)

    for number, line in enumerate(block.lines, block.line + 1):
        if line.startswith("$ "):
            if typed:
                yield step()
            typed, printed, at = [line[2:]], [], number
        elif line.startswith("> ") and typed and not printed:
            typed.append(line[2:])
        elif typed:
            printed.append(line)
        else:
            raise PageError(f"line {number}: the block begins without a command")
    if typed:
        yield step()


def matches(shown: Sequence[str], printed: str) -> bool:
    """Return whether *printed* is what the page shows."""
    parts = []
    for line in shown:
        if line.strip() == "...":
            parts.append("(?:.*\n)*?")
            continue
        line, at = line.rstrip(), 0
        for found in _ANY_VARYING.finditer(line):
            form = list(_VARYING.values())[(found.lastindex or 1) - 1]
            parts += [re.escape(line[at : found.start()]), form]
            at = found.end()
        parts.append(re.escape(line[at:]) + "\n")
    got = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    return re.fullmatch("".join(parts), got) is not None


_SHELL = r"""
trap : INT
page_status=0
while IFS= read -r -d '' -u 3 page_typed; do
    (exit $page_status)
    eval "$page_typed" </dev/null
    page_status=$?
    printf '%s%d\n' "$PAGE_MARK" $page_status
done
"""
_PYTHON = r"""
import contextlib, json, os, sys, traceback
spaces, mark = {}, os.environ["PAGE_MARK"]
for line in os.fdopen(3):
    section, path, text = json.loads(line)
    space = spaces.setdefault(section, {"__name__": "__main__"})
    status = 0
    try:
        exec(compile(text, path, "exec"), space)
    except KeyboardInterrupt:
        status = 130
    except BaseException:
        traceback.print_exc()
        status = 1
    print(f"{mark}{status}", flush=True)
"""


class _Interpreter:
    """A shell, or Python, that is given one piece at a time and prints a mark after each."""

    def __init__(self, command: Sequence[str], directory: Path, environment: Mapping[str, str]):
        self._mark = f"<{secrets.token_hex(8)}>"
        ours, theirs = os.pipe(), os.pipe()
        # The end that it reads is its descriptor 3, by a shell: no other process of ours is concerned.
        words = ["bash", "-c", f'exec "$@" 3<&{ours[0]}', "bash", *command]
        self.process = subprocess.Popen(
            words,
            cwd=directory,
            env={**environment, "PAGE_MARK": self._mark},
            stdin=subprocess.DEVNULL,
            stdout=theirs[1],
            stderr=theirs[1],
            pass_fds=(ours[0],),
            start_new_session=True,
        )
        os.close(ours[0])
        os.close(theirs[1])
        self._in, self._out = ours[1], theirs[0]

    def give(self, piece: bytes, until: Sequence[str] | None = None) -> tuple[str, int | None]:
        """Return what *piece* prints and its code; None if Ctrl-C ended it, once it had printed *until*."""
        os.write(self._in, piece)
        deadline, got, interrupted = time.monotonic() + STEP_SECONDS, "", False
        raw = b""
        while True:
            got = raw.decode(errors="replace")
            before, mark, status = got.partition(self._mark)
            if mark and status.endswith("\n"):
                return before, None if interrupted else int(status)
            left = deadline - time.monotonic()
            waits = until is not None and not interrupted and matches(until, before)
            if not select.select([self._out], [], [], QUIET_SECONDS if waits else max(left, 0))[0]:
                if not waits:
                    raise PageError(f"no end after {STEP_SECONDS:g} s; printed so far:\n{got}")
                os.killpg(self.process.pid, signal.SIGINT)
                interrupted = True
                continue
            if not (data := os.read(self._out, 65536)):
                raise PageError(f"the interpreter has ended; printed so far:\n{got}")
            raw += data

    def close(self) -> None:
        """End it, and what it has started in its session."""
        os.close(self._in)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)
        os.close(self._out)


class Reader:
    """Does what a page asks for, in *directory*, with the programs in *programs* (the folder bin of an environment).

    *bootstrap* has the brokers of a page that starts none.
    """

    def __init__(self, directory: Path, programs: Path, bootstrap: Sequence[int] = ()) -> None:
        self._directory, self._programs = directory, programs
        self._ports = dict(
            zip(PORTS, [*bootstrap, *_free(len(PORTS) - len(bootstrap))], strict=True)
        )
        self._environment = _environment(directory, bootstrap)
        self._write_programs()
        self._shell: _Interpreter | None = None
        self._python: _Interpreter | None = None

    def read(self, page: Path, sections: Sequence[str] = ()) -> int:
        """Do what *page* asks for, and return the number of commands and programs; raise PageError for a difference."""
        done = steps(_PORT.sub(self._port, page.read_text()), sections)
        for step, following in zip(done, [*done[1:], None], strict=True):
            may_fail = following is not None and "$?" in following.text
            try:
                self._do(step, page.name, may_fail)
            except PageError as error:
                raise PageError(f"{page.name}:{step.line}: {step.text.strip()}\n{error}") from None
        return sum(step.kind in ("command", "program") for step in done)

    def close(self) -> None:
        """End both interpreters, and remove the clusters that the page has left."""
        for each in (self._shell, self._python):
            if each is not None:
                each.close()
        for state in {path.parents[1] for path in self._directory.glob("*/zookeeper-1/*")}:
            subprocess.run(
                [self._programs / "kbroker", "local", "purge", "--dir", state],
                env=self._environment, check=False, capture_output=True, timeout=60,
            )  # fmt: skip

    def _do(self, step: Step, page: str, may_fail: bool) -> None:
        if step.kind == "file":
            (self._directory / step.name).write_text(step.text)
            return
        if step.kind == "addition":
            with (self._directory / step.name).open("a") as file:
                file.write(step.text)
            return
        shown, until = step.shown, None
        if shown is not None and shown[-1].strip() == "^C":
            until = shown = shown[:-1]
        if step.kind == "command":
            if self._shell is None:
                self._shell = self._interpreter("bash", "-c", _SHELL)
            printed, code = self._shell.give(step.text.encode() + b"\0", until)
        else:
            if self._python is None:
                self._python = self._interpreter(str(self._programs / "python"), "-uc", _PYTHON)
            piece = json.dumps([step.section, page, step.text]) + "\n"
            printed, code = self._python.give(piece.encode(), until)
        if code and not may_fail:
            raise PageError(f"exit code {code}, and it prints:\n{printed}")
        # After Ctrl-C a program may still print; what came before was compared.
        if until is None and shown is not None and not matches(shown, printed):
            lines = "\n".join(shown)
            raise PageError(f"the page shows:\n{lines}\nit prints:\n{printed}")

    def _interpreter(self, *command: str) -> _Interpreter:
        return _Interpreter(command, self._directory, self._environment)

    def _port(self, found: re.Match[str]) -> str:
        return str(self._ports[int(found[1])])

    def _write_programs(self) -> None:
        """Write .venv/bin: each program is that of the environment; a cluster gets free ports and ends with us."""
        folder = self._directory / ".venv" / "bin"
        folder.mkdir(parents=True)
        more = {
            "kbroker": 'if [ "$1 $2" = "local up" ]; then\n'
            f'    set -- "$@" --die-with {os.getpid()}\n'
            f'    case "$*" in *--port*) ;; *) set -- "$@" --port {self._ports[PORTS[0]]};; esac\n'
            "fi\n",
            "kaudit": 'if [ "$1" = reconcile ]; then set -- "$@" --no-self-test; fi\n',
            "kmirror": 'case " $* " in *" --execute "*) set -- "$@" --no-audit;; esac\n',
        }
        for name in ("kbroker", "kclient", "kmirror", "kaudit", "python"):
            program = shlex.quote(str(self._programs / name))
            (folder / name).write_text(f'#!/bin/sh\n{more.get(name, "")}exec {program} "$@"\n')
            (folder / name).chmod(0o755)


def _free(count: int) -> list[int]:
    ports: list[int] = []
    while len(ports) < count:
        ports += free_ports(min(3, count - len(ports)), consecutive=True)
    return ports


def _environment(directory: Path, bootstrap: Sequence[int]) -> dict[str, str]:
    """Return the environment of a user without settings."""
    ours = {
        "HOME": str(directory),
        "PATH": f"{directory}/.venv/bin:{os.environ['PATH']}",
        "PYTHONPATH": "",
    }
    if bootstrap:
        ours["KCLIENT_BOOTSTRAP_SERVERS"] = ",".join(f"127.0.0.1:{port}" for port in bootstrap)
    # A worker of xdist sets COLUMNS; what a page shows has the width of a pipe.
    left_out = ("XDG_CONFIG_HOME", "PYTHONWARNINGS", "COLUMNS")
    theirs = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("KCLIENT", "KBROKER", "PYTEST")) and name not in left_out
    }
    return {**theirs, **ours}


@contextmanager
def reading(directory: Path, programs: Path, bootstrap: Sequence[int] = ()) -> Iterator[Reader]:
    """Make a `Reader` for the block, and close it."""
    reader = Reader(directory, programs, bootstrap)
    try:
        yield reader
    finally:
        reader.close()
