"""The data source `kbroker` beside Spark's own Kafka connector: the same options give the same rows, or both refuse."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from benchmarks import spark_connector
from kclient.wire.batches import BatchInfo
from kclient.wire.compression import Codec
from spark_jobs.cut import OffsetRange
from spark_jobs.reader import Fetched, fetch_ranges
from spark_jobs.session import JAVA_OPTIONS, driver_java_options
from spark_jobs.source import KbrokerDataSource
from spark_jobs.spark_settings import FOR_FEW_OFFSETS, SparkSettings
from tests.kit.apache_kafka import running_kafka, with_kafka
from tests.kit.brokers import MakeCluster
from tests.kit.kaudit import stop_spark
from tests.kit.waiting import eventually
from tests.kit.zookeeper import Ensemble

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

START = 1_700_000_000_000


class Jars(NamedTuple):
    """The connector's jars, or why there are none."""

    paths: Sequence[Path]
    reason: str = ""


@pytest.fixture(scope="module")
def jars() -> Jars:
    try:
        return Jars(spark_connector.jars())
    except spark_connector.NotAvailable as problem:
        return Jars((), str(problem))


@pytest.fixture
def connector(jars: Jars) -> str:
    """The format name of Spark's own connector."""
    if not jars.paths:
        pytest.skip(jars.reason)
    return "kafka"


@pytest.fixture(scope="module")
def spark(jars: Jars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    stop_spark()
    if SparkContext._gateway is not None:
        # A JVM without the connector's jars, of another file. It ends with its stdin; without the wait, the garbage
        # collector finds both in a later test.
        gateway = SparkContext._gateway
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
        SparkContext._gateway = SparkContext._jvm = None
    os.environ |= {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    builder = SparkSession.builder.appName("kbroker-source-tests").master("local[2]")
    settings = {
        "spark.jars": ",".join(map(str, jars.paths)),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Some hundred queries of few rows: to compile code for each takes longer than the query.
        **FOR_FEW_OFFSETS,
        "spark.driver.memory": "1g",
        JAVA_OPTIONS: driver_java_options(SparkSettings("local[2]")),
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.dataSource.register(KbrokerDataSource)
    yield session
    session.stop()


class Log:
    """A cluster to write to."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        new = NewTopic(topic, partitions, 1, config=settings)
        for future in self.admin.create_topics([new]).values():
            future.result(20)

    def write(
        self, topic: str, first: int, end: int, *, partitions: int = 1, codec: str = "none"
    ) -> None:
        """Write records with all that Kafka can hold: nulls, empties, headers in order with repeated keys."""
        # A flush does not wait for linger.ms. With a short one a busy machine splits the batch.
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "compression.type": codec, "linger.ms": 10_000}
        )
        for n in range(first, end):
            producer.produce(
                topic,
                None if n % 11 == 5 else b"value %d" % n,
                [b"k%d" % (n % 7), b"", None][n % 3],
                partition=n % partitions,
                timestamp=START + n * 1000,
                headers=[("a", b"1"), ("ä", None), ("a", b"")] if n % 4 == 0 else [],
            )
        assert producer.flush(20) == 0

    def delete_before(self, topic: str, offset: int) -> None:
        for future in self.admin.delete_records([Place(topic, 0, offset)]).values():
            future.result(20)


@pytest.fixture(scope="module")
def written(module_clusters: MakeCluster) -> Log:
    """Topics of both sources: mixed (3 partitions, every codec), mixed-2, and trimmed: its log starts at 10."""
    # The records are older than the default retention.
    log = Log(module_clusters(1, {"log.retention.ms": "-1"}).bootstrap)
    log.create("mixed", 3)
    for n, codec in enumerate(["none", "gzip", "snappy", "lz4", "zstd"]):
        log.write("mixed", n * 60, n * 60 + 60, partitions=3, codec=codec)
    log.create("mixed-2")
    log.write("mixed-2", 0, 30)
    log.create("trimmed")
    for n in range(0, 40, 5):
        log.write("trimmed", n, n + 5)
    log.delete_before("trimmed", 10)
    log.create("empty", 2)
    return log


@pytest.fixture
def topic(tmp_path: Path) -> str:
    """Return a name that no test had before, nor this test's first attempt."""
    return tmp_path.name


def loaded(spark: SparkSession, source: str, log: Log, options: Mapping[str, Any]) -> DataFrame:
    reader = spark.read.format(source).option("kafka.bootstrap.servers", log.bootstrap)
    return reader.options(**options).load()


def rows(frame: DataFrame) -> list[Row]:
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def of(topic: str, *offsets: int) -> str:
    """The JSON of one offset or timestamp per partition."""
    return json.dumps({topic: {str(n): offset for n, offset in enumerate(offsets)}})


SAME_ROWS: Mapping[str, tuple[int, Mapping[str, str]]] = {
    "all of a topic": (300, {"subscribe": "mixed"}),
    "headers": (300, {"subscribe": "mixed", "includeHeaders": "true"}),
    "two topics": (330, {"subscribe": " mixed , mixed-2,"}),
    "a pattern": (330, {"subscribePattern": "ixe"}),
    "a pattern without a topic": (0, {"subscribePattern": "^nothing$"}),
    "partitions": (200, {"assign": '{"mixed": [0, 2]}'}),
    "an empty topic": (0, {"subscribe": "empty"}),
    "a trimmed log": (30, {"subscribe": "trimmed"}),
    "names in other cases": (
        300,
        {"SUBSCRIBE": "mixed", "startingoffsets": "EARLIEST", "ENDINGOFFSETS": "Latest"},
    ),
    "offsets": (
        100 - 7 + 12 + 50,
        {
            "subscribe": "mixed",
            "startingOffsets": of("mixed", 7, -2, 50),
            "endingOffsets": of("mixed", -1, 12, 100),
        },
    ),
    "empty ranges": (
        0,
        {
            "subscribe": "mixed",
            "startingOffsets": of("mixed", 7, 0, 100),
            "endingOffsets": of("mixed", 7, 0, -1),
        },
    ),
    "one timestamp": (
        50,
        {
            "subscribe": "mixed",
            "startingTimestamp": str(START + 99_500),
            "endingTimestamp": str(START + 150_000),
        },
    ),
    "an ending timestamp after the end": (
        300,
        {"subscribe": "mixed", "endingTimestamp": str(START * 2)},
    ),
    "timestamps": (
        67 + 1 + 0,
        {
            "subscribe": "mixed",
            "startingOffsetsByTimestamp": of("mixed", START + 99_000, START, START + 2_000),
            "endingOffsetsByTimestamp": of("mixed", START * 2, START + 2_000, START + 2_000),
        },
    ),
    "a starting timestamp after the end": (
        0,
        {
            "subscribe": "mixed",
            "startingTimestamp": str(START * 2),
            "startingOffsetsByTimestampStrategy": "latest",
        },
    ),
    "more tasks": (300, {"subscribe": "mixed", "minPartitions": "7"}),
    "limited tasks": (300, {"subscribe": "mixed", "maxRecordsPerPartition": "30"}),
    "limited and more tasks": (
        330,
        {"subscribe": "mixed,mixed-2", "maxRecordsPerPartition": "60", "minPartitions": "9"},
    ),
    "committed records only": (
        300,
        {"subscribe": "mixed", "kafka.isolation.level": "read_committed"},
    ),
    "less than there was": (
        30,
        {"subscribe": "trimmed", "startingOffsets": of("trimmed", 3), "failOnDataLoss": "false"},
    ),
    "options of streams": (300, {"subscribe": "mixed", "maxOffsetsPerTrigger": "5"}),
}


def headers_of_mixed(written: Log) -> dict[tuple[int, int], BatchInfo]:
    """Return the header of the batch of each record, by partition and offset, read without Spark."""
    stored = {}
    for each in fetch_ranges(
        written.bootstrap, [OffsetRange("mixed", n, 0, 100) for n in range(3)]
    ):
        assert isinstance(each, Fetched)
        stored |= dict.fromkeys(((each.number, at) for at in range(each.low, each.high)), each.info)
    return stored


def test_each_record_has_the_header_of_its_batch(written: Log) -> None:
    """The tasks run in this process: their Arrow batches have the schema that Spark expects, or a unit test fails."""
    servers = {"kafka.bootstrap.servers": written.bootstrap}
    source = KbrokerDataSource({**servers, "subscribe": "mixed", "includeBatches": "true"})
    reader = source.reader(source.schema())
    found = [
        row
        for task in reader.partitions()
        for batch in reader.read(task)
        for row in batch.drop_columns("timestamp").to_pylist()
    ]
    stored = headers_of_mixed(written)
    assert len(found) == len(stored) == 300
    for row in found:
        batch, info = row["batch"], stored[row["partition"], row["offset"]]
        assert (batch["baseOffset"], batch["lastOffset"]) == (info.base_offset, info.last_offset)
        assert (batch["crc"], batch["size"]) == (info.crc, info.size)
        assert (batch["leaderEpoch"], batch["records"]) == (info.leader_epoch, info.record_count)
    assert {row["batch"]["codec"] for row in found} == {"none", "gzip", "snappy", "lz4", "zstd"}


def test_the_header_of_the_batch_passes_through_spark_in_a_batch_read_and_in_a_stream(
    spark: SparkSession, written: Log, tmp_path: Path
) -> None:
    options = {"subscribe": "mixed", "includeBatches": "true"}
    stored = headers_of_mixed(written)
    expected = {
        place: (
            *(info.base_offset, info.last_offset, info.leader_epoch, info.crc),
            *(
                Codec(info.codec).name.lower(),
                info.producer_id,
                info.producer_epoch,
                info.base_sequence,
            ),
            *(info.is_transactional, info.record_count, info.size),
        )
        for place, info in stored.items()
    }
    assert max(info.crc for info in stored.values()) >= 1 << 31, "the CRC is unsigned"
    read = loaded(spark, "kbroker", written, options)
    stream = Stream(spark, written, tmp_path, {**options, "startingOffsets": "earliest"})
    assert stream.run(maxOffsetsPerTrigger="70") > 1
    for frame in (read, spark.read.parquet(str(tmp_path / "rows"))):
        found = {(row.partition, row.offset): tuple(row.batch) for row in frame.collect()}
        assert found == expected
    # One row per batch, as docs/spark.md has it.
    batches = read.select("topic", "partition", "batch.*").distinct().collect()
    assert len(batches) == len({(number, info.base_offset) for (number, _), info in stored.items()})
    assert sum(row.records for row in batches) == 300
    in_part = {**options, "assign": '{"mixed": [0]}', "endingOffsets": of("mixed", 5)}
    in_part.pop("subscribe")
    (first,) = loaded(spark, "kbroker", written, in_part).select("batch").distinct().collect()
    assert tuple(first.batch) == expected[0, 0]


@pytest.mark.parametrize("case", SAME_ROWS)
def test_the_same_options_give_the_rows_of_the_connector(
    spark: SparkSession, written: Log, connector: str, case: str
) -> None:
    count, options = SAME_ROWS[case]
    ours, theirs = (loaded(spark, source, written, options) for source in ("kbroker", connector))
    assert ours.schema == theirs.schema
    found = rows(ours)
    assert len(found) == count
    assert found == rows(theirs)


@pytest.mark.parametrize(
    ("tasks", "options"),
    [
        (3, {"subscribe": "mixed"}),
        (6, {"subscribe": "mixed", "minPartitions": "7"}),
        (4, {"subscribe": "mixed,mixed-2", "minPartitions": "2"}),
        (10, {"subscribe": "mixed,mixed-2", "minPartitions": "9"}),
    ],
)
def test_the_same_options_give_the_tasks_of_the_connector(
    spark: SparkSession, written: Log, connector: str, tasks: int, options: Mapping[str, str]
) -> None:
    for source in ("kbroker", connector):
        assert loaded(spark, source, written, options).rdd.getNumPartitions() == tasks, source


BOTH_REFUSE: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "no topic": ("must be given", {}),
    "two selections": ("only one of", {"subscribe": "mixed", "assign": '{"mixed":[0]}'}),
    "no name": ("names no topic", {"subscribe": " , "}),
    "an empty pattern": ("is empty", {"subscribePattern": " "}),
    "a broken pattern": ("is not a pattern", {"subscribePattern": "(mixed"}),
    "assign without JSON": ("expected for example", {"assign": "mixed"}),
    "a topic that does not exist": (
        "missing-topic",
        {"subscribe": "missing-topic", "fetchOffset.retryIntervalMs": "10"},
    ),
    "start at latest": ("can't be latest", {"subscribe": "mixed", "startingOffsets": "latest"}),
    "start at -1": (
        "can't be latest",
        {"subscribe": "mixed-2", "startingOffsets": of("mixed-2", -1)},
    ),
    "end at earliest": ("can't be earliest", {"subscribe": "mixed", "endingOffsets": "earliest"}),
    "end at -2": (
        "can't be earliest",
        {"subscribe": "mixed-2", "endingOffsets": of("mixed-2", -2)},
    ),
    "broken JSON": ("expected for example", {"subscribe": "mixed", "startingOffsets": "{"}),
    "not all partitions": (
        "must name all",
        {"subscribe": "mixed", "startingOffsets": of("mixed", 0)},
    ),
    "not all timestamps": (
        "must name all",
        {"subscribe": "mixed", "startingOffsetsByTimestamp": of("mixed", START)},
    ),
    "different partitions": (
        "same partitions",
        {
            "subscribe": "mixed-2",
            "startingOffsets": of("mixed-2", 0),
            "endingOffsets": of("mixed-2", 9, 9),
        },
    ),
    "start above end": (
        "above",
        {
            "subscribe": "mixed-2",
            "startingOffsets": of("mixed-2", 9),
            "endingOffsets": of("mixed-2", 8),
        },
    ),
    "start above the log end": (
        "above",
        {"subscribe": "mixed-2", "startingOffsets": of("mixed-2", 31)},
    ),
    "start time above end time": (
        "above",
        {
            "subscribe": "mixed",
            "startingTimestamp": str(START + 9000),
            "endingTimestamp": str(START),
        },
    ),
    "no record at the start time": (
        "no record is as recent",
        {"subscribe": "mixed", "startingTimestamp": str(START * 2)},
    ),
    "an unknown strategy": (
        "error or latest",
        {
            "subscribe": "mixed",
            "startingTimestamp": "0",
            "startingOffsetsByTimestampStrategy": "no",
        },
    ),
    "no number": ("not a whole number", {"subscribe": "mixed", "minPartitions": "x"}),
    "no tasks": ("at least 1", {"subscribe": "mixed", "minPartitions": "0"}),
    "no records": ("at least 1", {"subscribe": "mixed", "maxRecordsPerPartition": "-1"}),
    "no boolean": ("true or false", {"subscribe": "mixed", "failOnDataLoss": "yes"}),
    "no boolean for headers": ("true or false", {"subscribe": "mixed", "includeHeaders": "1"}),
    "a position of the consumer": (
        "use startingOffsets",
        {"subscribe": "mixed", "kafka.auto.offset.reset": "earliest"},
    ),
    "a deserializer": ("is not supported", {"subscribe": "mixed", "kafka.key.deserializer": "x"}),
    "commits": ("is not supported", {"subscribe": "mixed", "kafka.enable.auto.commit": "true"}),
    "an unknown isolation level": (
        "isolation.level",
        {
            "subscribe": "mixed",
            "kafka.isolation.level": "dirty",
            "fetchOffset.retryIntervalMs": "10",
        },
    ),
    "minimum above maximum": (
        "higher than",
        {"subscribe": "mixed", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
    ),
    "records that were deleted": (
        "starts at 10",
        {"subscribe": "trimmed", "startingOffsets": of("trimmed", 3)},
    ),
    "records to come": (
        "ends at 30",
        {
            "subscribe": "mixed-2",
            "endingOffsets": of("mixed-2", 31),
            "kafkaConsumer.pollTimeoutMs": "2000",
        },
    ),
}


@pytest.mark.parametrize("case", BOTH_REFUSE)
def test_what_the_connector_refuses_is_refused_with_the_reason(
    spark: SparkSession, written: Log, connector: str, case: str
) -> None:
    text, options = BOTH_REFUSE[case]
    with pytest.raises(Exception, match=r"(?s).") as ours:
        loaded(spark, "kbroker", written, options).collect()
    assert text in str(ours.value)
    with pytest.raises(Exception, match=r"(?s)."):
        loaded(spark, connector, written, options).collect()


class Stream(NamedTuple):
    """A query from topics into a directory of Parquet files, run to the end of the log and ended, again and again."""

    spark: SparkSession
    log: Log
    home: Path
    options: Mapping[str, str]

    def run(self, source: str = "kbroker", **more: str) -> int:
        """Read all there is; return the number of micro-batches with records."""
        query = (
            self.spark.readStream.format(source)
            .option("kafka.bootstrap.servers", self.log.bootstrap)
            .options(**self.options, **more)
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.home / "checkpoint"))
            .option("path", str(self.home / "rows"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        assert not query.isActive
        return sum(1 for each in query.recentProgress if each["numInputRows"])

    def fails(self, **more: str) -> str:
        with pytest.raises(Exception, match=r"(?s).") as failed:
            self.run(**more)
        return str(failed.value)

    def saved(self) -> Any:
        """The offsets of the last micro-batch in the checkpoint."""
        files = [
            each for each in (self.home / "checkpoint" / "offsets").iterdir() if each.name.isdigit()
        ]
        return json.loads(max(files, key=lambda each: int(each.name)).read_text().splitlines()[-1])

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """(partition, offset) of every row in the sink."""
        found = self.spark.read.parquet(str(self.home / "rows")).collect()
        return sorted((row.partition, row.offset) for row in found)


def up_to(*counts: int) -> list[tuple[int, int]]:
    return [(n, offset) for n, count in enumerate(counts) for offset in range(count)]


def test_a_stream_reads_every_record_once_over_restarts(
    spark: SparkSession, written: Log, topic: str, tmp_path: Path
) -> None:
    written.create(topic, 2)
    written.write(topic, 0, 40, partitions=2)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "10"}
    stream = Stream(spark, written, tmp_path, options)
    assert stream.run() == 4
    assert stream.offsets == up_to(20, 20)
    assert stream.run() == 0
    written.write(topic, 40, 50, partitions=2)
    written.admin.create_partitions([NewPartitions(topic, 3)])[topic].result(20)
    written.write(topic, 50, 80, partitions=3)
    stream.run()
    assert stream.offsets == up_to(35, 35, 10)
    assert stream.saved() == {topic: {"0": 35, "1": 35, "2": 10}}


def test_a_query_of_the_connector_goes_on_with_this_source_and_back(
    spark: SparkSession, written: Log, connector: str, topic: str, tmp_path: Path
) -> None:
    written.create(topic, 2)
    stream = Stream(spark, written, tmp_path, {"subscribe": topic, "startingOffsets": "earliest"})
    for end, source in enumerate([connector, "kbroker", connector, "kbroker"], 1):
        written.write(topic, end * 10 - 10, end * 10, partitions=2)
        assert stream.run(source) == 1
        assert stream.offsets == up_to(end * 5, end * 5)
        assert stream.saved() == {topic: {"0": end * 5, "1": end * 5}}


@pytest.mark.parametrize("sink_has_it", [False, True])
def test_a_query_that_fails_in_its_first_micro_batch_starts_again_at_the_same_offsets(
    spark: SparkSession, written: Log, topic: str, tmp_path: Path, sink_has_it: bool
) -> None:
    """Spark keeps the end of a micro-batch, not its start; records written between two attempts must not be lost."""
    written.create(topic)
    written.write(topic, 0, 10)
    stream = Stream(spark, written, tmp_path, {"subscribe": topic})
    stream.run()
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink()
    if not sink_has_it:
        shutil.rmtree(tmp_path / "rows")
    written.write(topic, 10, 15)
    assert stream.run() == 1
    assert stream.offsets == [(0, n) for n in range(10, 15)]


def test_a_stream_fails_where_its_next_records_were_deleted(
    spark: SparkSession, written: Log, topic: str, tmp_path: Path
) -> None:
    written.create(topic)
    written.write(topic, 0, 10)
    stream = Stream(spark, written, tmp_path, {"subscribe": topic, "startingOffsets": "earliest"})
    stream.run()
    for n in range(10, 30, 5):
        written.write(topic, n, n + 5)
    written.delete_before(topic, 20)
    failure = stream.fails()
    assert f"the log of {topic}-0 starts at 20, above the next offset 10" in failure
    assert "failOnDataLoss" in failure
    assert stream.offsets == up_to(10)
    stream.run(failOnDataLoss="false")
    assert stream.offsets == up_to(10) + [(0, n) for n in range(20, 30)]


def test_a_stream_has_no_end_option(spark: SparkSession, written: Log, tmp_path: Path) -> None:
    for name in ("endingOffsets", "endingTimestamp"):
        stream = Stream(spark, written, tmp_path, {"subscribe": "mixed", name: "latest"})
        assert f"{name}" in stream.fails()


KILLED_QUERY = """
import sys
from pyspark.sql import SparkSession
from spark_jobs.session import JAVA_OPTIONS, driver_java_options
from spark_jobs.source import KbrokerDataSource
from spark_jobs.spark_settings import FOR_FEW_OFFSETS, SparkSettings

bootstrap, topic, home = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config(map=FOR_FEW_OFFSETS)
options = driver_java_options(SparkSettings("local[2]"))
spark = builder.config(JAVA_OPTIONS, options).getOrCreate()
spark.dataSource.register(KbrokerDataSource)
(
    spark.readStream.format("kbroker")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", "20")
    .load()
    .writeStream.format("parquet")
    .option("checkpointLocation", home + "/checkpoint")
    .option("path", home + "/rows")
    .start()
    .awaitTermination()
)
"""


@pytest.mark.timeout(600)  # two more JVMs start
def test_kill_9_of_a_query_leaves_every_record_in_the_sink_once(
    spark: SparkSession, written: Log, topic: str, tmp_path: Path
) -> None:
    written.create(topic, 2)
    written.write(topic, 0, 2000, partitions=2)
    offsets = tmp_path / "checkpoint" / "offsets"
    seen = 0
    for more in (2, 2):
        command = [sys.executable, "-c", KILLED_QUERY, written.bootstrap, topic, str(tmp_path)]
        with (tmp_path / "query.log").open("ab") as log:
            query = subprocess.Popen(command, stderr=log, start_new_session=True)
        try:
            eventually("micro-batches", lambda n=seen + more: micro_batches(offsets) >= n, 240)
        finally:
            os.killpg(query.pid, signal.SIGKILL)
            query.wait()
        seen = micro_batches(offsets)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    stream = Stream(spark, written, tmp_path, options)
    stream.run()
    assert stream.offsets == up_to(1000, 1000)


def micro_batches(offsets: Path) -> int:
    """The number of micro-batches that a checkpoint has seen begin."""
    return sum(1 for each in offsets.glob("*") if each.name.isdigit()) if offsets.exists() else 0


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory, zookeeper_server: Ensemble) -> Iterator[Log]:
    home = tmp_path_factory.mktemp("apache")
    with running_kafka(
        home / "kafka",
        f"{zookeeper_server.connect}/{home.name}",
        {
            "log.cleaner.backoff.ms": "200",
            "log.cleaner.min.cleanable.ratio": "0.01",
            "log.retention.ms": "-1",
        },
    ) as kafka:
        yield Log(kafka.bootstrap)


class Transactions:
    """One transactional producer."""

    def __init__(self, log: Log, name: str) -> None:
        self.producer = Producer(
            {
                "bootstrap.servers": log.bootstrap,
                "transactional.id": name,
                "transaction.timeout.ms": 100_000,
            }
        )
        self.producer.init_transactions(30)

    def write(self, topic: str, partition: int, count: int) -> None:
        for n in range(count):
            self.producer.produce(topic, b"in a transaction %d" % n, partition=partition)
        self.producer.flush(20)


@with_kafka
def test_transactions_of_apache_kafka_give_the_rows_of_the_connector(
    spark: SparkSession, apache: Log, connector: str, topic: str, tmp_path: Path
) -> None:
    apache.create(topic, 2)
    committed, aborted, unfinished = (Transactions(apache, name) for name in "cao")
    for _ in range(3):
        committed.producer.begin_transaction()
        aborted.producer.begin_transaction()
        for partition in (0, 1):
            committed.write(topic, partition, 5)
            aborted.write(topic, partition, 4)
            committed.write(topic, partition, 1)
        aborted.producer.abort_transaction(20)
        committed.producer.commit_transaction(20)
        apache.write(topic, 0, 6, partitions=2)
    aborted.producer.begin_transaction()
    aborted.write(topic, 0, 7)
    aborted.producer.abort_transaction(20)
    unfinished.producer.begin_transaction()
    unfinished.write(topic, 0, 3)
    apache.write(topic, 0, 4, partitions=2)

    everything = {"subscribe": topic}
    only_committed = {**everything, "kafka.isolation.level": "read_committed"}
    counts = {}
    for name, options in {
        "all": everything,
        "committed": only_committed,
        "parts": {**only_committed, "minPartitions": "9"},
        "in the midst": {**only_committed, "startingOffsets": of(topic, 7, 8)},
        "up to an aborted record": {**only_committed, "endingOffsets": of(topic, 8, 7)},
        "by time": {**only_committed, "startingTimestamp": str(START + 3000)},
    }.items():
        ours, theirs = (rows(loaded(spark, s, apache, options)) for s in ("kbroker", connector))
        assert ours == theirs, name
        counts[name] = len(ours)
    assert counts["all"] == 3 * (20 + 6) + 7 + 3 + 4
    assert counts["committed"] == counts["parts"] == 3 * (12 + 6) + 2

    stream = Stream(spark, apache, tmp_path, {**only_committed, "startingOffsets": "earliest"})
    stream.run()
    assert len(stream.offsets) == counts["committed"]
    unfinished.producer.commit_transaction(20)
    stream.run()
    assert len(stream.offsets) == len(set(stream.offsets)) == counts["committed"] + 3 + 2


@with_kafka
def test_a_compacted_log_of_apache_kafka_gives_the_rows_of_the_connector(
    spark: SparkSession, apache: Log, connector: str, topic: str
) -> None:
    apache.create(
        topic,
        cleanup_policy="compact",
        segment_bytes="2000",
        delete_retention_ms="0",
        message_timestamp_type="LogAppendTime",
    )
    producer = Producer({"bootstrap.servers": apache.bootstrap, "linger.ms": 0})
    for n in range(400):
        producer.produce(topic, None if n % 9 == 0 else b"v%d" % n, b"k%d" % (n % 5))
        if n % 10 == 0:
            producer.flush(20)
    producer.flush(20)

    def read(source: str) -> list[Row]:
        return rows(loaded(spark, source, apache, {"subscribe": topic}))

    eventually("compaction", lambda: len(read("kbroker")) < 200, 60)
    eventually("the same rows", lambda: read("kbroker") == read(connector), 60)
    found = read("kbroker")
    assert found[-1].offset == 399
    assert {row.timestampType for row in found} == {1}
