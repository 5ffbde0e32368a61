"""What runs to its end although a signal cancels the command."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred

from mirrormaker.__main__ import _show_record
from mirrormaker.interruption import uninterrupted


async def cancelled_then_undone(step: Deferred[None], undo: Deferred[str]) -> str:
    try:
        await step
    except CancelledError:
        return await uninterrupted(undo)
    return "done"


@pytest.mark.parametrize("signals", [1, 2, 3])
def test_an_undo_is_not_cancelled_with_its_command(signals: int) -> None:
    undo: Deferred[str] = Deferred()
    running: Deferred[Any] = Deferred.fromCoroutine(cancelled_then_undone(Deferred(), undo))
    for _ in range(signals):
        running.cancel()
    found: list[Any] = []
    running.addBoth(found.append)
    assert found == []
    undo.callback("undone")
    assert found == ["undone"]


def test_an_undo_that_fails_is_the_error_of_its_command() -> None:
    undo: Deferred[str] = Deferred()
    running: Deferred[Any] = Deferred.fromCoroutine(cancelled_then_undone(Deferred(), undo))
    running.cancel()
    running.cancel()
    found: list[Any] = []
    running.addErrback(lambda failure: found.append(failure.value))
    undo.errback(ValueError("not undone"))
    assert [str(each) for each in found] == ["not undone"]


COMMAND = """
import sys
from twisted.internet.defer import CancelledError, Deferred
from kclient.errors import KafkaTimeoutError
from kclient.net.waiting import sleep
from mirrormaker.__main__ import _cancelled_by_signal, _in_reactor
from mirrormaker.interruption import uninterrupted

async def undo(reactor):
    print("undoing", flush=True)
    await (Deferred() if sys.argv[1] == "endless" else sleep(reactor, 0.1))
    print("undone", flush=True)
    if sys.argv[1] == "failing":
        raise ValueError
    if sys.argv[1] == "refused":
        raise KafkaTimeoutError("east")

async def begin(reactor):
    print("begun", flush=True)
    try:
        await Deferred()
    except CancelledError:
        await uninterrupted(undo(reactor))
        raise

sys.exit(_in_reactor(_cancelled_by_signal(begin)))
"""


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("undo", ["short", "endless"])
def test_the_first_signal_undoes_and_the_second_one_ends(number: signal.Signals, undo: str) -> None:
    command = [sys.executable, "-c", COMMAND, undo]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        assert process.stdout.readline() == "undoing\n"
        if undo == "endless":
            process.send_signal(number)
        out, errors = process.communicate(timeout=30)
    assert out == ("undone\n" if undo == "short" else "")
    assert process.returncode == 128 + number
    assert errors == f"kmirror: {number.name} ends the command; a second signal ends it at once\n"


@pytest.mark.long
@pytest.mark.parametrize("undo", ["short", "failing", "refused"])
def test_a_signal_undoes_although_no_process_reads_the_messages(undo: str) -> None:
    """Ctrl-C of `kmirror promote 2>&1 | tee log` ends tee, too: the signal was lost, and the promotion went on."""
    command = [sys.executable, "-c", COMMAND, undo]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "begun\n"
        process.stderr.close()
        process.stderr = None
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    assert out == "undoing\nundone\n"
    assert process.returncode == {"short": 130, "failing": 70, "refused": 3}[undo]


def test_a_record_that_cannot_be_printed_is_no_other_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The promotion was done, and the command ended with 70."""

    def full(_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys.stdout, "write", full)
    _show_record({"mode": "exchanged"}, None)
    assert capsys.readouterr().err.startswith("kmirror: the record cannot be printed: No space")
