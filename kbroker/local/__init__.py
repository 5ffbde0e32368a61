"""Clusters on this machine: a ZooKeeper ensemble from PySpark's jars and brokers in the background."""
