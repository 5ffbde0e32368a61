"""The controller: elected through ZooKeeper, it decides leaders and replicas and sends them to all brokers.

`core` holds the state machines; the modules here run them against ZooKeeper and brokers.
"""
