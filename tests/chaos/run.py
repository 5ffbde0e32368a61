"""A run from start to end: a cluster, workers, a scenario; then repair, read everything, stop, audit, judge."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.audits import isr_samples
from tests.audits.growth import Growth
from tests.audits.health import audit_log_lines
from tests.audits.isr_samples import IsrAt, SampleAudit
from tests.audits.logs import audit_logs
from tests.audits.problem import Problem
from tests.audits.zookeeper_journal import read_journal
from tests.audits.zookeeper_rules import ClusterAudit
from tests.chaos import owner_worker
from tests.chaos.client import Client, Reader
from tests.chaos.client_thread import ClientThread
from tests.chaos.cluster import PATIENCE, REPLICAS, ChaosCluster
from tests.chaos.figures import figures
from tests.chaos.group_worker import GroupWorker
from tests.chaos.isr_sampler import IsrSampler
from tests.chaos.other_clients import KafkaPythonClient, LibrdkafkaClient, LibrdkafkaReader
from tests.chaos.owner_worker import OwnerWorker
from tests.chaos.raw_client import RawClient
from tests.chaos.recorder import Recorder
from tests.chaos.result import Result, excuse_renumbered, losses
from tests.chaos.scenario import Scenario, progress
from tests.chaos.vitals import Vitals
from tests.chaos.vitals_picture import draw
from tests.chaos.worker import FROM_BEGINNING, Worker
from tests.checker.derived import derive
from tests.checker.verdict import check

PARTITIONS = 4
LEAD_IN = 3.0
WORKERS = ("raw", "raw", "librdkafka", "librdkafka", "librdkafka", "kafka-python", "raw-acks-1")
GROUP_MEMBERS = 2
OWNERS = 3
STRATEGIES = ("range", "cooperative-sticky")
RATE = 15.0
"""Operations a second and worker."""


class Run:
    """One run; everything it makes is under *out*."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        seconds: float,
        out: Path,
        *,
        zookeepers: int = 0,
        members: int = GROUP_MEMBERS,
    ) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out = out
        self.scenario = scenario
        self.seed = seed
        self.seconds = seconds
        self.members = members
        self.recorder = Recorder(out / "history.jsonl")
        self.cluster = ChaosCluster(
            out,
            self.recorder,
            brokers=scenario.brokers,
            zookeepers=zookeepers or scenario.zookeepers,
            small_disks=scenario.small_disks,
            namespaces=scenario.namespaces,
        )
        self.cluster.unclean_election = scenario.unclean_election
        self.workers: list[ClientThread] = []
        self.sampler: IsrSampler | None = None
        self.vitals = Vitals(
            self.cluster.pids,
            self.cluster.ensemble.servers,
            lambda: (time.monotonic_ns() - self.recorder.began_ns) / 1e9,
        )
        self.problems: list[Problem] = []

    def play(self) -> Result:
        """Do it all."""
        cluster = self.cluster
        try:
            cluster.begin()
            for n in (1, 2):
                cluster.keys += cluster.create_topic(f"chaos-{n}", PARTITIONS // 2)
            self._not_in_sync("at the beginning")
            cluster.create_topic(owner_worker.TOPIC, owner_worker.PARTITIONS)
            self._start_sampler()
            self._start_workers()
            time.sleep(LEAD_IN)
            if self.scenario.soak:
                self.vitals.start()
            self._hurt()
            self._stop_vitals()
            progress(cluster, "healing")
            cluster.heal()
            self._not_in_sync("after healing")
            self._progress()
            self._stop_workers()
            ends = self._read_everything()
            self._stop_sampler()
            cluster.stop(*cluster.alive)
            return self._judge(ends)
        finally:
            self._stop_vitals()
            self._stop_sampler()
            self.recorder.close()
            cluster.end()

    # -- the parts -----------------------------------------------------------------------------

    def _start_workers(self) -> None:
        for number in range(self.members):
            self.workers.append(
                GroupWorker(
                    f"member-{number}", self.cluster.bootstrap, self.cluster.keys, self.recorder,
                    seed=self.seed * 100 + 50 + number,
                )
            )  # fmt: skip
            self.workers[-1].start()
        for number in range(OWNERS):
            self.workers.append(
                OwnerWorker(
                    f"owner-{number}", self.cluster.bootstrap, self.recorder,
                    seed=self.seed * 100 + 70 + number,
                    strategy=STRATEGIES[self.seed % len(STRATEGIES)],
                )
            )  # fmt: skip
            self.workers[-1].start()
        for number, kind in enumerate(WORKERS):
            chance = random.Random(self.seed * 100 + number)
            worker = Worker(
                f"{kind}-{number}", self._maker(kind, chance), self.cluster.keys, self.recorder,
                seed=self.seed * 100 + number, rate=RATE,
                from_beginning=0.0 if self.scenario.soak else FROM_BEGINNING,
            )  # fmt: skip
            self.workers.append(worker)
            worker.start()

    def _start_sampler(self) -> None:
        cluster = self.cluster
        brokers = {n: cluster.brokers[n] for n in cluster.ids}
        addresses = {n: (one.host.address, one.port) for n, one in brokers.items()}
        self.sampler = IsrSampler(
            cluster.ensemble.connect, cluster.chroot, addresses, cluster.keys, time.monotonic_ns
        )
        self.sampler.start()

    def _stop_sampler(self) -> None:
        if self.sampler is not None and self.sampler.is_alive():
            self.sampler.finish()

    def _stop_vitals(self) -> None:
        if self.vitals.is_alive():
            self.vitals.finish()

    def _judge_vitals(self) -> list[Growth]:
        """Keep the figures and their picture; report what grows."""
        if not self.scenario.soak:
            return []
        (self.out / "vitals.csv").write_text(self.vitals.to_csv())
        title = f"{self.scenario.about} (seed {self.seed}, {self.seconds / 60:g} min)"
        (self.out / "vitals.svg").write_text(draw(self.vitals.series, title))
        found = self.vitals.judge()
        if not any(one.judged for one in found):
            text = "the run was too short to judge growth"
            self.problems.append(Problem("not-sampled", "all", text))
        self.problems += [
            Problem("growing", one.of, one.to_text()) for one in found if one.is_growing
        ]
        return found

    def _judge_samples(self, audit: ClusterAudit) -> SampleAudit:
        assert self.sampler is not None
        lines = [json.dumps(sample._asdict()) + "\n" for sample in self.sampler.samples]
        (self.out / "samples.jsonl").write_text("".join(lines))
        isrs = [
            IsrAt(self.recorder.monotonic_ns(change.time_ms), change.key, change.state.isr)
            for change in audit.history
        ]
        found = isr_samples.judge(
            self.sampler.samples,
            losses(self.recorder.events),
            isrs,
            unclean_election=self.cluster.unclean_election,
        )
        if not found.compared:
            self.problems.append(Problem("not-sampled", "all", "no watermark was compared"))
        return found

    def _maker(self, kind: str, chance: random.Random) -> Callable[[], Client]:
        cluster = self.cluster
        if kind == "librdkafka":
            return lambda: LibrdkafkaClient(
                cluster.bootstrap, RawClient(cluster.entrances, acks="all", chance=chance)
            )
        if kind == "kafka-python":
            return lambda: KafkaPythonClient(cluster.bootstrap)
        acks = "1" if kind.endswith("1") else "all"
        return lambda: RawClient(cluster.entrances, acks=acks, chance=chance)

    def _hurt(self) -> None:
        chance = random.Random(self.seed)
        until = time.monotonic() + self.seconds
        while time.monotonic() < until:
            self.scenario.play(self.cluster, chance)
            died = [worker for worker in self.workers if worker.problem is not None]
            if died:
                raise AssertionError(f"worker {died[0].name} ended") from died[0].problem

    def _not_in_sync(self, when: str) -> None:
        missing = self.cluster.wait_in_sync()
        for key in missing:
            self.problems.append(
                Problem(
                    "isr-not-full", key, f"{when}, after {PATIENCE:g} s: {self.cluster.state(key)}"
                )
            )
        for key, replicas in self.cluster.replicas.items():
            if key in self.cluster.keys and (found := self.cluster.assigned(key)) != replicas:
                text = f"{when}: {found}, not {replicas}"
                self.problems.append(Problem("replicas-not-as-asked", key, text))

    def _progress(self) -> None:
        """Every key has to be written to again."""
        seen = len(self.recorder.events)
        missing = set(self.cluster.keys)
        deadline = time.monotonic() + PATIENCE
        while missing and time.monotonic() < deadline:
            time.sleep(0.2)
            events = self.recorder.events[seen:]
            missing -= {e.v[0][1] for e in events if e.f == "send" and e.type == "ok"}
        self.problems += [
            Problem("no-progress", key, "nothing was acknowledged after healing") for key in missing
        ]

    def _stop_workers(self) -> None:
        for worker in self.workers:
            worker.finish()
        for worker in self.workers:
            worker.join(PATIENCE)
            if worker.is_alive() and isinstance(worker, GroupWorker | OwnerWorker):
                progress(self.cluster, f"{worker.name} hangs in its client, and is left behind")
            elif worker.is_alive():
                raise AssertionError(f"worker {worker.name} does not end")
            if worker.problem is not None:
                raise AssertionError(f"worker {worker.name} ended") from worker.problem

    def _read_everything(self) -> dict[str, int]:
        """Final polls, by two clients, from offset 0 to the end."""
        chance = random.Random(self.seed)
        raw = RawClient(self.cluster.entrances, acks="all", chance=chance)
        ends: dict[str, int] = {}
        deadline = time.monotonic() + PATIENCE
        while len(ends) < len(self.cluster.keys) and time.monotonic() < deadline:
            for key in self.cluster.keys:
                if key not in ends and (end := raw.end_of(key)) is not None:
                    ends[key] = end
            time.sleep(0.05)
        for client in (raw, LibrdkafkaReader(self.cluster.bootstrap)):
            self._final(client, ends)
        return ends

    def _final(self, client: Reader, ends: dict[str, int]) -> None:
        p = self.recorder.new_process()
        client.assign(dict.fromkeys(ends, 0))
        self.recorder.event(p, "ok", "assign", list(ends))
        self.recorder.event(p, "ok", "seek", dict.fromkeys(ends, 0))
        at = dict.fromkeys(ends, 0)
        deadline = time.monotonic() + 2 * PATIENCE
        while any(at[key] < end for key, end in ends.items()) and time.monotonic() < deadline:
            found = client.poll(0.2)
            if found:
                self.recorder.event(p, "ok", "poll", [["poll", found]], catching_up=True)
                at.update({key: records[-1][0] + 1 for key, records in found.items()})
        client.close()
        reached = {key: end for key, end in ends.items() if at[key] >= end}
        self.recorder.event(p, "ok", "final", reached)
        for key in ends.keys() - reached.keys():
            self.problems.append(
                Problem("not-readable", key, f"polls came to {at[key]}, the end is {ends[key]}")
            )

    def _judge(self, ends: dict[str, int]) -> Result:
        cluster = self.cluster
        audit = ClusterAudit(cluster.chroot, unclean_election=cluster.unclean_election)
        audit.follow(read_journal(cluster.shelve_journals()))
        for change in audit.history:
            if change.elected:
                elected = {change.key: [change.state.leader, change.state.leader_epoch]}
                at = self.recorder.monotonic_ns(change.time_ms)
                self.recorder.event("zookeeper", "info", "election", elected, t=at)
        acknowledged = {
            key: {
                write.offset: value
                for value, write in log.writes.items()
                if write.binding and write.offset is not None
            }
            for key, log in derive(self.recorder.events).logs.items()
        }
        logs = audit_logs(
            {n: cluster.brokers[n].data for n in cluster.ids},
            clean=cluster.ids,
            high_watermarks=ends,
            acknowledged=acknowledged,
            topics={key.rpartition("-")[0] for key in cluster.keys},
        )
        for n in cluster.ids:
            self.problems += audit_log_lines(
                cluster.brokers[n].home / "broker.log", cluster.allowed_log_lines
            )
        verdict = check(self.recorder.events)
        anomalies = tuple(excuse_renumbered(one, logs) for one in verdict.anomalies)
        samples = self._judge_samples(audit)
        vitals = self._judge_vitals()
        result = Result(
            replace(verdict, anomalies=anomalies),
            self.problems + cluster.problems + audit.problems + logs.problems + samples.problems,
            figures(self.recorder, audit.history, cluster.keys, REPLICAS),
            logs,
            samples,
            vitals,
            len(audit.controllers),
            sum(change.elected for change in audit.history),
        )
        (self.out / "verdict.json").write_text(json.dumps(result.to_json(), indent=1))
        (self.out / "verdict.txt").write_text(result.to_text() + "\n")
        return result
