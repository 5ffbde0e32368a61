"""A Kafka broker on Twisted, coordinated by ZooKeeper."""
