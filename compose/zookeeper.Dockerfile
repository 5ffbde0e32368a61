# ZooKeeper for machines without a registry: the server that PySpark contains, from the image with Spark.
#   docker build -f compose/zookeeper.Dockerfile -t kbroker-zookeeper .
ARG BASE=kbroker-spark
FROM ${BASE}
COPY compose/zookeeper.py /opt/kbroker/
EXPOSE 2181
ENTRYPOINT ["python3", "/opt/kbroker/zookeeper.py"]
