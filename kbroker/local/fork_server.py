"""Starts our commands without the time of their imports: they are forked from a process that has imported them.

Theory of operation
===================
`ForkServer.popen` is `subprocess.Popen` for commands of the form ``python -m PROGRAM ...``. The first one starts the
server: this module, run as a process with one end of a socket pair. For each command it forks twice. The first child
ends at once. So the kernel gives the second one to its nearest ancestor that adopts orphans: the process that asked (a
"child subreaper", see prctl(2)). The second child is then a child of that process like any other.

    asks                              fork server                    second child
    adopts orphans from now on
    command and descriptors   ----->  forks twice   ------------->   waits
                                      the first child has ended
                                      "go"          ------------->   has the other parent
                              <------------------------------------  its id; from here on it is `python -m PROGRAM`
    adopts no orphans

So exit codes, signals and waiting are the kernel's, and a command does not depend on the server any more once it runs.
The server ends when its socket closes: with the process that asked, however that one ends.

Invariants
1. The server has one thread, no reactor and no descriptor besides its socket and 0 to 2; else it refuses to fork.
2. The command has the arguments, environment, directory, descriptors, limits, umask, signals and affinity that it would
   have as a child of the asking thread. Of the server show only modules that are already imported, the frames of this
   module in a traceback, and `/proc/PID/cmdline` and `environ`. At its exit, what its modules hold is not freed.
3. What only the start of an interpreter can do is not pretended. `AT_START` matches the variables that Python, the C
   library and the loader read then. A command with another value of one of them is spawned the ordinary way. So is any
   other command, and every command where this cannot work (not Linux). With hash randomization, all commands of one
   server have the same hash seed.
4. Every wait is bounded. If the server ended, `popen` raises ForkServerError, and the next call starts another one.

Owner: any thread; one request at a time in a process.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import gc
import importlib
import inspect
import json
import os
import pkgutil
import re
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from kbroker.local.processes import PR_SET_PDEATHSIG, bind_to_us

AT_START: Final = re.compile(r"PYTHON|MALLOC_|GLIBC_|LD_|LC_|LANG|TZ")
"""How the names begin of the environment variables that are read when an interpreter starts."""

ANSWER_SECONDS: Final = 60.0
"""Longest time from a request to a running command: the first one waits for all imports."""

_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_GET_CHILD_SUBREAPER: Final = 37
_LENGTH_BYTES: Final = 4
_LIMITS: Final = tuple(sorted(n for n in dir(resource) if n.startswith("RLIMIT_")))


class ForkServerError(RuntimeError):
    """The fork server ended, or did not answer in time."""


def is_supported() -> bool:
    """Whether commands can be forked here: on Linux, with a Popen that `_ForkedProcess` fits."""
    theirs: Any = getattr(subprocess.Popen, "_execute_child", None)
    ours = _ForkedProcess._execute_child
    return (
        sys.platform == "linux"
        and theirs is not None
        and list(inspect.signature(theirs).parameters) == list(inspect.signature(ours).parameters)
    )


def read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `AT_START`; for Python an empty one is not set."""
    return {
        name: value
        for name, value in environment.items()
        if AT_START.match(name) and (value or not name.startswith("PYTHON"))
    }


class ForkServer:
    """Starts the commands of *programs*, which are packages; its own process has *environment* besides ours.

    It imports all modules of a program, but not the packages *without*: commands that need them import them.
    """

    def __init__(
        self,
        programs: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        without: Sequence[str] = (),
    ) -> None:
        self._programs = frozenset(programs)
        self._without = sorted(without)
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._owner = 0
        self._read_at_start: dict[str, str] = {}
        self.forked = 0
        """How many commands were forked."""
        self.spawned = 0
        """How many commands were spawned the ordinary way."""

    def popen(
        self,
        command: Sequence[str],
        *,
        bound_to_us: bool = False,
        env: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> subprocess.Popen[Any]:
        """Start *command* as `subprocess.Popen` does with *env* and *settings*, forked if that makes no difference.

        *bound_to_us*: the kernel kills it when this process ends. Raises ForkServerError, and OSError as Popen does.
        """
        environment = dict(os.environ if env is None else env)
        if self._can_fork(command, environment, settings):
            self.forked += 1
            return _ForkedProcess(self, command, bound_to_us, env=environment, **settings)
        self.spawned += 1
        bind = bind_to_us() if bound_to_us else None
        return subprocess.Popen(command, env=environment, preexec_fn=bind, **settings)

    def prepare(self, program: str) -> None:
        """Have the server import *program* now, while the caller does other things: its first command waits less."""
        if is_supported():
            with _LOCK:
                self._send(self._running(), {"import": program, "without": self._without}, [])

    def close(self) -> None:
        """End the server. Its commands go on."""
        process, channel, self._process, self._socket = self._process, self._socket, None, None
        if channel is not None:
            channel.close()
        if process is None or self._owner != os.getpid():
            return
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _can_fork(
        self, command: Sequence[str], environment: Mapping[str, str], settings: Mapping[str, Any]
    ) -> bool:
        known = {"stdin", "stdout", "stderr", "cwd", "text", "start_new_session"}
        return (
            is_supported()
            and list(command[:2]) == [sys.executable, "-m"]
            and len(command) > 2
            and command[2] in self._programs
            and known.issuperset(settings)
            and read_at_start(environment) == self._variables()
        )

    def _variables(self) -> dict[str, str]:
        """Return what the server read at its start, or will read."""
        if self._is_running():
            return self._read_at_start
        return read_at_start({**os.environ, **self._environment})

    def _is_running(self) -> bool:
        return self._socket is not None and self._owner == os.getpid()

    # For `_ForkedProcess`

    def fork(self, request: dict[str, Any], descriptors: Sequence[int]) -> int:
        """Have the server fork; return the process id of what is a child of this process now."""
        with _adopting_orphans():
            channel = self._running()
            answered, answer = os.pipe()
            try:
                try:
                    program = request["command"][2]
                    self._send(
                        channel,
                        {**request, "import": program, "without": self._without},
                        [*descriptors, answer],
                    )
                finally:
                    os.close(answer)
                found = _read_line(answered, time.monotonic() + ANSWER_SECONDS)
            finally:
                os.close(answered)
        if not found:
            raise self._ended()
        pid, number, name = json.loads(found)
        if number:
            os.waitpid(pid, 0)
            raise OSError(number, os.strerror(number), name)
        return int(pid)

    def _send(
        self, channel: socket.socket, request: dict[str, Any], descriptors: Sequence[int]
    ) -> None:
        text = json.dumps(request).encode()
        head = len(text).to_bytes(_LENGTH_BYTES, "big")
        try:
            socket.send_fds(channel, [head], descriptors)
            channel.sendall(text)
        except OSError as problem:
            raise self._ended() from problem
        except BaseException:  # half a request, which the server would complete with the next one
            self.close()
            raise

    def _running(self) -> socket.socket:
        """Return the socket of the server, which is started if it does not run."""
        if self._socket is not None and self._is_running():
            return self._socket
        self._read_at_start = self._variables()
        ours, its = socket.socketpair()
        ours.settimeout(ANSWER_SECONDS)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(its.fileno())],
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
            )
        self._socket, self._owner = ours, os.getpid()
        return ours

    def _ended(self) -> ForkServerError:
        """End what is left of the server; return the error for a command that did not start."""
        process = self._process
        self.close()
        pid, code = (process.pid, process.returncode) if process is not None else (0, 0)
        return ForkServerError(
            f"the fork server (process {pid}) ended with {code} before the command ran;"
            " its standard error, which is ours, has the cause"
        )


class _ForkedProcess(subprocess.Popen[Any]):
    """A Popen with a process that a fork server made: only its start is another one."""

    def __init__(
        self, server: ForkServer, command: Sequence[str], bound_to_us: bool, **settings: Any
    ) -> None:
        self._server = server
        self._bound_to_us = bound_to_us
        super().__init__(command, **settings)

    def _execute_child(
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any,
        env: Any, startupinfo: Any, creationflags: Any, shell: Any, p2cread: int, p2cwrite: int,
        c2pread: int, c2pwrite: int, errread: int, errwrite: int, restore_signals: Any, gid: Any,
        gids: Any, uid: Any, umask: Any, start_new_session: bool, process_group: Any,
    ) -> None:  # fmt: skip
        request = {
            "command": [os.fspath(word) for word in args],
            "environment": env,
            "directory": os.getcwd() if cwd is None else os.path.abspath(cwd),
            "new_session": start_new_session,
            "parent": os.getpid(),
            "bound": self._bound_to_us,
            **_inherited(),
        }
        ends = (p2cread, c2pwrite, errwrite)
        # -1: the child has ours
        descriptors = [ours if end == -1 else end for ours, end in enumerate(ends)]
        self.pid = self._server.fork(request, descriptors)
        self._child_created = True
        close: Any = self._close_pipe_fds  # type: ignore[attr-defined]
        close(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


_LOCK = threading.Lock()


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Have this process be the parent of its orphaned grandchildren meanwhile; for one thread at a time."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    with _LOCK:
        before = ctypes.c_int()
        prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            yield
        finally:
            prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def _read_line(pipe: int, deadline: float) -> bytes:
    """Read a line; return b"" if every writer closed before its end, and at the deadline."""
    found, poll = b"", select.poll()  # select() refuses numbers from 1024 on
    poll.register(pipe, select.POLLIN)
    while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        piece = os.read(pipe, 4096)
        found += piece
        if found.endswith(b"\n"):
            return found
        if not piece:
            break
    return b""


def _inherited() -> dict[str, Any]:
    """Return what a child of the calling thread has from it, besides descriptors, directory and environment."""
    status = Path("/proc/thread-self/status").read_text(encoding="ascii")
    return {
        "umask": int(status.partition("\nUmask:")[2].split()[0], 8),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in _LIMITS},
        "ignored": [n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "affinity": sorted(os.sched_getaffinity(0)),
    }


# In the server


def _serve(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Fork for each request, until the socket closes. Return None then; in a child, its request and descriptors."""
    imported: set[str] = set()
    while True:
        head, descriptors, _, _ = socket.recv_fds(channel, _LENGTH_BYTES, 4)
        if not head:
            return None
        request = json.loads(_read(channel, int.from_bytes(head, "big")))
        program = request["import"]
        if program not in imported:
            imported.add(program)
            _import_all(program, request["without"])
            _check_that_forks_share_nothing({channel.fileno(), *descriptors})
        if "command" in request and _is_second_child():
            channel.close()
            return request, descriptors
        for descriptor in descriptors:
            os.close(descriptor)


def _read(channel: socket.socket, size: int) -> bytes:
    text = bytearray()
    while len(text) < size:
        piece = channel.recv(size - len(text))
        if not piece:
            raise ForkServerError("the socket closed within a request")
        text += piece
    return bytes(text)


def _import_all(program: str, without: Sequence[str] = ()) -> None:
    """Import every module of the package *program*; those of extras that are not installed stay out."""
    packages = [importlib.import_module(program)]
    while packages:
        package = packages.pop()
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if module.name.rpartition(".")[2] == "__main__" or module.name in without:
                continue
            with contextlib.suppress(ModuleNotFoundError):
                imported = importlib.import_module(module.name)
                if module.ispkg:
                    packages.append(imported)
    gc.collect()
    gc.freeze()  # no collection of a child writes to the pages that it shares


def _check_that_forks_share_nothing(known: set[int]) -> None:
    opened = {int(name) for name in os.listdir("/proc/self/fd")}
    opened = {n for n in opened if os.path.exists(f"/proc/self/fd/{n}")} - known - {0, 1, 2}
    if threading.active_count() > 1 or "twisted.internet.reactor" in sys.modules or opened:
        raise ForkServerError(
            f"an import began a thread ({threading.active_count() - 1}), opened a descriptor ({sorted(opened)}), or"
            " installed a reactor: its module has to do so when it is used"
        )


def _is_second_child() -> bool:
    """Fork twice; return True in the second child, once the first one has ended."""
    go, wake = os.pipe()
    first = os.fork()
    if first == 0:
        try:
            second = os.fork()
        except OSError:
            os._exit(1)
        if second:
            os._exit(0)
        os.close(wake)
        if not os.read(go, 1):
            os._exit(1)  # the server ended
        os.close(go)
        return True
    os.close(go)
    os.waitpid(first, 0)
    with contextlib.suppress(BrokenPipeError):  # the second child is gone, or was never there
        os.write(wake, b"g")
    os.close(wake)
    return False


# In the second child


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Be what the request asks for, and answer."""
    *files, answer = descriptors
    try:
        _inherit(request)
        for number, descriptor in enumerate(files):
            os.dup2(descriptor, number)
            os.close(descriptor)
    except OSError as problem:
        _answer(answer, problem.errno or errno.EIO, problem.filename)
        os._exit(1)
    _open_standard_files()
    command = request["command"]
    sys.argv, sys.orig_argv = command[1:2] + command[3:], command
    if not sys.flags.safe_path:
        sys.path[0] = request["directory"]
    gc.enable()
    _answer(answer, 0, None)


def _answer(answer: int, number: int, name: str | None) -> None:
    os.write(answer, json.dumps([os.getpid(), number, name]).encode() + b"\n")
    os.close(answer)


def _inherit(request: dict[str, Any]) -> None:
    if request["bound"]:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != request["parent"]:
        os._exit(1)  # it ended meanwhile
    if request["new_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    os.umask(request["umask"])
    for name, limit in request["limits"].items():
        kind = getattr(resource, name)
        if resource.getrlimit(kind) != tuple(limit):
            resource.setrlimit(kind, tuple(limit))
    os.sched_setaffinity(0, request["affinity"])
    # As an interpreter begins: it ignores two signals, and takes SIGINT unless that was ignored.
    ignored = {*request["ignored"], signal.SIGPIPE, signal.SIGXFSZ}
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        wanted: Any = signal.SIG_IGN if number in ignored else signal.SIG_DFL
        if number == signal.SIGINT and number not in ignored:
            wanted = signal.default_int_handler
        if signal.getsignal(number) is not wanted:
            signal.signal(number, wanted)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])


def _open_standard_files() -> None:
    """Open sys.stdin, sys.stdout and sys.stderr again: buffering depends on what 0, 1 and 2 are."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        former = getattr(sys, name)
        is_terminal = os.isatty(number)
        file = open(  # noqa: SIM115
            number,
            "r" if number == 0 else "w",
            encoding=former.encoding,
            errors=former.errors,
            newline="\n",
            closefd=False,
        )
        file.reconfigure(line_buffering=is_terminal or name == "stderr")
        cast(Any, file).buffer.raw.name = f"<{name}>"
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)


def _exit(code: int) -> None:
    """Exit as the interpreter does, but leave the memory to the kernel: to free it would copy every shared page."""
    shutdown: Any = threading._shutdown  # type: ignore[attr-defined]
    shutdown()  # waits for the threads
    atexit._run_exitfuncs()
    gc.collect()  # a failure that nothing handled is logged when it is freed
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return  # the interpreter reports that
    os._exit(code & 0xFF)


def main() -> None:
    """Serve the socket with the number in the first argument; in a child, run its command."""
    gc.disable()  # imports make objects that stay
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at a terminal ends the process that asks
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        request, descriptors = asked
        _become(request, descriptors)
        try:
            runpy.run_module(request["command"][2], run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            if ended.code is None or isinstance(ended.code, int):
                _exit(ended.code or 0)
            raise  # other codes, and other errors, go to the interpreter as with `python -m`


if __name__ == "__main__":
    main()
