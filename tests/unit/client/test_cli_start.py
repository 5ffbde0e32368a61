"""The first commands of a new user: the list of settings, and commands without their extras."""

from __future__ import annotations

import csv
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from twisted.python.failure import Failure

from kclient.cli.commands import kclient
from kclient.cli.consume import waiting_note
from kclient.cli.exit_codes import UNREACHABLE
from kclient.cli.offset_spec import parse_offsets
from kclient.cli.run import exit_code
from kclient.cli.settings import Settings
from kclient.config import ProducerConfig
from kclient.errors import Address, AttemptFailed, BootstrapError, Cause
from kclient.extras import what_to_install
from kclient.net.bootstrap import likely_mistake


@pytest.mark.parametrize("words", [["-X", "list"], ["-X", "help"], ["topic", "list", "-X", "list"]])
def test_the_settings_are_listed_with_or_without_a_command(words: list[str]) -> None:
    """Without a command the answer was "Missing command"."""
    ended = CliRunner().invoke(kclient, words)
    assert ended.exit_code == 0
    assert "linger.ms " in ended.output


def dumped(*words: str) -> dict[str, tuple[str, str]]:
    ended = CliRunner().invoke(kclient, [*words, "--format", "csv"])
    assert ended.exit_code == 0, ended.output
    rows = list(csv.reader(ended.stdout.splitlines()))
    assert rows[0] == ["setting", "value", "source"]
    return {name: (value, source) for name, value, source in rows[1:]}


def test_the_settings_in_effect_are_printed_with_their_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of docs/operating.md, beginning with the weakest."""
    for name in ("KCLIENT_BOOTSTRAP_SERVERS", "KCLIENT_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    usual, file = tmp_path / "usual", tmp_path / "file"
    usual.write_text("bootstrap.servers=usual:1\nlinger.ms=1\nacks=1\n")
    monkeypatch.setenv("KCLIENT_CONFIG", str(usual))
    assert dumped("-X", "dump")["bootstrap.servers"] == ("usual:1", str(usual))
    assert (
        CliRunner()
        .invoke(kclient, ["context", "add", "east", "-b", "east:1", "-X", "linger.ms=2"])
        .exit_code
        == 0
    )
    found = dumped("--context", "east", "-X", "dump")
    assert found["bootstrap.servers"] == ("east:1", "context east")
    assert found["linger.ms"] == ("2", "context east")
    assert found["acks"] == ("1", str(usual))
    file.write_text("bootstrap.servers=file:1\nlinger_ms=3\n")
    found = dumped("-F", str(file), "-X", "dump", "topic", "list")
    assert found["bootstrap.servers"] == ("file:1", f"-F {file}")
    assert found["linger.ms"] == ("3", f"-F {file}")
    assert found["acks"] == ("all", "default")
    monkeypatch.setenv("KCLIENT_BOOTSTRAP_SERVERS", "variable:1")
    found = dumped("topic", "list", "-F", str(file), "-X", "dump", "-X", "linger.ms=4", "-m", "2")
    assert found["bootstrap.servers"] == ("variable:1", "KCLIENT_BOOTSTRAP_SERVERS")
    assert found["linger.ms"] == ("4", "-X")
    assert found["default.api.timeout.ms"] == ("2000", "-m")
    assert found["check.crcs"] == ("true", "default")
    assert dumped("-b", "option:1", "-X", "dump")["bootstrap.servers"] == ("option:1", "-b")
    found = dumped("-X", "send.buffer.bytes=1", "-X", "dump")
    assert found["send.buffer.bytes"] == ("1", "-X; no effect")


def test_the_later_of_two_spellings_of_a_setting_wins(tmp_path: Path) -> None:
    """What came first in the dictionary counted: a file's, or kclient's own default."""
    file = tmp_path / "file"
    file.write_text("linger.ms=1\nlinger_ms=2\nrequest_timeout_ms=7000\nbootstrap_servers=a:1\n")
    settings = Settings(files=(str(file),), pairs=("linger.ms=3",))
    config = ProducerConfig.load(settings.client(ProducerConfig))
    assert (config.linger_ms, config.request_timeout_ms) == (3, 7000)
    assert config.bootstrap_servers == "a:1"
    assert dumped("-F", str(file), "-X", "dump")["linger.ms"] == ("2", f"-F {file}")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("-X", "dump", "-X", "no.such=1"), "no.such: unknown setting"),
        (("-X", "dump", "-X", "acks=2"), "acks"),
        (("-X", "dump", "-F", "/nonexistent"), "/nonexistent: No such file"),
        (("-b", "a:1"), "Missing command"),
    ],
)
def test_settings_that_a_client_would_refuse_are_not_in_effect(
    words: tuple[str, ...], error: str
) -> None:
    ended = CliRunner().invoke(kclient, words)
    assert (ended.exit_code, error in ended.output) == (2, True), ended.output


@pytest.mark.long
@pytest.mark.parametrize(
    ("missing", "module", "words", "line", "code"),
    [
        (
            "kazoo", "kbroker", "start {directory}/server.properties",
            "kbroker start needs kazoo, which is not installed: pip install 'kbroker[broker]'", 1,
        ),
        (
            "numpy", "spark_jobs", "counts --source a:1 --target b:1 --topics t",
            "kaudit: this command needs numpy, which is not installed: pip install 'kbroker[audit]'", 70,
        ),
    ],
)  # fmt: skip
def test_a_command_without_its_extra_prints_one_line(
    missing: str, module: str, words: str, line: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "server.properties").write_text(
        f"broker.id=1\nzookeeper.connect=127.0.0.1:1\nlog.dirs={tmp_path}/log\n"
        "listeners=PLAINTEXT://127.0.0.1:0\n"
    )
    script = (
        f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['x', *{words.format(directory=tmp_path).split()!r}];"
        f"from {module}.__main__ import main; main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30
    )
    assert (ended.returncode, ended.stderr) == (code, f"{line}\n")


def test_a_missing_module_of_our_own_is_no_missing_extra() -> None:
    problem = ModuleNotFoundError("No module named 'kclient.nope'", name="kclient.nope")
    assert what_to_install(problem, "kclient", "avro") is None


# --- what a command imports


def imported(program: str) -> None:
    """Run *program*, which asserts what it imports, in a process of its own."""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_command_does_not_import_the_web_client_of_twisted() -> None:
    imported(
        "import sys, kclient.__main__ as program\n"
        "sys.argv = ['kclient', '-m', '0.1', '-b', '127.0.0.1:1', 'topic', 'list']\n"
        "try: program.main()\n"
        "except SystemExit: pass\n"
        "assert 'twisted.internet.reactor' in sys.modules\n"
        "assert not {'urllib.request', 'http.client', 'kclient.producer'} & sys.modules.keys()\n"
    )


def test_a_module_that_is_imported_later_is_whole_wherever_it_is_used() -> None:
    imported(
        "from kclient.lazy import defer_import\n"
        "defer_import('http.cookiejar')\n"
        "from http import cookiejar as early\n"
        "import sys\n"
        "assert 'urllib.request' not in sys.modules\n"
        "class Jar(early.CookieJar): pass\n"
        "import http.cookiejar\n"
        "from http.cookiejar import CookieJar\n"
        "assert http.cookiejar.CookieJar is CookieJar is early.CookieJar is Jar.__base__\n"
        "assert http.cookiejar is sys.modules['http.cookiejar'] is not early\n"
        "defer_import('http.cookiejar')\n"
        "assert http.cookiejar is sys.modules['http.cookiejar']\n"
        "try: early.no_such_name\n"
        "except AttributeError: pass\n"
        "else: raise AssertionError\n"
    )


def test_a_producer_without_transactions_does_not_import_them() -> None:
    imported(
        "import sys, kclient.producer.producer\n"
        "names = ('transaction_manager', 'transaction_sender')\n"
        "assert not {f'kclient.producer.{name}' for name in names} & sys.modules.keys()\n"
    )


def test_the_checksum_is_imported_without_the_command_line_of_its_package() -> None:
    imported(
        "import sys, kclient.producer.producer\n"
        "from kclient.wire.crc import crc32c\n"
        "assert crc32c(b'123456789') == 0xE3069283\n"
        "assert not {'importlib.metadata', 'argparse'} & sys.modules.keys()\n"
        "import crc32c as package\n"
        "assert package.crc32c(b'123456789') == crc32c(b'123456789')\n"
    )


# --- the end of a process


def ended(program: str) -> tuple[int, str, str]:
    """Run *program* between an atexit function and `run_and_end(main)`; return its exit code and what it printed."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import atexit, sys, threading, time\nfrom kclient.process_end import run_and_end\n"
            f"atexit.register(print, 'atexit')\ndef main():\n    print('main')\n    {program}\n"
            "run_and_end(main)\n",
        ],
        capture_output=True,
        text=True,
        timeout=30,
        env={name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("program", "code", "printed", "error"),
    [
        ("pass", 0, "main\natexit\n", ""),
        ("sys.exit()", 0, "main\natexit\n", ""),
        ("sys.exit(3)", 3, "main\natexit\n", ""),
        ("sys.exit('no')", 1, "main\natexit\n", "no\n"),
        ("sys.stderr.write('oh'); sys.exit(True)", 1, "main\natexit\n", "oh"),
        (
            "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()",
            0,
            "main\nthread\natexit\n",
            "",
        ),
        ("threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", 0, "main\natexit\n", ""),
    ],
)  # fmt: skip
def test_a_process_ends_as_python_ends_it(
    program: str, code: int, printed: str, error: str
) -> None:
    assert ended(program) == (code, printed, error)


def test_an_exception_is_a_traceback_at_the_end_of_a_process() -> None:
    code, printed, error = ended("raise ValueError('a bug')")
    assert (code, printed) == (1, "main\natexit\n")
    assert error.endswith("ValueError: a bug\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_process_ends_without_an_error_if_its_output_is_closed(closed: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m kclient --version {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, b"")


def test_output_that_cannot_be_written_is_an_error_at_the_end_of_a_process() -> None:
    full = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1)"
    code, _, error = ended(full)
    assert code == 120, "as Python has it"
    assert "No space left on device" in error


# --- no broker


@pytest.mark.parametrize(
    ("port", "cause", "guess"),
    [
        (2181, Cause.CLOSED, "2181 is a port of ZooKeeper; clients connect to brokers"),
        (2181, Cause.REFUSED, "2181 is a port of ZooKeeper"),
        (9093, Cause.CLOSED, "a listener with TLS answers as b:9093 does"),
        (9093, Cause.CLOSED, "A broker at its limit of connections closes too"),
        (443, Cause.NOT_KAFKA, "a listener with TLS answers as b:443 does"),
    ],
)
def test_the_likely_mistake_about_an_address_is_named(port: int, cause: Cause, guess: str) -> None:
    attempts = [
        AttemptFailed(Address("a", 9092), Cause.DNS),
        AttemptFailed(Address("b", port), cause),
    ]
    assert guess in likely_mistake(attempts)


def test_there_is_no_guess_about_brokers_that_are_down() -> None:
    assert not likely_mistake([AttemptFailed(Address("a", 9092), Cause.REFUSED)])


def test_an_unreachable_cluster_names_the_ways_to_name_the_brokers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    problem = BootstrapError([AttemptFailed(Address("localhost", 9092), Cause.REFUSED)])
    assert exit_code(Failure(problem)) == UNREACHABLE
    shown = capsys.readouterr().err
    assert "localhost:9092: connection refused" in shown
    assert all(
        n in shown for n in ("-b HOST:PORT", "KCLIENT_BOOTSTRAP_SERVERS", "kbroker local env")
    )


# --- the end of a topic


@pytest.mark.parametrize(
    ("offset", "names_start"), [("end", True), ("start", False), ("-3", False)]
)
def test_the_note_at_the_end_has_the_option_for_older_records(
    offset: str, names_start: bool
) -> None:
    note = waiting_note(("t", "u"), parse_offsets(offset, now_ms=0))
    assert note.startswith("waiting for new records of t, u ")
    assert ("-o start" in note) is names_start
