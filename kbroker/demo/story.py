"""The demo, step by step: the whole product used as a person would use it.

1 clusters    a ZooKeeper ensemble of three, two clusters of three brokers, each electing its controller
2 data        336,776 real flights and their weather as Avro into the first
3 mirror      `kmirror run --once` carries them to the second
4 audit       `kaudit reconcile` must find the two CONSISTENT
5 damage      records of the second, chosen at random, are lost, changed, moved and doubled on disk
6 audit       a second report must name exactly those
"""

from __future__ import annotations

import json
import random
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from kbroker.demo import dataset
from kbroker.demo.damage import Counts, Damage, damage_log
from kbroker.demo.stage import DemoFailed, LocalClusters, Narrator, free_ports, run_module, shown

BROKERS = 3
PARTITIONS = {dataset.FLIGHTS: 6, dataset.WEATHER: 3}
_TOPICS = "flights|weather"
MARK = ".kbroker-demo"
"""The file that a demo leaves in its directory first: what has the names below is its own, then."""
_WRITTEN = ("clusters", "mirror.properties", "report-1", "report-2")
_EVENTS: dict[str, tuple[Callable[[], Iterator[dataset.Event]], int]] = {
    dataset.FLIGHTS: (dataset.flights, 336_776),
    dataset.WEATHER: (dataset.weather, 26_115),
}


class Choices(NamedTuple):
    """What can be chosen on the command line."""

    directory: Path
    seed: int
    keep: bool
    """Leave the clusters running at the end."""
    port: int


def play(choices: Choices) -> None:
    """Run the whole demo; DemoFailed when a step does not show what it must."""
    narrator = Narrator()
    out = choices.directory
    clusters = LocalClusters(out / "clusters")
    make_room(out, _purge)
    try:
        east, west = _start(narrator, clusters, choices.port)
        _produce(narrator, east)
        config = _mirror(narrator, out, east, west)
        _first_audit(narrator, out, east, west)
        deeds = _damage(narrator, clusters, west, random.Random(choices.seed), choices.seed)
        _second_audit(narrator, out, east, west, deeds)
        _summary(narrator, choices, east, west, config)
    except BaseException:
        _stop_after_error(narrator, clusters)
        raise
    if not choices.keep:
        clusters.down_all()


def make_room(out: Path, purge: Callable[[Path], object]) -> None:
    """Make *out* if need be, and remove what an earlier demo left there; *purge* stops and deletes its clusters.

    Raise DemoFailed, and remove nothing, if *out* has files and no mark of a demo.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise DemoFailed(f"--dir {out}: {problem.strerror}") from problem
    there = sorted(path.name for path in out.iterdir())
    if there and MARK not in there:
        shown_names = ", ".join(there[:3]) + (", ..." if len(there) > 3 else "")
        raise DemoFailed(
            f"--dir {out}: it has files that no demo has written: {shown_names}\n"
            f"  Choose an empty or new directory. (A demo removes only its own files, and marks them by {MARK}.)"
        )
    (out / MARK).touch()
    for name in _WRITTEN:
        path = out / name
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.is_dir():
            if name == "clusters":
                purge(path)
            if path.exists():  # `kbroker local purge` removes a directory that it has emptied.
                shutil.rmtree(path)


def _purge(directory: Path) -> None:
    run_module("kbroker", "local", "purge", "--dir", str(directory))


def _stop_after_error(narrator: Narrator, clusters: LocalClusters) -> None:
    """Stop the clusters, if there are any. That this fails must not hide the error before it."""
    if not clusters.directory.exists():
        return
    try:
        clusters.down_all()
    except DemoFailed as problem:
        narrator.line(f"    the clusters could not be stopped: {problem}")


def _start(narrator: Narrator, clusters: LocalClusters, port: int) -> tuple[str, str]:
    narrator.step("Two clusters on one ZooKeeper ensemble")
    ports = free_ports(port, 2 * BROKERS)
    east = clusters.up("east", brokers=BROKERS, zookeepers=3, port=ports)
    west = clusters.up("west", brokers=BROKERS, zookeepers=3, port=ports + BROKERS)
    for name, brokers in (("east", east), ("west", west)):
        narrator.line(f"    {name}: {brokers}")
        for line in run_module("kclient", "info", "-B", "-b", brokers).splitlines():
            narrator.line(f"        {line}")
    narrator.line("    (* is the elected controller)")
    return east, west


def _produce(narrator: Narrator, brokers: str) -> None:
    narrator.step("Real flights and weather, as Avro, into east")
    from kclient import AdminClient, Producer
    from kclient.avro import AvroSerializer

    with AdminClient({"bootstrap.servers": brokers}) as admin:
        admin.create_topics({name: {"num_partitions": count} for name, count in PARTITIONS.items()})
    for topic, (events, total) in _EVENTS.items():
        serialize = AvroSerializer(dataset.schema(topic))
        started = time.monotonic()
        sent = 0
        producer: Producer[str, bytes] = Producer(
            {
                "bootstrap.servers": brokers,
                "compression.type": "lz4",
                "linger.ms": 20,
                "acks": "all",
            }
        )
        with producer:
            for event in events():
                producer.send(
                    topic,
                    serialize(event.value),
                    event.key,
                    headers=event.headers,
                    timestamp_ms=event.timestamp_ms,
                )
                sent += 1
                if sent % 5000 == 0 or sent == total:
                    rate = sent / (time.monotonic() - started)
                    narrator.progress(topic, sent, total, rate)
            left = producer.flush(60)
        if left:
            raise DemoFailed(f"{left} records of {topic} were not acknowledged")
    narrator.line("    all acknowledged")


def _mirror(narrator: Narrator, out: Path, east: str, west: str) -> Path:
    narrator.step("MirrorMaker carries both topics to west, batch by batch, offsets kept")
    config = out / "mirror.properties"
    config.write_text(
        "clusters = east, west\n"
        f"east.bootstrap.servers = {east}\n"
        f"west.bootstrap.servers = {west}\n"
        "east->west.enabled = true\n"
        f"east->west.topics = {_TOPICS.replace('|', ', ')}\n"
    )
    narrator.line(f"    {shown('mirrormaker', ['run', str(config), '--once'])}")
    for line in run_module("mirrormaker", "run", str(config), "--once").splitlines():
        narrator.line(f"    {line}")
    return config


def _audit(out: Path, east: str, west: str, *, expect: int) -> str:
    arguments = [
        *("reconcile", "--source", east, "--target", west, "--names", "east,west"),
        *("--topics", _TOPICS, "--out", str(out), "--complete", "--window", "2000"),
    ]
    for topic in PARTITIONS:
        arguments += ["--avro", str(Path(__file__).parent / f"{topic}.avsc")]
    return run_module("spark_jobs", *arguments, expect=(expect,))


def _first_audit(narrator: Narrator, out: Path, east: str, west: str) -> None:
    narrator.step("A Spark job compares every record of both clusters")
    narrator.line(_indented(_audit(out / "report-1", east, west, expect=0)))
    if _report(out / "report-1")["verdict"] != "CONSISTENT":
        raise DemoFailed("the mirror was expected to be CONSISTENT; see the report")


def _damage(
    narrator: Narrator, clusters: LocalClusters, west: str, rng: random.Random, seed: int
) -> list[Damage]:
    narrator.step("Damage: records of west are lost, changed, moved and doubled on disk")
    from kclient import AdminClient

    with AdminClient({"bootstrap.servers": west}) as admin:
        described = admin.describe_topics(list(PARTITIONS))
        ends = {
            (topic, number): end
            for topic, metadata in described.items()
            for number, end in _ends(admin, topic, metadata).items()
        }
    leaders = {
        (topic, partition.partition): partition.leader
        for topic, metadata in described.items()
        for partition in metadata.partitions.values()  # type: ignore[union-attr]
    }
    first_port = int(west.split(",")[0].rpartition(":")[2])
    clusters.down("west")
    deeds: list[Damage] = []
    # Flights in three partitions, weather in its largest partition: small partitions have too few batches.
    flights = rng.sample([place for place in leaders if place[0] == dataset.FLIGHTS], 3)
    weather = max((place for place in ends if place[0] == dataset.WEATHER), key=lambda p: ends[p])
    for place in [*flights, weather]:
        topic, number = place
        log = clusters.log_directory("west", leaders[place], topic, number)
        counts = Counts() if topic == dataset.FLIGHTS else Counts(1, 1, 1, 1)
        deeds += damage_log(log, topic, number, rng, counts)
    for deed in deeds:
        at = deed.target_offset if deed.source_offset is None else deed.source_offset
        narrator.line(f"    {deed.finding_class:<10} {deed.topic}-{deed.partition} offset {at}")
    narrator.line(f"    {len(deeds)} records, chosen with seed {seed}; every batch has a valid CRC")
    clusters.up("west", brokers=BROKERS, zookeepers=3, port=first_port)
    return deeds


def _ends(admin: object, topic: str, metadata: object) -> dict[int, int]:
    from kclient import AdminClient, TopicPartition

    assert isinstance(admin, AdminClient)
    places = [TopicPartition(topic, number) for number in metadata.partitions]  # type: ignore[attr-defined]
    answers = admin.list_offsets(dict.fromkeys(places, "latest"))
    return {tp.partition: answer.offset for tp, answer in answers.items()}  # type: ignore[union-attr]


def _second_audit(narrator: Narrator, out: Path, east: str, west: str, deeds: list[Damage]) -> None:
    narrator.step("The same Spark job again: it must name exactly those records")
    narrator.line(_indented(_audit(out / "report-2", east, west, expect=1)))
    if _report(out / "report-2")["verdict"] != "DIVERGED":
        raise DemoFailed("the damaged mirror was expected to be DIVERGED; see the report")
    lines = (out / "report-2" / "findings.jsonl").read_text().splitlines()
    found = {
        (f["class"], f["topic"], f["partition"], f["src_offset"], f["dst_offset"], f["field"])
        for f in map(json.loads, lines)
    }
    done = {tuple(deed) for deed in deeds}
    if found != done:
        raise DemoFailed(
            f"the audit did not name exactly what was done:\n"
            f"  overlooked: {sorted(done - found, key=str)}\n  invented: {sorted(found - done, key=str)}"
        )
    narrator.line(f"    every one of the {len(done)} damaged records was named, and no other")


def _report(directory: Path) -> dict[str, object]:
    loaded: dict[str, object] = json.loads((directory / "report.json").read_text())
    return loaded


def _summary(narrator: Narrator, choices: Choices, east: str, west: str, config: Path) -> None:
    out = choices.directory
    narrator.line(f"\nDone in {narrator.elapsed():.0f} s. Both verdicts are as they must be.")
    narrator.line(f"  reports   {out / 'report-1' / 'report.html'}   (consistent)")
    narrator.line(f"            {out / 'report-2' / 'report.html'}   (damaged)")
    here = Path(__file__).parent
    first = east.split(",")[0]
    prefix = ".venv/bin/" if Path(".venv/bin/kclient").exists() else ""
    clusters = shlex.quote(str(out / "clusters"))
    local = f"{prefix}kbroker local up --dir {clusters}"
    narrator.line(
        "  play on   " + ("the clusters are still running" if choices.keep else "start them again:")
    )
    if not choices.keep:
        for name, brokers in (("east", east), ("west", west)):
            port = brokers.split(",")[0].rpartition(":")[2]
            narrator.line(f"            {local} --name {name} --port {port}")
    narrator.line(f"            {prefix}kclient info -b {first}")
    narrator.line(
        f"            {prefix}kclient consume flights -b {first} -o start -n 3 --avro "
        + shlex.quote(str(here / "flights.avsc"))
    )
    run = shlex.quote(str(out / "report-2"))
    narrator.line(f"            {prefix}kaudit explain --run {run} --finding 1")
    narrator.line(f"            {prefix}kmirror run {shlex.quote(str(config))}")
    if choices.keep:
        narrator.line(
            f"            {prefix}kbroker local purge --dir {clusters}   (stops and deletes all)"
        )


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines())
