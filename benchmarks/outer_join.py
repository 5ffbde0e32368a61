"""An audit without kaudit: a full outer join over Spark's own Kafka connector.

`python -m benchmarks.outer_join SOURCE TARGET TOPIC JAR...` prints the number of offsets of which key, value, headers
or timestamp differ, or that only one side has.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def main() -> int:
    """Join and print; return 0."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f_

    source, target, topic, *jars = sys.argv[1:]
    spark = (
        SparkSession.builder.appName("outer join")
        .master("local[*]")
        .config("spark.jars", ",".join(jars))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.shuffle.partitions", "16")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    left, right = (_records(spark, side, topic) for side in (source, target))
    both = left.join(right, ["partition", "offset"], "full_outer")
    differ = both.where(~left["hash"].eqNullSafe(right["hash"])).select(f_.count("*")).collect()
    print(differ[0][0])
    spark.stop()
    return 0


def _records(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """Return partition, offset and a hash of the content of every record."""
    from pyspark.sql import functions as f_

    records = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .option("failOnDataLoss", "true")
        .load()
    )
    content = f_.xxhash64(
        f_.col("key").isNull(), "key", f_.col("value").isNull(), "value", "timestamp",
        f_.to_json("headers"),
    )  # fmt: skip
    return records.select("partition", "offset", content.alias("hash"))


if __name__ == "__main__":
    sys.exit(main())
