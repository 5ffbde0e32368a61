"""S47: two clusters with a mirror under kill -9; then the audit, a promotion, the way back, and the audit again.

1. Producers write to east, topics are created and get partitions. Brokers and ZooKeeper of both clusters and kmirror
   are killed and paused until the time is up. Then all is healed and the producers stop.
2. `kmirror status` ends with 0. `kaudit reconcile --complete` ends with 0 and CONSISTENT. A comparison of every record
   that shares no code with either finds no difference, and every acknowledged record at its offset in both clusters.
3. `kmirror promote east->west` with producers that write on: it is killed at a random moment, as a leader at east is,
   and run again. Its rpo_records has to be 0, and no acknowledged record of east is behind the cut. Without a number,
   or without a record, the run is not clean.
4. Producers write at west. The audit again, with west as the source.
5. `kmirror promote west->east`, records at east, and the audit as in 2.
6. The mirrors are killed, east gets ahead, and all of it is killed: `kmirror promote --source-lost`, records at west,
   east returns, `kmirror failback`, killed at a random moment and run again. Each acknowledged record of east that west
   never received is in the export, and rpo_records is the number of exported records. Then the audit as in 4.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.audits.problem import Problem
from tests.chaos import faults
from tests.chaos.mirror_comparison import differences, lost, read_all
from tests.chaos.mirror_loss import exported, promotion_problems, rpo_problems
from tests.chaos.mirror_writers import KINDS, Ledger, MirrorWriter
from tests.chaos.mirrored_clusters import (
    CLUSTER_FAULTS,
    EAST,
    TOPICS,
    WEST,
    MirroredClusters,
)
from tests.chaos.result import OUT_OF_TIME
from tests.chaos.scenario import progress

ABOUT = "kill -9 of mirrors, brokers and ZooKeeper between two clusters, kaudit, promote, fail back"
PATIENCE = 240.0
"""Seconds that the mirror may take to copy everything after healing, and a command to end."""
AUDIT_PATIENCE = 900.0
RATE = 12.0
"""Records a second and writer."""
WRITING = 15.0
"""Seconds that producers write after each promotion."""
ATTEMPTS = 6
"""Runs of `kmirror promote` until it is done; a promotion under faults may be refused."""


@dataclass
class MirrorResult:
    """What came out."""

    problems: list[Problem] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    """Figures, a line each."""

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_text(self) -> str:
        """Return what a person reads."""
        bad = [f"BAD: {problem}" for problem in self.problems[:20]]
        late = all(problem.rule in OUT_OF_TIME for problem in self.problems)
        judged = (
            "CLEAN" if self.clean else "OUT OF TIME, nothing is wrong or lost" if late else "BROKEN"
        )
        return "\n".join([*self.lines, *bad, judged])


class MirrorRun:
    """One run; everything it makes is under *out*."""

    def __init__(self, seed: int, seconds: float, out: Path, workers: int = 0) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out = out
        self.seconds = seconds
        self.seed = seed
        self.chance = random.Random(seed)
        self.clusters = MirroredClusters(out, workers)
        self.ledger = Ledger()
        self.result = MirrorResult()
        self._generation = 0
        self._writers: list[MirrorWriter] = []

    def play(self) -> MirrorResult:
        """Do it all."""
        clusters = self.clusters
        try:
            self._progress("the clusters start")
            clusters.begin()
            clusters.create_topic(2)
            clusters.create_topic(1)
            clusters.start_mirrors()
            with self._writing():
                self._hurt()
                self._progress("healing")
                clusters.heal()
                self._in_sync()
            self._compare("after the kills")
            self._exchange_roles(killed=True)
            self._compare("after the promotion")
            self._exchange_roles(killed=False)
            self._compare("after the way back")
            self._lose_and_fail_back()
            self._compare("after the failback")
            self.result.problems += clusters.judge_logs()
        finally:
            clusters.end()
            self._note(f"not acknowledged: {dict(self.ledger.refusals)}")
            (self.out / "verdict.txt").write_text(self.result.to_text() + "\n")
        return self.result

    # -- writing and hurting

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Have producers write meanwhile, to the active cluster at first."""
        clusters = self.clusters
        self._generation += 1
        for number, (codec, idempotent) in enumerate(KINDS):
            writer = MirrorWriter(
                f"w{self._generation}{number}", clusters.recorders[EAST], self.ledger,
                clusters.bootstraps, lambda: clusters.places, at=clusters.active, codec=codec,
                idempotent=idempotent, rate=RATE, seed=self.seed * 100 + 10 * self._generation + number,
            )  # fmt: skip
            self._writers.append(writer)
            writer.start()
        yield
        for writer in self._writers:
            writer.finish()
        for writer in self._writers:
            writer.join(PATIENCE)
            assert not writer.is_alive(), f"{writer.name} does not end"
            if writer.problem is not None:
                raise AssertionError(f"{writer.name} ended") from writer.problem
        self._writers.clear()

    def _hurt(self) -> None:
        until = time.monotonic() + self.seconds
        rounds = 0
        while time.monotonic() < until:
            self._play_faults()
            self.clusters.grow(self.chance)
            rounds += 1
        self._note(f"{rounds} rounds of faults; {self.ledger.records} records were acknowledged")

    def _play_faults(self) -> None:
        """Hurt one to three of east, west and the mirror at once, wait, repair, wait."""
        chance, clusters = self.chance, self.clusters
        chosen: list[tuple[str, Iterator[str]]] = []
        for where in chance.sample((EAST, WEST, "mirror"), chance.choice((1, 1, 2, 3))):
            if where == "mirror":
                chosen.append((where, chance.choice(clusters.faults)(clusters, chance)))
            else:
                cluster = clusters.clusters[where]
                chosen.append((where, chance.choice(CLUSTER_FAULTS)(cluster, chance)))
        for where, running in chosen:
            words = next(running, "")
            self._progress(f"{where}: {words}")
        time.sleep(chance.uniform(0.5, 7))
        for _, running in chosen:
            for _ in running:
                pass
        time.sleep(chance.uniform(1, 4))

    def _in_sync(self) -> None:
        self.clusters.note_topics()
        for name, cluster in self.clusters.clusters.items():
            for key in cluster.wait_in_sync():
                text = f"after healing: {cluster.state(key)}"
                self._problem("isr-not-full", f"{name} {key}", text)

    # -- judgement

    def _compare(self, when: str) -> None:
        """Wait for lag 0; then kaudit, and the comparison of every record."""
        clusters = self.clusters
        self._progress(f"{when}: {self.ledger.records} acknowledged records; waiting for lag 0")
        self._until("lag", lambda: self._ask("status"), clusters.mirrors[0].output[-1500:])
        self._audit(when)
        clusters.note_topics()
        logs = {name: read_all(clusters.bootstraps[name], clusters.places) for name in (EAST, WEST)}
        self.result.problems += differences(logs[EAST], logs[WEST])
        for name in (EAST, WEST):
            self.result.problems += lost(self.ledger, logs[name], name)
        self.result.problems += [
            Problem("acknowledged-twice", "", one) for one in self.ledger.twice
        ]
        records = sum(map(len, logs[EAST].values()))
        self._note(
            f"{when}: {records} records in {len(logs[EAST])} partitions compared one by one, "
            f"{self.ledger.records} of them acknowledged "
            f"({sum(map(len, self.ledger.placeless.values()))} without an offset)"
        )

    def _audit(self, when: str) -> None:
        """Run kaudit. Every partition has to be proven up to its log end."""
        clusters = self.clusters
        report = self.out / f"kaudit-{when.replace(' ', '-')}"
        command = [
            *(sys.executable, "-m", "spark_jobs", "reconcile", "--complete", "--quiet"),
            *("--no-self-test", "--topics", f"{TOPICS}.*", "--out", str(report)),
            *("--source", clusters.bootstraps[clusters.active]),
            *("--target", clusters.bootstraps[clusters.passive]),
            *("--names", f"{clusters.active},{clusters.passive}"),
        ]
        began = time.monotonic()
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=AUDIT_PATIENCE, check=False
        )
        verdict = ""
        if (report / "report.json").exists():
            verdict = json.loads((report / "report.json").read_text())["verdict"]
        self._note(
            f"{when}: kaudit {verdict}, exit code {done.returncode}, {time.monotonic() - began:.0f} s"
        )
        if (verdict, done.returncode) != ("CONSISTENT", 0):
            self._problem("audit", when, (done.stdout + done.stderr)[-1500:])

    # -- promotion

    def _exchange_roles(self, *, killed: bool) -> None:
        """Promote the passive cluster while producers write; they follow it."""
        clusters, ledger = self.clusters, self.ledger
        old, new = clusters.active, clusters.passive
        with self._writing():
            before = ledger.at(old)
            self._until("records", lambda: (ledger.at(old) <= before, ""), "before the promotion")
            if killed:
                self._killed_promotion(old, new)
            record = self._promote(old, new)
            clusters.active = new
            before = ledger.at(new)
            self._until(
                "records", lambda: (ledger.at(new) <= before, ""), f"at {new}, {ledger.refusals}"
            )
            time.sleep(WRITING)
            if killed:
                clusters.heal()
                self._in_sync()
        self._judge_rpo(old, new, record)

    def _killed_promotion(self, old: str, new: str) -> None:
        """Begin a promotion, kill it, and a leader of the source, too."""
        path = self.clusters.mirrors[0].path
        log = self.out / "promote-killed.log"
        command = [sys.executable, "-m", "mirrormaker", "promote", str(path), "--flow", f"{old}->{new}"]  # fmt: skip
        with log.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        deadline = time.monotonic() + 60
        while ": mirrored" not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(self.chance.uniform(0, 1.5))
        process.kill()
        process.wait()
        last = log.read_text().strip().splitlines()[-1:]
        hurting = faults.kill_leader(self.clusters.clusters[old], self.chance)
        self._progress(f"kmirror promote was killed at {last}; {old}: {next(hurting)}")

    def _promote(self, old: str, new: str, *options: str) -> dict[str, Any] | None:
        """Promote, again if it is refused; return its record, None if no command printed one."""
        file = self.out / f"promotion-{old}-{new}{''.join(options)}.json"
        for _ in range(ATTEMPTS):
            flow = f"{old}->{new}"
            code, output = self.clusters.mirrors[0].ask(
                "promote", "--flow", flow, "--record", str(file), *options, timeout=PATIENCE
            )
            self._progress(f"kmirror promote {flow}: exit code {code}, {output.strip()[-200:]}")
            if code in (0, 4):
                break
            self.clusters.heal()
        else:
            self._problem("promotion", f"{old}->{new}", output[-1500:])
        if file.exists():
            record: dict[str, Any] = json.loads(file.read_text())
            self._note(f"promotion {old}->{new}: rpo_records {record['rpo_records']}")
            return record
        self._note(f"promotion {old}->{new}: no record")
        return None

    def _judge_rpo(self, old: str, new: str, record: dict[str, Any] | None) -> None:
        """Compare the record's RPO with what the old source acknowledged behind the cuts.

        A command that was killed may have done all without a record, and one that ran during a fault may have read less
        than all: the same command reads it again.
        """
        if record is None or record["rpo_records"] is None:
            record = self._promote(old, new)
        writers = f"w{self._generation}"
        for each in promotion_problems(record, self.ledger.written, old, writers):
            self._problem(each.rule, f"{old}->{new}", each.text)

    # -- the active cluster is lost

    def _lose_and_fail_back(self) -> None:
        """Lose the active cluster while it is ahead of its mirror; the other one takes over, and it returns."""
        clusters, ledger = self.clusters, self.ledger
        old, new = clusters.active, clusters.passive
        with self._writing():
            self._more_records(old, "before the loss")
            for number in range(len(clusters.mirrors)):
                clusters.kill_mirror(number)
            self._more_records(old, "that the mirror does not copy")
            lost = [faults.kill_all(clusters.clusters[old], self.chance)]
            if self.chance.random() < 0.5:
                lost.append(faults.kill_zookeeper(clusters.clusters[old], self.chance))
            self._progress(f"{old}: {', '.join(next(each) for each in lost)}")
            record = self._promote(old, new, "--source-lost")
            assert record is not None, "kmirror promote --source-lost"
            ends = {
                (each["topic"], each["partition"]): each["end"] for each in record["partitions"]
            }
            ledger.lose(old, ends)
            clusters.active = new
            for writer in self._writers:
                writer.at = new
            self._more_records(new, "after the loss")
            for returning in reversed(lost):
                for _ in returning:
                    pass
            clusters.start_mirrors()
            self._progress(f"{old} is back")
            found = self._failback(old, new)
            self._more_records(new, "after the failback")
        if found is not None:
            self._judge_failback(old, new, found)
        ledger.found()

    def _more_records(self, cluster: str, when: str) -> None:
        before = self.ledger.at(cluster)
        self._until("records", lambda: (self.ledger.at(cluster) <= before + 40, ""), when)

    def _failback(self, old: str, new: str) -> dict[str, Any] | None:
        """Make *old* the mirror of *new*: the command is killed once, then run until it succeeds; return its record."""
        mirror, file = self.clusters.mirrors[0], self.out / "failback.json"
        words = ["--flow", f"{new}->{old}", "--execute", "--export", str(self.out / "export")]
        words += ["--no-audit", "--record", str(file)]
        command = [sys.executable, "-m", "mirrormaker", "failback", str(mirror.path), *words]
        with (self.out / "failback-killed.log").open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        time.sleep(self.chance.uniform(0.5, 8))
        self._progress(f"kmirror failback is killed{'' if process.poll() is None else ', late'}")
        process.kill()
        process.wait()
        for _ in range(ATTEMPTS):
            code, output_text = mirror.ask("failback", *words, timeout=PATIENCE)
            self._progress(f"kmirror failback: exit code {code}, {output_text.strip()[-200:]}")
            if code == 0:
                record: dict[str, Any] = json.loads(file.read_text())
                return record
            self.clusters.heal()
        self._problem("failback", f"{new}->{old}", output_text[-1500:])
        return None

    def _judge_failback(self, old: str, new: str, record: dict[str, Any]) -> None:
        """Compare the RPO, and the files of the export, with what *old* acknowledged alone."""
        clusters, ledger, writers = self.clusters, self.ledger, f"w{self._generation}"
        clusters.note_topics()
        held = {
            place: {one.value for one in records}
            for place, records in read_all(clusters.bootstraps[new], clusters.places).items()
        }
        nowhere = {
            place: [
                one for one in written
                if one.cluster == old and one.value.startswith(writers.encode())
                and one.value not in held.get(place, ())
            ]
            for place, written in ledger.placeless.items()
        }  # fmt: skip
        found = exported(self.out / "export")
        self.result.problems += rpo_problems(
            record["rpo_records"], found, ledger.alone, nowhere, writers
        )
        for place, gone in nowhere.items():
            ledger.placeless[place] = [one for one in ledger.placeless[place] if one not in gone]
        known = sum(map(len, ledger.alone.values())) + sum(map(len, nowhere.values()))
        self._note(
            f"failback {new}->{old}: rpo_records {record['rpo_records']} over {record['rpo_seconds']} s; "
            f"{len(found)} records were exported, {known} of them had been acknowledged"
        )

    # -- small things

    def _ask(self, command: str) -> tuple[int, str]:
        return self.clusters.mirrors[0].ask(command, timeout=PATIENCE)

    def _until(self, what: str, ask: Callable[[], tuple[int | bool, str]], detail: str) -> None:
        """Repeat *ask* until its first value is 0; a problem after `PATIENCE`."""
        deadline = time.monotonic() + PATIENCE
        while (answer := ask())[0]:
            if time.monotonic() > deadline:
                self._problem(f"no-{what}", str(answer[0]), f"{answer[1][-1500:]}; {detail}")
                return
            time.sleep(0.5)

    def _problem(self, rule: str, where: str, text: str) -> None:
        self.result.problems.append(Problem(rule, where, text))
        self._progress(f"BAD: {rule}: {where}: {text}")

    def _note(self, text: str) -> None:
        self.result.lines.append(text)
        self._progress(text)

    def _progress(self, words: str) -> None:
        progress(self.clusters.clusters[EAST], words)
