"""The Spark data source `kbroker`: Kafka topics as DataFrames, with the options of Spark's Kafka connector.

    from spark_jobs.source import KbrokerDataSource

    spark.dataSource.register(KbrokerDataSource)
    spark.read.format("kbroker").option("kafka.bootstrap.servers", "...").option("subscribe", "orders").load()

`docs/spark.md` is the user's page.
"""

from spark_jobs.source.data_source import KbrokerDataSource

__all__ = ["KbrokerDataSource"]
