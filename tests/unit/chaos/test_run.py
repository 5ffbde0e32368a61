"""What of a run's findings is the client's own doing, or the machine's."""

from __future__ import annotations

from pathlib import Path

from tests.audits.isr_samples import Loss
from tests.audits.logs import LogAudit
from tests.audits.problem import Problem
from tests.chaos.recorder import Recorder
from tests.chaos.result import Result, excuse_renumbered, losses
from tests.checker.anomaly import Anomaly
from tests.checker.history_builder import Builder
from tests.checker.verdict import check


def test_a_slow_machine_breaks_no_guarantee() -> None:
    verdict = check(Builder().send(1, 0).final((0, 1)).events)
    assert Result(verdict).clean
    late = Result(verdict, [Problem("isr-not-full", "t-0", "")])
    assert not late.clean
    assert not late.broken
    assert Result(verdict, [Problem("replicas-differ", "t-0", "")]).broken
    assert Result(check(Builder().send(1, 0).final().events)).broken


TWICE = Anomaly("duplicate", "", (), key="t-0", offsets=(3, 7))


def test_copies_of_different_epochs_are_the_clients_doing() -> None:
    logs = LogAudit(producers={"t-0": {3: (11, 0), 7: (11, 1)}})
    assert not excuse_renumbered(TWICE, logs).bad


def test_copies_of_one_epoch_are_the_brokers() -> None:
    for producers in ({3: (11, 0), 7: (11, 0)}, {3: (11, 0), 7: (12, 0)}, {3: (11, 0)}, {}):
        assert excuse_renumbered(TWICE, LogAudit(producers={"t-0": producers})) == TWICE


def test_nothing_else_is_excused() -> None:
    lost = Anomaly("lost-write", "", (), key="t-0", offsets=(3, 7))
    logs = LogAudit(producers={"t-0": {3: (11, 0), 7: (11, 1)}})
    assert excuse_renumbered(lost, logs) == lost


def test_the_replicas_that_lost_records_to_a_fault_are_known_from_the_history(
    tmp_path: Path,
) -> None:
    recorder = Recorder(tmp_path / "history.jsonl")
    recorder.nemesis(kill=1)
    times = [
        recorder.nemesis(wipe=2).t,
        recorder.nemesis(damage="broker-3/t-0", kind="cut", bytes=3).t,
        recorder.nemesis(bit_rot="broker-1/t-1").t,
    ]
    recorder.close()
    lost = [(2, None), (3, "t-0"), (1, "t-1")]
    assert losses(recorder.events) == [
        Loss(t, broker, key) for t, (broker, key) in zip(times, lost, strict=True)
    ]
