"""What the fork server starts is what a spawn starts: the same state, exit codes and signals."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kbroker.local.fork_server import ForkServer, ForkServerError, is_supported, read_at_start
from kbroker.local.processes import ProcessIdentity
from tests.kit.waiting import eventually

pytestmark = pytest.mark.skipif(not is_supported(), reason="forks as Linux does")

PROBE = """
import gc, json, os, random, resource, signal, sys, threading, time
words = sys.argv[1:]
if words[0] == "state":
    files = [sys.stdin, sys.stdout, sys.stderr]
    print(json.dumps({
        "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": list(sys.flags),
        "environment": dict(os.environ), "directory": os.getcwd(), "parent": os.getppid(),
        "is_leader": os.getsid(0) == os.getpid(), "group": os.getpgid(0) == os.getpid() or os.getpgid(0),
        "umask": os.umask(0),
        "limits": [resource.getrlimit(n) for n in range(16)], "affinity": sorted(os.sched_getaffinity(0)),
        "signals": {n: repr(signal.getsignal(n)).split(" at ")[0] for n in signal.valid_signals()},
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "files": [[f.name, f.encoding, f.errors, f.line_buffering, f.seekable(), f.buffer.raw.mode] for f in files],
        "newlines": [sys.stdin.read(), repr(sys.stdin.newlines)],
        "descriptors": [n for n in range(3, 64) if os.path.exists(f"/proc/self/fd/{n}")],
        "collector": [gc.isenabled(), gc.get_threshold()], "threads": threading.active_count(),
        "main": [__name__, __package__, __spec__.name, sys.modules["__main__"].__dict__ is globals()],
    }))
elif words[0] == "exit":
    sys.exit(eval(words[1]))
elif words[0] == "raise":
    raise ValueError(words[1])
elif words[0] == "late":
    import atexit
    class Held:
        def __del__(self):
            print("freed")
    held = Held()
    held.itself = held
    del held
    atexit.register(print, "registered")
    threading.Thread(target=lambda: (time.sleep(0.1), print("threaded"))).start()
    print("no newline", end="")
    sys.exit(4)
elif words[0] == "closed":
    print("lost")
    os.close(1)
    os.open("/dev/full", os.O_WRONLY)
    sys.exit(0)
elif words[0] == "random":
    print(random.random())
elif words[0] == "thread":
    threading.Thread(target=lambda: (time.sleep(0.2), print("later"))).start()
elif words[0] == "wait":
    print("READY", flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the package `probe`."""
    home = tmp_path_factory.mktemp("programs")
    package = home / "probe"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "extra.py").write_text("import json\n")
    (package / "__main__.py").write_text(PROBE)
    return home


def environment(home: Path, **others: str) -> dict[str, str]:
    inherited = {n: v for n, v in os.environ.items() if not n.startswith("PYTHON")}
    return {**inherited, **path_of(home), **others}


def path_of(home: Path) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(home), os.getcwd()])}


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[ForkServer]:
    unset = {n: "" for n in os.environ if n.startswith("PYTHON")}
    made = ForkServer(("probe",), {**unset, **path_of(home)})
    yield made
    made.close()


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "probe", *words]


class Outcome:
    """How a command ended."""

    def __init__(self, process: subprocess.Popen[Any], stdin: bytes = b"") -> None:
        with process:
            self.out, self.err = process.communicate(stdin or None, 20)
        self.code = process.returncode

    @property
    def state(self) -> Any:
        return json.loads(self.out)


PIPES: Mapping[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)


@pytest.mark.parametrize("new_session", [False, True])
def test_a_forked_command_has_the_state_of_a_spawned_one(
    server: ForkServer, home: Path, new_session: bool
) -> None:
    settings = {**PIPES, "cwd": home, "start_new_session": new_session}
    env = environment(home, PROBED="1")
    before = server.forked
    limit, mask = resource.getrlimit(resource.RLIMIT_NOFILE), os.umask(0o027)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[0] - 1, limit[1]))
    former = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        forked = server.popen(command("state", "a b"), env=env, **settings)
        spawned = subprocess.Popen(command("state", "a b"), env=env, **settings)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        os.umask(mask)
        signal.signal(signal.SIGUSR2, former)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    found, expected = (Outcome(each, b"one\r\ntwo\n").state for each in (forked, spawned))
    assert found == expected
    assert found["parent"] == os.getpid()
    assert server.forked == before + 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("exit", "0"), 0), (("exit", "3"), 3), (("exit", "'text'"), 1), (("raise", "text"), 1), (("thread",), 0),
        (("late",), 4), (("closed",), 120), (("exit", "-1"), 255),
    ],
)  # fmt: skip
def test_it_ends_as_a_spawned_one_does(
    server: ForkServer, home: Path, words: tuple[str, ...], code: int
) -> None:
    env = environment(home)
    found = Outcome(server.popen(command(*words), env=env, **PIPES))
    expected = Outcome(subprocess.Popen(command(*words), env=env, **PIPES))
    assert (found.code, found.out) == (expected.code, expected.out)
    assert found.err.splitlines()[-1:] == expected.err.splitlines()[-1:]
    assert found.code == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_signal_right_after_the_start_ends_it(
    server: ForkServer, home: Path, number: signal.Signals
) -> None:
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with server.popen(command("wait"), env=environment(home), **settings) as process:
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(number)
        if number == signal.SIGINT:
            # Python ignores a KeyboardInterrupt within a callback of a weak reference, as its imports have them.
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.send_signal(number)
        assert process.wait(10) == -number


def test_two_commands_have_other_random_numbers(server: ForkServer, home: Path) -> None:
    env = environment(home)
    found = {Outcome(server.popen(command("random"), env=env, **PIPES)).out for _ in range(2)}
    assert len(found) == 2


def test_what_only_an_interpreters_start_can_do_is_spawned(server: ForkServer, home: Path) -> None:
    before = server.forked, server.spawned
    for changed in (
        {"PYTHONHASHSEED": "7"},
        {"MALLOC_ARENA_MAX": "1"},
        {"PYTHONPATH": f"{home}:."},
    ):
        env = environment(home, **changed)
        assert Outcome(server.popen(command("state"), env=env, **PIPES)).state["environment"] == env
    other = [sys.executable, "-c", "pass"]
    assert Outcome(server.popen(other, env=environment(home), **PIPES)).code == 0
    assert (server.forked, server.spawned) == (before[0], before[1] + 4)


def test_a_variable_that_changes_here_after_the_start_of_the_server_is_noticed(
    server: ForkServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Outcome(server.popen(command("exit", "0"), env=environment(home), **PIPES)).code == 0
    before = server.spawned
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert Outcome(server.popen(command("exit", "0"), env=environment(home), **PIPES)).code == 0
    assert server.spawned == before + 1


def test_an_empty_variable_of_python_is_not_set() -> None:
    found = read_at_start({"PYTHONDEVMODE": "", "PYTHONPATH": "a", "TZ": "", "HOME": "/"})
    assert found == {"PYTHONPATH": "a", "TZ": ""}


def test_a_directory_that_does_not_exist_is_an_error_and_leaves_no_child(
    server: ForkServer, home: Path
) -> None:
    env = environment(home)
    Outcome(server.popen(command("exit", "0"), env=env, **PIPES))
    children = Path("/proc/thread-self/children").read_text
    before = children()
    with pytest.raises(FileNotFoundError, match="missing"):
        server.popen(command("state"), env=env, cwd=home / "missing")
    assert children() == before


def test_a_command_outlives_the_server_and_the_next_one_has_another(home: Path) -> None:
    server = ForkServer(("probe",), path_of(home))
    env = {**os.environ, **path_of(home)}
    try:
        with server.popen(command("wait"), env=env, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"READY\n"
            assert server._process is not None
            server._process.kill()
            server._process.wait()
            with pytest.raises(ForkServerError, match="ended with -9 before the command ran"):
                server.popen(command("wait"), env=env)
            assert process.poll() is None
            process.kill()
        assert process.returncode == -signal.SIGKILL
        assert Outcome(server.popen(command("exit", "5"), env=env, **PIPES)).code == 5
    finally:
        server.close()
    assert server._process is None


def test_a_bound_command_and_the_server_end_with_the_process_that_asked(home: Path) -> None:
    asks = textwrap.dedent("""
        import os, sys, time
        from kbroker.local.fork_server import ForkServer
        server = ForkServer(("probe",))
        process = server.popen([sys.executable, "-m", "probe", "wait"], bound_to_us=True)
        print(process.pid, server._process.pid, flush=True)
        time.sleep(60)
    """)
    env = environment(home)
    with subprocess.Popen([sys.executable, "-c", asks], env=env, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        lines = [owner.stdout.readline() for _ in range(2)]
        pids = next(line for line in lines if line != b"READY\n").split()
        both = [ProcessIdentity.of(int(pid)) for pid in pids]
        assert all(both)
        owner.kill()
    eventually("both ended", lambda: not any(each and each.alive for each in both), 10)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("import threading; threading.Timer(0.3, print).start()", r"a thread \(1\)"),
        ("import os; opened = os.open('/', os.O_RDONLY)", r"a descriptor \(\[\d+\]\)"),
        ("import twisted.internet.reactor", "installed a reactor"),
    ],
)  # fmt: skip
def test_an_import_that_forks_would_share_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], line: str, text: str
) -> None:
    (tmp_path / "shares").mkdir()
    (tmp_path / "shares" / "__init__.py").write_text(f"{line}\n")
    server = ForkServer(("shares",), path_of(tmp_path))
    with pytest.raises(ForkServerError, match="ended with 1 before"):
        server.popen([sys.executable, "-m", "shares"], env={**os.environ, **path_of(tmp_path)})
    assert re.search(text, capfd.readouterr().err)


def test_it_imports_before_the_first_command_and_leaves_packages_out(tmp_path: Path) -> None:
    for name in ("large", "large/used", "large/left", "large/left/below"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(
            f"from pathlib import Path\nPath({str(tmp_path)!r}, 'imported').open('a').write('{name} ')\n"
        )
    (tmp_path / "large" / "__main__.py").write_text("import large.left.below\n")
    environment = {**os.environ, **path_of(tmp_path)}
    server = ForkServer(("large",), path_of(tmp_path), without=("large.left",))
    imported = tmp_path / "imported"
    try:
        server.prepare("large")
        eventually("the imports", lambda: imported.exists() and "used" in imported.read_text(), 10)
        assert imported.read_text() == "large large/used "
        with server.popen([sys.executable, "-m", "large"], env=environment) as process:
            assert process.wait(10) == 0
        assert imported.read_text() == "large large/used large/left large/left/below "
    finally:
        server.close()
